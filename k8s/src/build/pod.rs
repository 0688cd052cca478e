//! The pod of a role: its program, its rights, its probes, its end.
//!
//! Its rights are those of the restricted Pod Security profile, unless the user gives others. The time between SIGTERM and SIGKILL
//! follows from what a role has to write before it ends, at the rate of a slow disk.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, PodSecurityContext, ResourceRequirements, SeccompProfile, SecurityContext, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Value, json};

use super::{BuildPlan, volumes};
use crate::crd::{EnvName, GangScheduler, SidecarSpec};
use crate::names::{ADMIN_PORT, JOB_FILE, JOURNAL_FOLDER, PodRole, SECRET_FILE, TERMINATION_MESSAGE};
use crate::validate::has_all_rights;

/// Label with the number of a StatefulSet's pod, since Kubernetes 1.28.
const SERVER_INDEX: &str = "metadata.labels['apps.kubernetes.io/pod-index']";
/// Annotation with the number of an indexed Job's pod.
const WORKER_INDEX: &str = "metadata.annotations['batch.kubernetes.io/job-completion-index']";

pub(super) fn template(plan: &BuildPlan<'_>, role: PodRole, restart: &str) -> Value {
    let settings = plan.job.pod_settings(role);
    let spec = &plan.job.spec;
    let mut labels = settings.labels.clone();
    labels.extend(plan.attempt.role_labels(role));
    let mut annotations = settings.annotations.clone();
    gang_marks(plan, role, &mut labels, &mut annotations);
    let secrets: Vec<Value> = spec.image_pull_secrets.iter().map(|name| json!({ "name": name })).collect();
    let affinity = settings.affinity.as_ref().map_or_else(|| anti_affinity(plan, role), |given| json!(given));
    let pod = json!({
        "containers": [container(plan, role)],
        "initContainers": sidecars(plan, role),
        "restartPolicy": restart,
        // Together with the Job's host names, this makes each worker's name resolve.
        "subdomain": plan.attempt.service_name(role),
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "serviceAccountName": spec.service_account_name,
        "imagePullSecrets": secrets,
        "securityContext": pod_rights(spec.pod_security_context.as_ref()),
        "terminationGracePeriodSeconds": grace_period(plan, role),
        "runtimeClassName": settings.runtime_class_name,
        "topologySpreadConstraints": spread(plan, role),
        "nodeSelector": settings.node_selector,
        "affinity": affinity,
        "tolerations": settings.tolerations,
        "priorityClassName": settings.priority_class_name,
        "schedulerName": scheduler(plan),
        "volumes": volumes::volumes(plan, role),
    });
    json!({ "metadata": { "labels": labels, "annotations": annotations }, "spec": pod })
}

/// A constraint without a selector applies to the pods of the role.
fn spread(plan: &BuildPlan<'_>, role: PodRole) -> Vec<TopologySpreadConstraint> {
    let ours = || LabelSelector { match_labels: Some(plan.attempt.role_labels(role)), ..LabelSelector::default() };
    let mut constraints = plan.job.pod_settings(role).topology_spread_constraints.clone();
    for constraint in &mut constraints {
        constraint.label_selector.get_or_insert_with(ours);
    }
    constraints
}

fn scheduler(plan: &BuildPlan<'_>) -> Option<String> {
    let scheduling = &plan.job.spec.scheduling;
    let volcano = scheduling.gang.as_ref().is_some_and(|gang| gang.scheduler == GangScheduler::Volcano);
    scheduling.scheduler_name.clone().or_else(|| volcano.then(|| "volcano".to_owned()))
}

fn gang_marks(
    plan: &BuildPlan<'_>,
    role: PodRole,
    labels: &mut BTreeMap<String, String>,
    annotations: &mut BTreeMap<String, String>,
) {
    let Some(gang) = &plan.job.spec.scheduling.gang else { return };
    let group = plan.attempt.pod_group_name();
    match gang.scheduler {
        GangScheduler::Volcano => {
            annotations.insert("scheduling.k8s.io/group-name".to_owned(), group);
            annotations.insert("volcano.sh/task-spec".to_owned(), role.short_name().to_owned());
        }
        GangScheduler::Coscheduling => {
            labels.insert("scheduling.x-k8s.io/pod-group".to_owned(), group);
        }
    }
}

/// Pods of a role prefer different nodes, because memory and network limit the run.
fn anti_affinity(plan: &BuildPlan<'_>, role: PodRole) -> Value {
    let selector = json!({ "matchLabels": plan.attempt.role_labels(role) });
    let term = json!({ "labelSelector": selector, "topologyKey": "kubernetes.io/hostname" });
    let preferred = json!([{ "weight": 100, "podAffinityTerm": term }]);
    json!({ "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": preferred } })
}

fn container(plan: &BuildPlan<'_>, role: PodRole) -> Value {
    let settings = plan.job.pod_settings(role);
    let spec = &plan.job.spec;
    let rights = settings.container_security_context.as_ref();
    let port = |name: &str, port: u16| json!({ "name": name, "containerPort": port, "protocol": "TCP" });
    let mounts: Vec<Value> = volumes::secret_mount(plan).into_iter().chain(volumes::mounts(plan, role)).collect();
    json!({
        "name": role.short_name(),
        "image": settings.image.as_ref().unwrap_or(&spec.image),
        "imagePullPolicy": spec.image_pull_policy,
        // Without a command: the image's entrypoint starts the program below an init process. The kernel gives a
        // process of number 1 no signal that it does not handle yet.
        "args": arguments(plan, role),
        "env": environment(plan, role),
        "envFrom": secrets(&settings.env_from),
        "ports": [port("data", role.data_port()), port("http", ADMIN_PORT)],
        "resources": resources(plan, role),
        "securityContext": container_rights(rights, spec.pod_security_context.as_ref()),
        // Ten minutes for an image's first start on a slow disk. After that the two other probes count.
        "startupProbe": probe("/healthz", 2, 300),
        "livenessProbe": probe("/healthz", 10, 6),
        "readinessProbe": probe("/readyz", 3, 2),
        // The last lines of the log are the error: what, where, why, next step.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    })
}

/// A sidecar is an init container that always restarts: a Job ends although its sidecar would not.
fn sidecars(plan: &BuildPlan<'_>, role: PodRole) -> Vec<Value> {
    let pod_security = plan.job.spec.pod_security_context.as_ref();
    let sidecar = |one: &SidecarSpec| {
        json!({
            "name": one.name,
            "image": one.image,
            "imagePullPolicy": one.image_pull_policy,
            "command": one.command,
            "args": one.args,
            "env": one.env,
            "envFrom": secrets(&one.env_from),
            "resources": one.resources,
            "securityContext": container_rights(one.security_context.as_ref(), pod_security),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": volumes::mounts(plan, role),
            "restartPolicy": "Always",
        })
    };
    plan.job.pod_settings(role).sidecars.iter().map(sidecar).collect()
}

fn secrets(sources: &[EnvName]) -> Vec<Value> {
    sources.iter().map(|source| json!({ "secretRef": { "name": source.secret_name } })).collect()
}

/// The exit code of a process that SIGTERM has ended.
const ASKED_TO_END: i32 = 143;

fn arguments(plan: &BuildPlan<'_>, role: PodRole) -> Vec<String> {
    let mut arguments = vec![role.command().to_owned(), "--config".to_owned(), JOB_FILE.to_owned()];
    let host = plan.attempt.service_host(role);
    match role {
        // The job file has the address at which others reach the coordinator; it listens on all addresses.
        PodRole::Coordinator => {
            let address = format!("cluster.coordinator=0.0.0.0:{}", role.data_port());
            let more = ["--set", &address, "--journal", JOURNAL_FOLDER, "--one-run"];
            arguments.extend(more.map(str::to_owned));
        }
        PodRole::Server | PodRole::Worker => {
            let advertised = format!("{}-$(POD_INDEX).{host}:{}", plan.attempt.workload_name(role), role.data_port());
            let more = ["--index", "$(POD_INDEX)", "--advertise", &advertised];
            arguments.extend(more.map(str::to_owned));
        }
    }
    // A pod that is asked to end is made again, of a worker under its index: one that has ended with 0 never gets
    // another pod.
    let comes_back = match role {
        PodRole::Coordinator | PodRole::Server => plan.job.is_durable(),
        PodRole::Worker => {
            plan.replaces_workers() && plan.job.spec.run_policy.exit_codes.retryable.contains(&ASKED_TO_END)
        }
    };
    if comes_back {
        arguments.extend(["--on-stop", "restart"].map(str::to_owned));
    }
    arguments.push("--log-json".to_owned());
    arguments
}

fn environment(plan: &BuildPlan<'_>, role: PodRole) -> Vec<Value> {
    let field = |path: &str| {
        let place = json!({ "fieldPath": path, "apiVersion": "v1" });
        json!({ "name": "POD_INDEX", "valueFrom": { "fieldRef": place } })
    };
    let index = match role {
        PodRole::Coordinator => None,
        PodRole::Server => Some(field(SERVER_INDEX)),
        PodRole::Worker => Some(field(WORKER_INDEX)),
    };
    let constant = |name: &str, value: &str| json!({ "name": name, "value": value });
    let secret = plan.job.asks_for_proof().then(|| constant("ZAGROS_RUN_SECRET_FILE", SECRET_FILE));
    let report = (role == PodRole::Coordinator).then(|| constant("ZAGROS_END_REPORT", TERMINATION_MESSAGE));
    let given = plan.job.pod_settings(role).env.iter().map(|one| json!(one));
    index.into_iter().chain(secret).chain(report).chain(given).collect()
}

/// The user's resources, and for the rest a default of the role. A server's memory follows from `cluster.memory`.
fn resources(plan: &BuildPlan<'_>, role: PodRole) -> ResourceRequirements {
    let memory = match role {
        PodRole::Coordinator => "512Mi".to_owned(),
        PodRole::Server => plan.job.default_server_memory(),
        PodRole::Worker => "4Gi".to_owned(),
    };
    let cpu = if role == PodRole::Coordinator { ("100m", "1") } else { ("2", "2") };
    let given = plan.job.pod_settings(role).resources.clone().unwrap_or_default();
    let (requested, limited) = (given.requests.unwrap_or_default(), given.limits.unwrap_or_default());
    let defaults = [("cpu", cpu.0, cpu.1), ("memory", memory.as_str(), memory.as_str())];
    let (mut requests, mut limits) = (requested.clone(), limited.clone());
    for (name, request, limit) in defaults {
        // A default request is never above the user's limit, and a default limit never below the user's request.
        let other = |given: &BTreeMap<String, Quantity>, default: &str| {
            given.get(name).cloned().unwrap_or_else(|| Quantity(default.to_owned()))
        };
        requests.entry(name.to_owned()).or_insert_with(|| other(&limited, request));
        limits.entry(name.to_owned()).or_insert_with(|| other(&requested, limit));
    }
    ResourceRequirements { limits: Some(limits), requests: Some(requests), claims: given.claims }
}

/// Asks the role itself: a process that hangs still accepts connections.
fn probe(path: &str, period: i32, failures: i32) -> Value {
    let request = json!({ "path": path, "port": "http" });
    json!({ "httpGet": request, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures })
}

/// Seconds that a role may take to end, besides what it waits for and writes.
const SECONDS: i64 = 60;
/// Bytes per second of a slow disk or a distant store.
const SLOW: u64 = 20 << 20;
/// Both a checkpoint and a model may have to be written.
const TIMES: u64 = 2;

fn grace_period(plan: &BuildPlan<'_>, role: PodRole) -> i64 {
    let given = plan.job.pod_settings(role).termination_grace_period_seconds;
    given.unwrap_or_else(|| match role {
        PodRole::Worker => saving(plan),
        // It leaves everything to the next process, on its disk: every acknowledged push is in its log already.
        PodRole::Coordinator | PodRole::Server if plan.job.is_durable() => SECONDS,
        // They serve until the workers have saved. One that is killed before costs the work since the previous
        // checkpoint.
        PodRole::Coordinator | PodRole::Server => saving(plan).saturating_add(SECONDS),
    })
}

/// A last checkpoint and a model. The servers write side by side, each its own rows.
fn saving(plan: &BuildPlan<'_>) -> i64 {
    let writing = plan.job.saved_rows().saturating_mul(TIMES).div_ceil(SLOW);
    let answer = plan.job.job.cluster.timeout.as_secs();
    i64::try_from(answer.saturating_add(writing)).unwrap_or(i64::MAX).saturating_add(SECONDS)
}

/// A user that is neither root nor a user of the node.
const USER: i64 = 65532;

/// Security of a pod. The user may say who the pod runs as. The rest of the profile stays.
fn pod_rights(given: Option<&PodSecurityContext>) -> PodSecurityContext {
    let ours = || PodSecurityContext {
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        fs_group: Some(USER),
        ..PodSecurityContext::default()
    };
    let who = given.cloned().unwrap_or_else(ours);
    let profile = || SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None };
    PodSecurityContext {
        run_as_non_root: who.run_as_non_root.or(Some(true)),
        // The group that reads the run's secret.
        fs_group: who.fs_group.or(who.run_as_group),
        seccomp_profile: who.seccomp_profile.clone().or_else(|| Some(profile())),
        fs_group_change_policy: who.fs_group_change_policy.clone().or_else(|| Some("OnRootMismatch".to_owned())),
        ..who
    }
}

fn container_rights(given: Option<&SecurityContext>, pod: Option<&PodSecurityContext>) -> SecurityContext {
    let given = given.cloned().unwrap_or_default();
    let none = || Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None };
    let capabilities = given
        .capabilities
        .clone()
        .map_or_else(none, |one| Capabilities { drop: one.drop.or_else(|| none().drop), add: one.add });
    // Kubernetes refuses a container that has all rights and may not gain any.
    let has_all = has_all_rights(&given);
    SecurityContext {
        allow_privilege_escalation: given.allow_privilege_escalation.or(Some(has_all)),
        run_as_non_root: given.run_as_non_root.or_else(|| pod?.run_as_non_root).or(Some(true)),
        read_only_root_filesystem: given.read_only_root_filesystem.or(Some(true)),
        capabilities: Some(capabilities),
        ..given
    }
}
