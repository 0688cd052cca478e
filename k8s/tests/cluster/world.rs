//! A small cluster: the API, the controllers and the kubelet that the operator relies on, and operators.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use zagros_operator::crd::Progress;
use zagros_operator::error::Error;
use zagros_operator::operator::{OperatorConfig, run};
use zagros_plumbing::Shutdown;
use zagros_plumbing::metrics::{Registry, render};

use crate::api::{Api, Key};
use crate::replaced::Replaced;

/// Namespace of the jobs.
pub(crate) const ADS: &str = "ads";
/// Longest wait, in virtual time.
const PATIENCE: Duration = Duration::from_secs(3600);
/// When an operator should be gone that was asked to end, in virtual time.
const LATE: Duration = Duration::from_secs(60);
/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// The cluster.
pub(crate) struct World {
    pub(crate) api: Api,
    /// What the coordinators tell.
    pub(crate) progress: Arc<Mutex<Option<Progress>>>,
    /// Pods that do not become ready, by a part of their name: Kubernetes' reason and its message.
    pub(crate) stuck: BTreeMap<String, (&'static str, &'static str)>,
    /// Kinds whose controller makes no pods, as under a quota.
    pub(crate) idle: Vec<&'static str>,
    /// Pods that Jobs made anew.
    replaced: Replaced,
    epoch: Instant,
}

/// A running operator.
pub(crate) struct Operator {
    pub(crate) shutdown: Shutdown,
    pub(crate) task: JoinHandle<Result<(), Error>>,
    registry: Registry,
}

impl Operator {
    pub(crate) fn metric(&self, line: &str) -> bool {
        render(&self.registry).contains(line)
    }

    /// Ends as by SIGKILL.
    pub(crate) async fn kill(self) {
        self.task.abort();
        assert!(timeout(LATE, self.task).await.is_ok(), "killed, and still there");
    }

    /// Ends as by SIGTERM.
    pub(crate) async fn stop(self) {
        self.shutdown.request();
        timeout(LATE, self.task).await.expect("asked to end, and still there").unwrap().unwrap();
    }
}

impl World {
    pub(crate) fn new() -> Self {
        let (progress, stuck, idle) = (Arc::default(), BTreeMap::new(), Vec::new());
        Self { api: Api::new(), progress, stuck, idle, replaced: Replaced::default(), epoch: Instant::now() }
    }

    pub(crate) fn now(&self) -> Timestamp {
        clock(self.epoch)
    }

    /// Starts an operator; with a name it takes part in the election.
    pub(crate) async fn operator(&self, name: Option<&str>) -> Operator {
        let (progress, epoch, registry) = (Arc::clone(&self.progress), self.epoch, Registry::new());
        let shutdown = Shutdown::new();
        let config = OperatorConfig {
            client: self.api.client(),
            namespace: None,
            identity: name.unwrap_or("alone").to_owned(),
            lease_namespace: name.map(|_| "zagros-system".to_owned()),
            admin: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            registry: registry.clone(),
            asker: Arc::new(move |_| {
                let progress = progress.lock().unwrap().clone();
                Box::pin(async move { progress })
            }),
            clock: Arc::new(move || clock(epoch)),
        };
        let task = tokio::spawn(run(config, shutdown.clone()));
        Operator { shutdown, task, registry }
    }

    /// Creates `ctr`, changed.
    pub(crate) fn create(&self, change: impl FnOnce(&mut Value)) {
        let mut job = hybrid_job();
        change(&mut job);
        self.write(&key("zagros.dev", "hybridjobs", "ctr"), job);
    }

    /// As a user edits: refused by the definition's rules, or done.
    pub(crate) fn edit(&self, change: impl FnOnce(&mut Value)) -> Result<(), String> {
        let place = key("zagros.dev", "hybridjobs", "ctr");
        let mut job = self.api.store().get(&place).unwrap();
        change(&mut job);
        let put = self.api.store().put(&place, job, crate::api::Part::Main);
        self.api.announce();
        put.map(|_| ()).map_err(|refusal| refusal.message)
    }

    /// As another controller writes.
    pub(crate) fn write(&self, place: &Key, object: Value) {
        self.api.store().put(place, object, crate::api::Part::Whole).unwrap_or_else(|refusal| panic!("{refusal:?}"));
        self.api.announce();
    }

    pub(crate) fn delete(&self, place: &Key) {
        self.api.store().delete(place).unwrap_or_else(|refusal| panic!("{refusal:?}"));
        self.api.announce();
    }

    pub(crate) fn job(&self) -> Option<Value> {
        self.api.store().get(&key("zagros.dev", "hybridjobs", "ctr")).ok()
    }

    /// A field of the job's status.
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

    /// Names of a kind.
    pub(crate) fn names(&self, group: &str, plural: &str) -> Vec<String> {
        let found = self.api.store().list(group, plural, Some(ADS), "");
        found.iter().map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    pub(crate) fn pods(&self) -> Vec<String> {
        self.names("", "pods")
    }

    /// Reasons of the Events so far, in order.
    pub(crate) fn events(&self) -> Vec<String> {
        let mut events = self.api.store().list("events.k8s.io", "events", Some(ADS), "");
        events.sort_by_key(|event| event["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap());
        events.iter().map(|event| event["reason"].as_str().unwrap().to_owned()).collect()
    }

    /// Lets the cluster go on until something holds.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let started = Instant::now();
        while !holds(self) {
            let job = self.job().map(|job| job["status"].to_string());
            assert!(started.elapsed() < PATIENCE, "never {what}; pods {:?}, status {job:?}", self.pods());
            self.tick();
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Lets the cluster go on for a while.
    pub(crate) async fn pass(&self, seconds: u64) {
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end {
            self.tick();
            tokio::time::sleep(LOOK).await;
        }
    }

    pub(crate) async fn until_running(&self) {
        self.until("running", |world| world.phase() == "Running").await;
    }

    /// What controllers and kubelets do in a moment: make pods, start them, count them.
    fn tick(&self) {
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

    fn control(&self, owner: &Value, plural: &str) {
        let name = owner["metadata"]["name"].as_str().unwrap();
        let is_set = plural == "statefulsets";
        let is_over = owner["status"]["conditions"].as_array().is_some_and(|conditions| !conditions.is_empty());
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
                None if !is_over => self.write(&place, self.pod(owner, &place.name)),
                Some(pod) if pod["status"]["phase"] == "Running" => ready += 1,
                _ => {}
            }
        }
        if is_over {
            return;
        }
        let mut counted = owner.clone();
        counted["status"][if is_set { "readyReplicas" } else { "ready" }] = json!(ready);
        let group = if is_set { "apps" } else { "batch" };
        self.write(&key(group, plural, name), counted);
    }

    fn pod(&self, owner: &Value, name: &str) -> Value {
        let stuck = self.stuck.iter().find(|(part, _)| name.contains(part.as_str())).map(|(_, why)| *why);
        let ready = json!({"type": "Ready", "status": if stuck.is_some() { "False" } else { "True" }});
        let since = self.now().to_string();
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
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name,
                "labels": owner["spec"]["template"]["metadata"]["labels"],
                "ownerReferences": [{"uid": owner["metadata"]["uid"], "name": owner["metadata"]["name"]}],
            },
            "spec": {"containers": [], "nodeName": "n1"},
            "status": {
                "phase": if stuck.is_some() { "Pending" } else { "Running" },
                "conditions": conditions,
                "containerStatuses": statuses,
            },
        })
    }

    /// The container of a pod ends; a Job's pod with it, and the Job as Kubernetes decides.
    pub(crate) fn ends(&self, pod: &str, code: i32) {
        let now = self.now().to_string();
        let place = key("", "pods", pod);
        let mut object = self.api.store().get(&place).unwrap();
        let reason = if code == 0 { "Completed" } else { "Error" };
        let ended = json!({"terminated": {
            "exitCode": code, "reason": reason, "message": "the last line of the log", "finishedAt": now,
        }});
        object["status"]["containerStatuses"] = containers(&object["metadata"]["labels"]["zagros.dev/role"], ended);
        object["status"]["phase"] = json!(if code == 0 { "Succeeded" } else { "Failed" });
        object["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
        self.write(&place, object);
        if !pod.contains("-server-") {
            self.job_of_pod_ends(pod, Some(code));
        }
    }

    /// A pod vanishes, with its node or by hand.
    pub(crate) fn vanishes(&self, pod: &str) {
        self.delete(&key("", "pods", pod));
        if !pod.contains("-server-") {
            self.job_of_pod_ends(pod, None);
        }
    }

    fn job_of_pod_ends(&self, pod: &str, code: Option<i32>) {
        let place = key("batch", "jobs", pod.rsplitn(3, '-').last().unwrap());
        let mut job = self.api.store().get(&place).unwrap();
        job["status"]["ready"] = json!((job["status"]["ready"].as_i64().unwrap_or(0) - 1).max(0));
        let end = self.replaced.ends(&mut job, pod, code);
        if let Some((type_, reason)) = end.filter(|_| job["status"]["conditions"].is_null()) {
            let since = self.now().to_string();
            let condition = json!({"type": type_, "status": "True", "reason": reason, "message": "Job has ended", "lastTransitionTime": since});
            job["status"]["conditions"] = json!([condition]);
        }
        self.write(&place, job);
    }

    /// The whole run ends well.
    pub(crate) fn trains_to_the_end(&self) {
        let runs = |pod: &str| self.api.store().get(&key("", "pods", pod)).unwrap()["status"]["phase"] == "Running";
        for pod in self.pods().iter().filter(|pod| !pod.contains("-server-") && runs(pod)) {
            self.ends(pod, 0);
        }
    }
}

fn clock(epoch: Instant) -> Timestamp {
    let start: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
    start + SignedDuration::try_from(epoch.elapsed()).unwrap()
}

/// Statuses of a pod's containers: the role's, after that of a sidecar which a mesh put first.
fn containers(role: &Value, state: Value) -> Value {
    json!([
        container("istio-proxy", json!({"terminated": {"exitCode": 2, "reason": "Error"}})),
        container(role.as_str().unwrap(), state)
    ])
}

fn container(name: &str, state: Value) -> Value {
    json!({"name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state})
}

pub(crate) fn key(group: &str, plural: &str, name: &str) -> Key {
    let [group, plural, namespace, name] = [group, plural, ADS, name].map(str::to_owned);
    Key { group, plural, namespace, name }
}

fn hybrid_job() -> Value {
    json!({
        "apiVersion": "zagros.dev/v1alpha1",
        "kind": "HybridJob",
        "metadata": {"name": "ctr", "namespace": ADS},
        "spec": {
            "job": {"inline": "[data]\nformat = \"criteo\"\ntrain = \"/data/train.txt\"\n"},
            "image": "registry.example/zagros:1.0",
            "embeddingServers": {"replicas": 3},
            "denseWorkers": {"replicas": 2},
            "volumes": [{"mountPath": "/data", "source": {"claimName": "criteo"}}],
        },
    })
}
