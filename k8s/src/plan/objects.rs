//! The objects of a run as a plan makes them: those that are not there, were changed by others, or are due to be applied again.

use kube::{Resource, ResourceExt};
use serde_json::Value;

use super::Planner;
use crate::build::{BuildPlan, BuildStage, ObjectManifest, SharedObject, build};
use crate::cache::JobObjects;
use crate::names::{TEMPLATE_ANNOTATION, is_held};
use crate::observe::{ObservedObjects, RemovalScope};
use crate::step::{EventNote, NO_CONTENT, ObjectDeletion, PlanStep, SECRET_TITLE};

impl Planner<'_> {
    /// Makes the objects of the attempt up to a stage, and removes those of other attempts.
    pub(super) fn apply_objects(&mut self, stage: BuildStage) {
        let Some(valid) = self.valid.take() else { return };
        if !is_held(self.job) {
            self.work.push(PlanStep::Hold(true));
        }
        self.take_steps(self.removal(RemovalScope::Others(self.attempt.number)));
        let (job, seen, attempt) = (self.job, self.seen, self.attempt.clone());
        let alive = seen.report.as_ref().map(|report| report.servers);
        let plan = BuildPlan { owner: job, job: &valid, attempt: &attempt, run: &seen.run, alive };
        let unwanted = SharedObject::ALL.into_iter().filter(|shared| !shared.is_wanted(&plan));
        unwanted.for_each(|shared| self.delete_once(ObjectDeletion::Shared(shared)));
        let is_known = |title: &str| seen.requests.applied_generation(title, NO_CONTENT, seen.now).is_some();
        if valid.asks_for_proof() && !is_known(SECRET_TITLE) {
            self.work.push(PlanStep::MakeSecret);
        }
        // Objects that pods mount or are found by come before the objects that make pods.
        let makes_pods = |one: &ObjectManifest| ["Job", "StatefulSet"].contains(&one.resource.kind.as_str());
        let due: Vec<_> = build(&plan, stage).into_iter().filter(|manifest| self.is_due(manifest)).collect();
        if valid.is_durable() && due.iter().any(|manifest| updates_servers(manifest, &seen.run)) {
            let note =
                "the pods of the embedding servers changed: they restart one after another, and the run waits for each";
            self.event = Some(EventNote::normal_note("ServersUpdate", note));
        }
        let (workloads, others): (Vec<_>, Vec<_>) = due.into_iter().partition(makes_pods);
        let groups = [others, workloads].into_iter().filter(|group| !group.is_empty());
        self.work.extend(groups.map(PlanStep::Apply));
        self.valid = Some(valid);
    }

    fn is_due(&self, manifest: &ObjectManifest) -> bool {
        let known = self.seen.requests.applied_generation(&manifest.title(), manifest.content_hash(), self.seen.now);
        known.is_none_or(|generation| has_drifted(manifest, generation, &self.seen.objects))
    }
}

/// Whether the servers of the run have another template of their pods. Those with a log come back with their rows.
fn updates_servers(manifest: &ObjectManifest, run: &ObservedObjects) -> bool {
    let known = run.servers.as_ref().and_then(|set| set.template.as_ref());
    let template = manifest.object.annotations().get(TEMPLATE_ANNOTATION);
    known.is_some() && template.is_some_and(|template| known != Some(template))
}

/// Whether a watched object is gone, or was changed after the operator applied it.
fn has_drifted(manifest: &ObjectManifest, applied: Option<i64>, objects: &JobObjects) -> bool {
    let name = manifest.object.name_any();
    fn find<K: Resource<DynamicType = ()>>(objects: &[std::sync::Arc<K>], name: &str) -> Option<Option<i64>> {
        objects.iter().find(|one| one.name_any() == name).map(|one| one.meta().generation)
    }
    let seen = match manifest.resource.kind.as_str() {
        "Job" => find(&objects.jobs, &name),
        "StatefulSet" => find(&objects.sets, &name),
        // Kubernetes counts no generations of a Service.
        "Service" => {
            let seen = objects.services.iter().find(|one| one.name_any() == name);
            let seen = seen.and_then(|seen| serde_json::to_value(seen.as_ref()).ok());
            return seen.is_none_or(|seen| !has_fields(&seen, &manifest.object.data));
        }
        _ => return false,
    };
    match (seen, applied) {
        (None, _) => true,
        (Some(Some(seen)), Some(applied)) => seen > applied,
        _ => false,
    }
}

/// Whether an object has the fields that were applied. Kubernetes adds others.
fn has_fields(seen: &Value, applied: &Value) -> bool {
    match (seen, applied) {
        (Value::Object(seen), Value::Object(applied)) => {
            applied.iter().all(|(name, field)| seen.get(name).is_some_and(|seen| has_fields(seen, field)))
        }
        (Value::Array(seen), Value::Array(applied)) => {
            let mut items = applied.iter().enumerate();
            seen.len() == applied.len() && items.all(|(index, item)| has_fields(&seen[index], item))
        }
        (seen, applied) => seen == applied,
    }
}
