//! Plans that are executed on the objects of the small cluster, without requests, watches and an operator: what a plan promises
//! is checked at each of its steps.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::ResourceExt;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use zagros_operator::build::{JOB_KEY, ObjectManifest};
use zagros_operator::cache::JobObjects;
use zagros_operator::crd::HybridJob;
use zagros_operator::memory::{CheckedSpec, KnownRequests};
use zagros_operator::names::{FINALIZER, MANAGER, PodRole, RunAttempt};
use zagros_operator::observe::{ObservedObjects, OwnedKind, RemovalScope};
use zagros_operator::plan::{ObservedJob, plan_steps};
use zagros_operator::step::{NO_CONTENT, ObjectDeletion, PlanStep, SECRET_TITLE};
use zagros_operator::validate::{JobText, SpecProblem, ValidJob, validate_job};
use zagros_transport::Credentials;

use crate::api::{ObjectKey, ObjectPart};
use crate::world::{ADS, ClusterWorld, key};

/// After so many plans in a row, nothing is left to do before time passes.
const MOST_PLANS: usize = 8;

/// A spec, and what is wrong with it, if anything is.
type CheckedJob = (CheckedSpec, Result<ValidJob, Vec<SpecProblem>>);

/// Makes and executes the plans of `ctr`.
#[derive(Default)]
pub(crate) struct PlannedRun {
    requests: Mutex<KnownRequests>,
    checked: Mutex<Option<CheckedJob>>,
    /// The second in which the last look was made.
    looked: Mutex<i64>,
    pub(crate) is_away: bool,
}

impl PlannedRun {
    /// As another operator that takes over.
    pub(crate) fn forget(&self) {
        *self.requests.lock().unwrap() = KnownRequests::default();
    }

    /// Makes plans until one has nothing but a wait: the same plan made again changes nothing.
    pub(crate) fn look(&self, world: &ClusterWorld) {
        if self.is_away {
            return;
        }
        let mut plans = Vec::new();
        loop {
            let Some(job) = world.job() else { return };
            let job: HybridJob = serde_json::from_value(job).unwrap();
            let plan = plan_steps(&job, &self.observe(world, &job));
            if matches!(plan[..], [PlanStep::Wait(..)]) {
                return;
            }
            plans.push(plan.clone());
            assert!(plans.len() <= MOST_PLANS, "plans without end: {plans:#?}");
            // A step that returns false ends its plan.
            let _ = plan.into_iter().all(|step| self.execute(world, &job, step));
        }
    }

    pub(crate) async fn until(&self, world: &ClusterWorld, what: &str, holds: impl Fn(&ClusterWorld) -> bool) {
        let is_there = |world: &ClusterWorld| {
            let second = world.now().as_second();
            if std::mem::replace(&mut *self.looked.lock().unwrap(), second) != second {
                self.look(world);
            }
            holds(world)
        };
        world.until(what, is_there).await;
    }

    fn observe(&self, world: &ClusterWorld, job: &HybridJob) -> ObservedJob {
        let objects = JobObjects {
            jobs: typed(world, "batch", "jobs"),
            sets: typed(world, "apps", "statefulsets"),
            pods: typed(world, "", "pods"),
            services: typed(world, "", "services"),
        };
        let attempt = RunAttempt::recorded(job);
        let run = ObservedObjects::new(attempt.number, &objects);
        let config = world.api.store().get(&key("", "configmaps", &attempt.config_name()));
        let text = match config {
            Ok(config) => JobText::OfAttempt(config["data"][JOB_KEY].as_str().unwrap().to_owned()),
            Err(_) => JobText::OfSpec(job.spec.job.inline.clone().unwrap()),
        };
        let runs = run.coordinator.as_ref().is_some_and(|coordinator| coordinator.end.is_none());
        let answers = runs && run.ready_count(PodRole::Coordinator) > 0;
        let progress = world.progress.lock().unwrap().clone().filter(|_| answers);
        ObservedJob {
            valid: self.check(job, text, &attempt),
            report: run.end_report.clone().or(world.run.report(progress)),
            run,
            objects,
            next_ask: Duration::from_secs(15),
            scale_refusal: None,
            requests: self.requests.lock().unwrap().clone(),
            is_namespace_deleted: false,
            now: world.now(),
        }
    }

    fn check(&self, job: &HybridJob, text: JobText, attempt: &RunAttempt) -> Result<ValidJob, Vec<SpecProblem>> {
        let spec = CheckedSpec { generation: job.metadata.generation, attempt: attempt.number, text };
        let mut checked = self.checked.lock().unwrap();
        if let Some((_, valid)) = checked.as_ref().filter(|(known, _)| *known == spec) {
            return valid.clone();
        }
        let valid = validate_job(job, &spec.text, attempt);
        *checked = Some((spec, valid.clone()));
        valid
    }

    fn execute(&self, world: &ClusterWorld, job: &HybridJob, step: PlanStep) -> bool {
        let place = key("zagros.dev", "hybridjobs", "ctr");
        match step {
            PlanStep::SetStatus(status) => world.change(&place, |job| job["status"] = json!(*status)),
            PlanStep::Publish(_) => {}
            PlanStep::Hold(is_held) => {
                let finalizers = if is_held { json!([FINALIZER]) } else { json!([]) };
                world.change(&place, |job| job["metadata"]["finalizers"] = finalizers);
            }
            PlanStep::MakeSecret => self.note(world, SECRET_TITLE, NO_CONTENT, None),
            PlanStep::Apply(manifests) => manifests.iter().for_each(|manifest| self.apply(world, manifest)),
            PlanStep::ConfirmNoWorkers(scope) => return !self.observe(world, job).run.has_workers(scope, world.now()),
            PlanStep::Suspend(name) => {
                world.change(&key("batch", "jobs", &name), |job| job["spec"]["suspend"] = json!(true));
            }
            PlanStep::Delete(deletion) => {
                delete(world, &deletion);
                self.note(world, &deletion.title("ctr"), NO_CONTENT, None);
            }
            PlanStep::GiveUp(pod) => world.vanishes(&pod),
            PlanStep::Scale(wanted, _) => world.run.scale(&Credentials::Open, wanted).unwrap(),
            PlanStep::DeleteJob => world.delete(&place),
            PlanStep::Wait(..) => return false,
        }
        true
    }

    fn note(&self, world: &ClusterWorld, title: &str, hash: u64, generation: Option<i64>) {
        self.requests.lock().unwrap().note(title, hash, &Ok(generation), world.now());
    }

    fn apply(&self, world: &ClusterWorld, manifest: &ObjectManifest) {
        let place = key(&manifest.resource.group, &manifest.resource.plural, &manifest.object.name_any());
        if ["jobs", "statefulsets"].contains(&place.plural.as_str()) && world.api.store().get(&place).is_err() {
            may_start(world, &place);
        }
        let applied = world.api.store().apply(&place, MANAGER, &json!(manifest.object), ObjectPart::Main);
        let applied = applied.unwrap_or_else(|refusal| panic!("{refusal:?}"));
        world.api.announce();
        self.note(world, &manifest.title(), manifest.content_hash(), applied["metadata"]["generation"].as_i64());
    }
}

fn typed<K: DeserializeOwned>(world: &ClusterWorld, group: &str, plural: &str) -> Vec<Arc<K>> {
    let found = world.api.store().list(group, plural, Some(ADS), "zagros.dev/job=ctr");
    found.into_iter().map(|object| Arc::new(serde_json::from_value(object).unwrap())).collect()
}

/// Names of pods that have not ended, of a part of their names.
fn running(world: &ClusterWorld, part: &str) -> Vec<String> {
    let runs = |pod: &String| world.api.store().get(&key("", "pods", pod)).unwrap()["status"]["phase"] == "Running";
    world.pods_named(part).into_iter().filter(runs).collect()
}

/// What makes pods comes after what they mount and are found by, and workers after servers and coordinator. No worker of another
/// attempt runs.
fn may_start(world: &ClusterWorld, place: &ObjectKey) {
    let (attempt, role) = place.name.rsplit_once('-').unwrap();
    for role in ["coordinator", "server", "worker"] {
        assert!(world.names("", "services").contains(&format!("{attempt}-{role}")), "{place:?}");
    }
    assert!(world.names("", "configmaps").contains(&format!("{attempt}-job")), "{place:?}");
    if role == "worker" {
        for member in ["coord", "server"] {
            assert!(world.names("apps", "statefulsets").contains(&format!("{attempt}-{member}")), "{place:?}");
        }
        let others = running(world, "-worker-").into_iter().filter(|pod| !pod.starts_with(&format!("{attempt}-")));
        assert_eq!(others.collect::<Vec<_>>(), Vec::<String>::new(), "{place:?}");
    }
}

/// Servers and coordinator go after their workers, and the objects by which pods find each other after all pods.
fn delete(world: &ClusterWorld, deletion: &ObjectDeletion) {
    let is_deleted = !world.job().unwrap()["metadata"]["deletionTimestamp"].is_null();
    let mut deleted = Vec::new();
    match deletion {
        ObjectDeletion::Workload(OwnedKind::Workers, name) => deleted.push(key("batch", "jobs", name)),
        ObjectDeletion::Workload(OwnedKind::Coordinator | OwnedKind::Servers, name) => {
            let (attempt, _) = name.rsplit_once('-').unwrap();
            assert_eq!(running(world, &format!("{attempt}-worker-")), Vec::<String>::new(), "{name}");
            deleted.push(key("apps", "statefulsets", name));
        }
        ObjectDeletion::Workload(OwnedKind::Service, name) => deleted.push(key("", "services", name)),
        ObjectDeletion::Attempts(scope, _) => {
            deleted.extend(["services", "configmaps"].into_iter().flat_map(|plural| in_scope(world, plural, *scope)));
            deleted.extend(in_scope(world, "persistentvolumeclaims", *scope));
        }
        ObjectDeletion::Claims => deleted.extend(in_scope(world, "persistentvolumeclaims", RemovalScope::All)),
        ObjectDeletion::Shared(shared) => {
            let resource = shared.api_resource();
            let place = key(&resource.group, &resource.plural, &shared.object_name("ctr"));
            deleted.extend(Some(place).filter(|place| world.api.store().get(place).is_ok()));
        }
    }
    for place in deleted {
        // Of a deleted job only the workers end in order.
        if place.plural == "services" && !is_deleted {
            let (attempt, _) = place.name.rsplit_once('-').unwrap();
            assert_eq!(running(world, &format!("{attempt}-")), Vec::<String>::new(), "{place:?}");
        }
        world.delete(&place);
    }
}

fn in_scope(world: &ClusterWorld, plural: &str, scope: RemovalScope) -> Vec<ObjectKey> {
    let found = world.api.store().list("", plural, Some(ADS), "zagros.dev/job=ctr,zagros.dev/attempt");
    let attempt = |object: &Value| object["metadata"]["labels"]["zagros.dev/attempt"].as_str()?.parse().ok();
    let found = found.iter().filter(|object| scope.includes(attempt(object)));
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    found
        .filter(|object| object["metadata"]["deletionTimestamp"].is_null())
        .map(|object| key("", plural, &name(object)))
        .collect()
}
