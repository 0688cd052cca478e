//! A small cluster: the API, controllers and kubelets that the operator relies on, and operators.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::Instant;
use zagros_operator::crd::RunProgress;
use zagros_operator::leader::{LeaseCandidate, LeaseHandle};
use zagros_operator::operator::{OperatorConfig, run};
use zagros_plumbing::Shutdown;
use zagros_plumbing::metrics::Registry;

use crate::api::{ClusterClock, FakeApi, ObjectKey};
use crate::controllers::{self, ReplacedPods, count, is_beyond};
use crate::kubelet::{self, comes_back, containers, end, has_ended, is_of_job, is_ready, stop};
use crate::operators::RunningOperator;
use crate::removal;
use crate::scale::ScalingRun;

pub(crate) const ADS: &str = "ads";
/// Kinds of the objects that belong to every job, by their groups.
pub(crate) const DEPENDANTS: [(&str, &str); 6] = [
    ("", "services"),
    ("", "configmaps"),
    ("apps", "statefulsets"),
    ("batch", "jobs"),
    ("networking.k8s.io", "networkpolicies"),
    ("policy", "poddisruptionbudgets"),
];
const TIMEOUT: Duration = Duration::from_secs(1200);
/// How soon a pod ends once it is asked to.
const ENDS_WITHIN: SignedDuration = SignedDuration::from_secs(2);
/// Finalizer of Kubernetes' Job controller.
const TRACKING: &str = "batch.kubernetes.io/job-tracking";
const LOOK: Duration = Duration::from_millis(250);

#[derive(Default)]
pub(crate) struct ClusterWorld {
    pub(crate) api: FakeApi,
    pub(crate) progress: Arc<Mutex<Option<RunProgress>>>,
    pub(crate) run: ScalingRun,
    /// Pods that do not become ready, by a part of their name: Kubernetes' reason and its message.
    pub(crate) stuck: BTreeMap<String, (&'static str, &'static str)>,
    /// Kinds whose controller makes no pods, as under a quota.
    pub(crate) idle: Vec<&'static str>,
    /// Pods whose kubelet does not report.
    pub(crate) unheard: Mutex<BTreeSet<String>>,
    pub(crate) replaced: ReplacedPods,
    clock: ClusterClock,
}

impl ClusterWorld {
    pub(crate) fn new() -> Self {
        let api = FakeApi::default();
        removal::make_namespace(&api);
        let clock = api.store().clock;
        Self { api, clock, ..Self::default() }
    }

    /// With an operator of no name.
    pub(crate) async fn with_operator() -> (Self, RunningOperator) {
        let world = Self::new();
        let operator = world.operator(None).await;
        (world, operator)
    }

    /// With an operator, and a job that runs.
    pub(crate) async fn running(change: impl FnOnce(&mut Value)) -> (Self, RunningOperator) {
        let (world, operator) = Self::with_operator().await;
        world.create(change);
        world.until_running().await;
        (world, operator)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Starts an operator. With a name it takes part in the election.
    pub(crate) async fn operator(&self, name: Option<&str>) -> RunningOperator {
        let (progress, scaled) = (Arc::clone(&self.progress), self.run.clone());
        let (time, registry) = (self.clock, Registry::new());
        let shutdown = Shutdown::new();
        let config = OperatorConfig {
            client: self.api.client(),
            namespace: None,
            identity: name.unwrap_or("alone").to_owned(),
            lease: name.map(|name| self.lease(name)),
            allows_host_access: false,
            admin: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            registry: registry.clone(),
            asker: Arc::new(move |_, _| {
                let progress = scaled.report(progress.lock().unwrap().clone());
                Box::pin(async move { progress })
            }),
            scaler: self.run.scaler(),
            clock: Arc::new(move || time.now()),
        };
        let task = Some(tokio::spawn(run(config, shutdown.clone())));
        RunningOperator { shutdown, task, registry }
    }

    /// The lease of an operator, which is kept beside it.
    fn lease(&self, name: &str) -> LeaseHandle {
        let (handle, keeper) = LeaseHandle::new();
        let candidate = LeaseCandidate::new(self.api.client(), "zagros-system", name);
        tokio::spawn(keeper.keep_lease(candidate));
        handle
    }

    /// Creates `ctr`, after `change`.
    pub(crate) fn create(&self, change: impl FnOnce(&mut Value)) {
        self.create_named("ctr", change);
    }

    pub(crate) fn create_named(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut job = hybrid_job();
        job["metadata"]["name"] = json!(name);
        change(&mut job);
        self.write(&key("zagros.dev", "hybridjobs", name), job);
    }

    /// Edits the job as a user would. Fails if the definition's rules refuse the edit.
    pub(crate) fn edit(&self, change: impl FnOnce(&mut Value)) -> Result<(), String> {
        let place = key("zagros.dev", "hybridjobs", "ctr");
        let mut job = self.api.store().get(&place).unwrap();
        change(&mut job);
        let put = self.api.store().put(&place, job, crate::api::ObjectPart::Main);
        self.api.announce();
        put.map(|_| ()).map_err(|refusal| refusal.message)
    }

    /// A pod's kubelet no longer reports, and Kubernetes evicts the pod. From then on the pod only waits to be deleted.
    pub(crate) fn loses_node_of(&self, pod: &str) {
        self.unheard.lock().unwrap().insert(pod.to_owned());
        let place = key("", "pods", pod);
        let conditions = json!([
            {"type": "Ready", "status": "False"},
            {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"},
        ]);
        self.change(&place, |pod| pod["status"]["conditions"] = conditions);
        self.delete(&place);
    }

    pub(crate) fn write(&self, place: &ObjectKey, object: Value) {
        let put = self.api.store().put(place, object, crate::api::ObjectPart::Whole);
        put.unwrap_or_else(|refusal| panic!("{refusal:?}"));
        self.api.announce();
    }

    /// Changes an object as another controller or a user would.
    pub(crate) fn change(&self, place: &ObjectKey, change: impl FnOnce(&mut Value)) {
        let mut object = self.api.store().get(place).unwrap();
        change(&mut object);
        self.write(place, object);
    }

    pub(crate) fn delete(&self, place: &ObjectKey) {
        self.api.store().delete(place).unwrap_or_else(|refusal| panic!("{refusal:?}"));
        self.api.announce();
    }

    pub(crate) fn job(&self) -> Option<Value> {
        self.api.store().get(&key("zagros.dev", "hybridjobs", "ctr")).ok()
    }

    pub(crate) fn status(&self, pointer: &str) -> Value {
        let job = self.job().unwrap_or_default();
        job["status"].pointer(pointer).cloned().unwrap_or_default()
    }

    pub(crate) fn phase(&self) -> String {
        self.status("/phase").as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn condition(&self, type_: &str) -> Value {
        let conditions = self.status("/conditions");
        let found = conditions.as_array().into_iter().flatten().find(|one| one["type"] == type_);
        found.cloned().unwrap_or_default()
    }

    pub(crate) fn names(&self, group: &str, plural: &str) -> Vec<String> {
        let found = self.api.store().list(group, plural, Some(ADS), "");
        found.iter().map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    pub(crate) fn pods(&self) -> Vec<String> {
        self.names("", "pods")
    }

    /// Pods with this part in their names: `-server-`.
    pub(crate) fn pods_named(&self, part: &str) -> Vec<String> {
        self.pods().into_iter().filter(|pod| pod.contains(part)).collect()
    }

    /// Reasons of the Events so far, in order.
    pub(crate) fn events(&self) -> Vec<String> {
        let mut events = self.api.store().list("events.k8s.io", "events", Some(ADS), "");
        events.sort_by_key(|event| event["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap());
        events.iter().map(|event| event["reason"].as_str().unwrap().to_owned()).collect()
    }

    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let started = Instant::now();
        while !holds(self) {
            let job = self.job().map(|job| job["status"].to_string());
            assert!(started.elapsed() < TIMEOUT, "never {what}; pods {:?}, status {job:?}", self.pods());
            self.tick();
            tokio::time::sleep(LOOK).await;
        }
    }

    pub(crate) async fn advance(&self, seconds: u64) {
        let end = Instant::now() + Duration::from_secs(seconds);
        let step = if seconds > 100 { LOOK * 4 } else { LOOK };
        while Instant::now() < end {
            self.tick();
            tokio::time::sleep(step).await;
        }
    }

    pub(crate) async fn until_running(&self) {
        self.until("running", |world| world.phase() == "Running").await;
    }

    /// One moment of controllers and kubelets: they end pods, make pods, start them and count them.
    fn tick(&self) {
        controllers::release(self);
        removal::remove_namespace(self);
        let pods = self.api.store().list("", "pods", None, "");
        pods.into_iter().for_each(|pod| self.kubelet(pod));
        for (group, plural) in [("apps", "statefulsets"), ("batch", "jobs")] {
            if self.idle.contains(&plural) {
                continue;
            }
            let owners = self.api.store().list(group, plural, None, "");
            for owner in owners {
                self.control(&owner, plural);
            }
        }
    }

    /// Ends a pod that was asked to end, a moment later. Starts a container again that has ended.
    fn kubelet(&self, mut pod: Value) {
        let metadata = pod["metadata"].clone();
        let name = metadata["name"].as_str().unwrap();
        if metadata["deletionTimestamp"].is_null() && comes_back(&mut pod, self.now()) {
            return self.write(&key("", "pods", name), pod);
        }
        let Some(until) = metadata["deletionTimestamp"].as_str() else { return };
        if self.unheard.lock().unwrap().contains(name) {
            return;
        }
        let grace = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        let message = until.parse::<Timestamp>().unwrap() - SignedDuration::from_secs(grace);
        if has_ended(&pod) {
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(0);
            // If the Job is gone, the Job controller does not count its pods.
            if !self.has_owner(&pod) {
                pod["metadata"].as_object_mut().unwrap().remove("finalizers");
            }
        } else if self.now().duration_since(message) >= ENDS_WITHIN {
            end(&mut pod, 143, &self.now().to_string());
        }
        self.write(&key("", "pods", name), pod);
    }

    fn has_owner(&self, pod: &Value) -> bool {
        let owner = &pod["metadata"]["ownerReferences"][0];
        let job = self.api.store().get(&key("batch", "jobs", owner["name"].as_str().unwrap()));
        job.is_ok_and(|job| job["metadata"]["uid"] == owner["uid"])
    }

    fn control(&self, owner: &Value, plural: &str) {
        let name = owner["metadata"]["name"].as_str().unwrap();
        let is_set = plural == "statefulsets";
        if !is_set {
            self.job_controller(name);
        }
        let group = if is_set { "apps" } else { "batch" };
        let Ok(owner) = self.api.store().get(&key(group, plural, name)) else { return };
        let is_over = owner["status"]["conditions"].as_array().is_some_and(|conditions| !conditions.is_empty());
        let makes_none = is_over || owner["spec"]["suspend"] == true || self.api.store().terminating.contains(ADS);
        let owner = if is_set { controllers::step(self, owner) } else { owner };
        let wanted = owner["spec"][if is_set { "replicas" } else { "parallelism" }].as_i64().unwrap_or(1);
        let mut ready = 0;
        for index in 0..wanted {
            let Some(suffix) = (if is_set { Some(format!("{index}")) } else { self.replaced.suffix(name, index) })
            else {
                continue;
            };
            let place = key("", "pods", &format!("{name}-{suffix}"));
            let found = self.api.store().get(&place).ok();
            match found {
                None if !makes_none => {
                    controllers::claim(self, &owner, &place.name);
                    let mut pod = self.pod(&owner, &place.name);
                    if is_set {
                        pod["metadata"]["labels"]["controller-revision-hash"] = controllers::revision(&owner, index);
                    }
                    self.write(&place, pod);
                }
                Some(pod) if is_ready(&pod) => ready += 1,
                _ => {}
            }
        }
        if is_over {
            return;
        }
        let mut counted = owner.clone();
        counted["status"][if is_set { "readyReplicas" } else { "ready" }] = json!(ready);
        self.write(&key(group, plural, name), counted);
    }

    /// Ends the pods of a Job that is over or suspended, counts ended pods, and marks a failing Job as failed once no
    /// pod is left.
    fn job_controller(&self, name: &str) {
        let place = key("batch", "jobs", name);
        let mut job = self.api.store().get(&place).unwrap();
        if self.replaced.forget_beyond(&mut job) {
            self.write(&place, job.clone());
        }
        let conditions = job["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let is_over = !conditions.is_empty();
        let pods: Vec<Value> = self.api.store().prefixed("", "pods", ADS, &format!("{name}-"));
        let is_ours = |pod: &&Value| pod["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"];
        let ours = pods.iter().filter(is_ours).cloned();
        let mut is_left = false;
        for mut pod in ours {
            let pod_place = key("", "pods", pod["metadata"]["name"].as_str().unwrap());
            let is_beyond = is_beyond(&job, &pod_place.name);
            if !has_ended(&pod) {
                is_left = true;
                if (is_over || is_beyond || job["spec"]["suspend"] == true)
                    && pod["metadata"]["deletionTimestamp"].is_null()
                {
                    self.delete(&pod_place);
                }
            } else if pod["metadata"]["finalizers"].is_array() {
                let statuses = pod["status"]["containerStatuses"].as_array().unwrap();
                let of_role = statuses.iter().find(|one| one["name"] == pod["metadata"]["labels"]["zagros.dev/role"]);
                let code = of_role.and_then(|one| one["state"]["terminated"]["exitCode"].as_i64());
                let is_disrupted = pod["status"]["conditions"].to_string().contains("DisruptionTarget");
                let is_counted = count(&mut pod);
                if !ReplacedPods::delays(&job, &pod, &pods) {
                    pod["metadata"].as_object_mut().unwrap().remove("finalizers");
                }
                self.write(&pod_place, pod);
                if !is_counted && !is_over && !is_beyond && job["spec"]["suspend"] != true {
                    self.job_of_pod_ends(&pod_place.name, code.map(|code| i32::try_from(code).unwrap()), is_disrupted);
                }
            }
        }
        if let [only] = conditions.as_slice()
            && only["type"] == "FailureTarget"
            && !is_left
        {
            let mut failed = only.clone();
            failed["type"] = json!("Failed");
            self.change(&place, |job| job["status"]["conditions"] = json!([only, failed]));
        }
    }

    fn pod(&self, owner: &Value, name: &str) -> Value {
        let stuck = self.stuck.iter().find(|(part, _)| name.contains(part.as_str())).map(|(_, why)| *why);
        let since = self.now().to_string();
        let ready = json!({
            "type": "Ready", "status": if stuck.is_some() { "False" } else { "True" }, "lastTransitionTime": since,
        });
        let mut conditions = json!([ready, {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}]);
        let role = &owner["spec"]["template"]["metadata"]["labels"]["zagros.dev/role"];
        let mut statuses = containers(role, json!({"running": {}}));
        match stuck {
            Some(("Unschedulable", message)) => {
                conditions[1] =
                    json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message});
                statuses = json!([]);
            }
            Some((reason, message)) => {
                statuses = containers(role, json!({"waiting": {"reason": reason, "message": message}}));
            }
            None => {}
        }
        let template = &owner["spec"]["template"];
        assert_eq!(kubelet::fault(&template["spec"]), None, "{name}");
        // The pod stays until its Job has counted its end.
        let tracked = if owner["kind"] == "Job" { json!([TRACKING]) } else { Value::Null };
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name,
                "finalizers": tracked,
                "labels": template["metadata"]["labels"],
                "ownerReferences": [{"uid": owner["metadata"]["uid"], "name": owner["metadata"]["name"]}],
            },
            "spec": {
                "containers": [], "nodeName": "n1",
                "terminationGracePeriodSeconds": template["spec"]["terminationGracePeriodSeconds"],
            },
            "status": {
                "phase": if stuck.is_some() { "Pending" } else { "Running" },
                "conditions": conditions,
                "containerStatuses": statuses,
            },
        })
    }

    /// A Job's pod ends with its container, and the Job decides. A StatefulSet's pod stays: its container is started
    /// again, and ends again.
    pub(crate) fn ends(&self, pod: &str, code: i32) {
        let place = key("", "pods", pod);
        let mut object = self.api.store().get(&place).unwrap();
        if !is_of_job(pod) {
            let back_off = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}});
            stop(&mut object, code, &self.now().to_string(), Some(back_off));
            return self.write(&place, object);
        }
        end(&mut object, code, &self.now().to_string());
        count(&mut object);
        self.write(&place, object);
        self.job_of_pod_ends(pod, Some(code), false);
    }

    /// The container of a StatefulSet's pod ends, and works again once it is started again.
    pub(crate) fn dies(&self, pod: &str, code: i32) {
        assert!(!is_of_job(pod), "{pod} is never started again");
        self.change(&key("", "pods", pod), |pod| stop(pod, code, &self.now().to_string(), None));
    }

    /// A pod vanishes with its node, or by hand.
    pub(crate) fn vanishes(&self, pod: &str) {
        let place = key("", "pods", pod);
        self.change(&place, |pod| drop(pod["metadata"].as_object_mut().unwrap().remove("finalizers")));
        self.api.store().delete_within(&place, Some(0)).unwrap();
        self.api.announce();
        if is_of_job(pod) {
            self.job_of_pod_ends(pod, None, false);
        }
    }

    fn job_of_pod_ends(&self, pod: &str, code: Option<i32>, is_disrupted: bool) {
        let place = key("batch", "jobs", pod.rsplitn(3, '-').last().unwrap());
        let mut job = self.api.store().get(&place).unwrap();
        if is_beyond(&job, pod) {
            return;
        }
        if is_disrupted && !job["spec"]["podFailurePolicy"].is_null() {
            self.replaced.is_disrupted(&place.name, pod.rsplit('-').nth(1).unwrap().parse().unwrap());
            return;
        }
        job["status"]["ready"] = json!((job["status"]["ready"].as_i64().unwrap_or(0) - 1).max(0));
        let end = self.replaced.ends(&mut job, pod, code);
        if let Some((type_, reason)) = end.filter(|_| job["status"]["conditions"].is_null()) {
            let since = self.now().to_string();
            let type_ = if type_ == "Failed" { "FailureTarget" } else { type_ };
            let condition = json!({"type": type_, "status": "True", "reason": reason, "message": "Job has ended", "lastTransitionTime": since});
            job["status"]["conditions"] = json!([condition]);
        }
        self.write(&place, job);
    }

    pub(crate) fn trains_to_the_end(&self) {
        let runs = |pod: &str| self.api.store().get(&key("", "pods", pod)).unwrap()["status"]["phase"] == "Running";
        for pod in self.pods().iter().filter(|pod| !pod.contains("-server-") && runs(pod)) {
            self.ends(pod, 0);
        }
    }
}

/// Fails unless a text of a status has this part.
#[track_caller]
pub(crate) fn says(text: &Value, part: &str) {
    assert!(text.as_str().is_some_and(|text| text.contains(part)), "{text} does not say {part}");
}

pub(crate) fn key(group: &str, plural: &str, name: &str) -> ObjectKey {
    let [group, plural, namespace, name] = [group, plural, ADS, name].map(str::to_owned);
    ObjectKey { group, plural, namespace, name }
}

fn hybrid_job() -> Value {
    json!({
        "apiVersion": "zagros.dev/v1alpha1",
        "kind": "HybridJob",
        "metadata": {"name": "ctr", "namespace": ADS},
        "spec": {
            "job": {"inline": "[data]\nformat = \"criteo\"\ntrain = \"/data/train.txt\"\n"},
            "image": "registry.example/zagros:1.0",
            "coordinator": {"pod": {"terminationGracePeriodSeconds": 60}},
            "embeddingServers": {"replicas": 3, "pod": {"terminationGracePeriodSeconds": 60}},
            "denseWorkers": {"replicas": 2, "pod": {"terminationGracePeriodSeconds": 60}},
            "volumes": [{"mountPath": "/data", "source": {"claimName": "criteo"}}],
        },
    })
}
