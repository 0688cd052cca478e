//! Commands for a person: whether an operator could work here, with its own rights, and which objects it would make of a HybridJob.
//! They change nothing.

use std::time::Duration;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::{Api, ListParams, PostParams};

use crate::build::{BuildPlan, BuildStage, build};
use crate::cache::scoped_api;
use crate::crd::HybridJob;
use crate::error::Error;
use crate::names::{MANAGER, RunAttempt};
use crate::observe::ObservedObjects;
use crate::validate::{JobText, refuse_host_access, validate_job};

const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
pub struct RequiredRight {
    pub group: &'static str,
    /// Plural, with its subresource: `hybridjobs/status`.
    pub resource: &'static str,
    pub verbs: &'static [&'static str],
}

const fn right(group: &'static str, resource: &'static str, verbs: &'static [&'static str]) -> RequiredRight {
    RequiredRight { group, resource, verbs }
}

/// The rights in each namespace of jobs. The roles of the manifests give these, and rights on kinds of other operators.
pub const RIGHTS: [RequiredRight; 15] = [
    right("zagros.dev", "hybridjobs", &["get", "list", "watch", "patch", "delete"]),
    right("zagros.dev", "hybridjobs/status", &["update", "patch"]),
    right("zagros.dev", "hybridjobs/finalizers", &["update"]),
    right("batch", "jobs", &["get", "list", "watch", "create", "patch", "deletecollection"]),
    right("apps", "statefulsets", &["get", "list", "watch", "create", "patch", "deletecollection"]),
    right("", "pods", &["get", "list", "watch", "delete"]),
    right("", "pods/status", &["patch"]),
    right("", "namespaces", &["get"]),
    right("", "configmaps", &["get", "create", "patch", "deletecollection"]),
    right("", "secrets", &["get", "create"]),
    right("", "persistentvolumeclaims", &["deletecollection"]),
    right("", "services", &["get", "list", "watch", "create", "patch", "deletecollection"]),
    right("networking.k8s.io", "networkpolicies", &["get", "create", "patch", "deletecollection"]),
    right("policy", "poddisruptionbudgets", &["get", "create", "patch", "deletecollection"]),
    right("events.k8s.io", "events", &["create", "patch"]),
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckFindings {
    pub good: Vec<String>,
    pub problems: Vec<String>,
}

/// `namespace`: `None` for all. Also checks the definition, and who leads by the lease in `lease_namespace`.
pub async fn check_cluster(
    client: &Client,
    namespace: Option<&str>,
    lease_namespace: Option<&str>,
) -> Result<CheckFindings, Error> {
    let mut findings = CheckFindings::default();
    rights(client, namespace, &mut findings).await?;
    definition(client, namespace, &mut findings).await;
    if let Some(place) = lease_namespace {
        leader(client, place, &mut findings).await;
    }
    Ok(findings)
}

async fn in_time<T>(what: &str, request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
    let answer = tokio::time::timeout(TIMEOUT, request).await;
    let late = |_| Error::Unanswered { what: what.to_owned(), seconds: TIMEOUT.as_secs() };
    answer.map_err(late)?.map_err(Error::failed_to(what))
}

async fn rights(client: &Client, namespace: Option<&str>, findings: &mut CheckFindings) -> Result<(), Error> {
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let place = namespace.map_or_else(|| "all namespaces".to_owned(), |name| format!("namespace {name}"));
    let mut granted = 0;
    for right in RIGHTS {
        for verb in right.verbs {
            let review = review(right, verb, namespace);
            let answered = in_time("ask for rights", api.create(&PostParams::default(), &review)).await?;
            if answered.status.is_some_and(|status| status.allowed) {
                granted += 1;
                continue;
            }
            let group = if right.group.is_empty() { String::new() } else { format!(" of {}", right.group) };
            findings.problems.push(format!(
                "the operator cannot {verb} {}{group} in {place}: give its service account this right \
                 (k8s/manifests/rbac.yaml)",
                right.resource
            ));
        }
    }
    findings.good.push(format!("{granted} rights in {place}"));
    Ok(())
}

fn review(right: RequiredRight, verb: &str, namespace: Option<&str>) -> SelfSubjectAccessReview {
    let (resource, subresource) = right.resource.split_once('/').unwrap_or((right.resource, ""));
    let attributes = ResourceAttributes {
        group: Some(right.group.to_owned()),
        resource: Some(resource.to_owned()),
        subresource: (!subresource.is_empty()).then(|| subresource.to_owned()),
        verb: Some(verb.to_owned()),
        namespace: namespace.map(str::to_owned),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), non_resource_attributes: None };
    SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() }
}

async fn definition(client: &Client, namespace: Option<&str>, findings: &mut CheckFindings) {
    let jobs: Api<HybridJob> = scoped_api(client, namespace);
    match in_time("list HybridJobs", jobs.list_metadata(&ListParams::default().limit(1))).await {
        Ok(_) => findings.good.push("the definition of a HybridJob is installed".to_owned()),
        Err(error) if error.is_missing() => findings.problems.push(
            "Kubernetes knows no HybridJob: kubectl apply --server-side -f k8s/crd/hybridjobs.yaml installs it"
                .to_owned(),
        ),
        Err(error) => findings.problems.push(error.to_string()),
    }
}

async fn leader(client: &Client, place: &str, findings: &mut CheckFindings) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), place);
    let lease = in_time("read the lease", leases.get_opt(MANAGER)).await;
    let holder = lease.map(|lease| lease.and_then(|lease| lease.spec?.holder_identity));
    match holder.map(|holder| holder.filter(|holder| !holder.is_empty())) {
        Err(error) => findings.problems.push(error.to_string()),
        Ok(Some(holder)) => findings.good.push(format!("{holder} leads")),
        Ok(None) => findings.problems.push(format!(
            "no operator leads by the lease {MANAGER} of namespace {place}: does an operator run there? \
             kubectl -n {place} get pods"
        )),
    }
}

/// The objects of the first attempt, as YAML documents. `config` is the text of the job file, if the HybridJob names a ConfigMap.
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
