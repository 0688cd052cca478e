//! Prints the objects that the operator would make of a HybridJob, without a cluster.

use crate::build::{BuildPlan, BuildStage, build};
use crate::crd::HybridJob;
use crate::host_access::refuse_host_access;
use crate::names::RunAttempt;
use crate::observe::ObservedObjects;
use crate::validate::{JobText, validate_job};

/// Of the first attempt, as YAML documents. `config` is the text of the job file, if the HybridJob names a ConfigMap.
/// Fails with all problems, one a line.
pub fn render_objects(yaml: &str, config: Option<&str>, allows_host_access: bool) -> Result<String, String> {
    let mut owner: HybridJob = serde_saphyr::from_str(yaml).map_err(|error| format!("not a HybridJob: {error}"))?;
    owner.metadata.namespace.get_or_insert_with(|| "default".to_owned());
    let attempt = RunAttempt { number: 1, ..RunAttempt::recorded(&owner) };
    let Some(text) = owner.spec.job.inline.as_deref().or(config).map(str::to_owned) else {
        return Err("spec.job.configMap: give the text of the job file with --config FILE".to_owned());
    };
    let valid = validate_job(&owner, &JobText::OfSpec(text), &attempt);
    let valid = refuse_host_access(&owner.spec, allows_host_access, valid);
    let job = valid.map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))?;
    let run = ObservedObjects::default();
    let plan = BuildPlan { owner: &owner, job: &job, attempt: &attempt, run: &run, alive: None };
    let objects = build(&plan, BuildStage::Everything);
    let documents = objects.iter().map(|one| serde_saphyr::to_string(&one.object).map(|text| format!("---\n{text}")));
    documents.collect::<Result<String, _>>().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::hybrid_job;

    #[test]
    fn what_is_wrong_is_reported() {
        assert!(render_objects("kind: Pod", None, false).unwrap_err().starts_with("not a HybridJob"));
        let mut job = hybrid_job();
        job.spec.volumes.clear();
        let error = render_objects(&serde_saphyr::to_string(&job).unwrap(), None, false).unwrap_err();
        assert!(error.starts_with("spec.volumes: the job file reads /data/train.txt"), "{error}");
        job.spec.job = serde_json::from_value(serde_json::json!({"configMap": {"name": "c"}})).unwrap();
        assert!(render_objects(&serde_saphyr::to_string(&job).unwrap(), None, false).unwrap_err().contains("--config"));
    }
}
