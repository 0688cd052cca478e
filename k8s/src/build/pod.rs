//! The pod of a role: what it runs, what it may, how it is asked whether it lives.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, EnvFromSource,
    EnvVar, EnvVarSource, HTTPGetAction, KeyToPath, LocalObjectReference, ObjectFieldSelector,
    PersistentVolumeClaimVolumeSource, PodAffinityTerm, PodAntiAffinity, PodSecurityContext, PodSpec, PodTemplateSpec,
    Probe, ResourceRequirements, SeccompProfile, SecretEnvSource, SecretVolumeSource, SecurityContext, Volume,
    VolumeMount, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::ObjectMeta;

use super::{JOB_FILE, JOB_KEY, OUTPUT_PATH, Plan, STATE_PATH};
use crate::crd::{GangScheduler, PodSettings};
use crate::names::{ADMIN_PORT, Role};

/// Name of the volume that a server keeps rows on.
pub(super) const STATE: &str = "state";
/// Neither root nor anyone of the node.
const USER: i64 = 65532;
/// Label that a StatefulSet's pod has its number in, since Kubernetes 1.28.
const SERVER_INDEX: &str = "metadata.labels['apps.kubernetes.io/pod-index']";
/// Annotation that an indexed Job's pod has its number in.
const WORKER_INDEX: &str = "metadata.annotations['batch.kubernetes.io/job-completion-index']";

/// The template of a role's pods.
pub(super) fn template(plan: &Plan<'_>, role: Role, restart: &str) -> PodTemplateSpec {
    let settings = plan.job.pod(role);
    let spec = &plan.job.spec;
    let mut labels = settings.labels.clone();
    labels.extend(plan.attempt.role_labels(role));
    let mut annotations = settings.annotations.clone();
    gang_marks(plan, role, &mut labels, &mut annotations);
    let secrets = spec.image_pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() });
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels),
            annotations: (!annotations.is_empty()).then_some(annotations),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            containers: vec![container(plan, role)],
            restart_policy: Some(restart.to_owned()),
            // With the Job's index as host name, this makes each worker's name resolve.
            subdomain: Some(plan.attempt.name(role)),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            service_account_name: spec.service_account_name.clone(),
            image_pull_secrets: Some(secrets.collect::<Vec<_>>()).filter(|secrets| !secrets.is_empty()),
            security_context: Some(pod_security()),
            termination_grace_period_seconds: Some(settings.termination_grace_period_seconds),
            node_selector: Some(settings.node_selector.clone()).filter(|labels| !labels.is_empty()),
            affinity: settings.affinity.clone().or_else(|| Some(apart(plan, role))),
            tolerations: Some(settings.tolerations.clone()).filter(|tolerations| !tolerations.is_empty()),
            priority_class_name: settings.priority_class_name.clone(),
            scheduler_name: scheduler(plan),
            volumes: Some(volumes(plan, role)),
            ..PodSpec::default()
        }),
    }
}

fn scheduler(plan: &Plan<'_>) -> Option<String> {
    let scheduling = &plan.job.spec.scheduling;
    let volcano = scheduling.gang.as_ref().is_some_and(|gang| gang.scheduler == GangScheduler::Volcano);
    scheduling.scheduler_name.clone().or_else(|| volcano.then(|| "volcano".to_owned()))
}

/// How a pod says which group it belongs to.
fn gang_marks(
    plan: &Plan<'_>,
    role: Role,
    labels: &mut BTreeMap<String, String>,
    annotations: &mut BTreeMap<String, String>,
) {
    let Some(gang) = &plan.job.spec.scheduling.gang else { return };
    let group = plan.attempt.gang();
    match gang.scheduler {
        GangScheduler::Volcano => {
            annotations.insert("scheduling.k8s.io/group-name".to_owned(), group);
            annotations.insert("volcano.sh/task-spec".to_owned(), role.word().to_owned());
        }
        GangScheduler::Coscheduling => {
            labels.insert("scheduling.x-k8s.io/pod-group".to_owned(), group);
        }
    }
}

/// Pods of a role rather on different nodes: their memory and network are what the run lives of.
fn apart(plan: &Plan<'_>, role: Role) -> Affinity {
    let labels = plan.attempt.role_labels(role);
    let term = PodAffinityTerm {
        label_selector: Some(LabelSelector { match_labels: Some(labels), ..LabelSelector::default() }),
        topology_key: "kubernetes.io/hostname".to_owned(),
        ..PodAffinityTerm::default()
    };
    let preferred = vec![WeightedPodAffinityTerm { weight: 100, pod_affinity_term: term }];
    Affinity {
        pod_anti_affinity: Some(PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(preferred),
            ..PodAntiAffinity::default()
        }),
        ..Affinity::default()
    }
}

fn container(plan: &Plan<'_>, role: Role) -> Container {
    let settings = plan.job.pod(role);
    let spec = &plan.job.spec;
    let port = |name: &str, port: u16| ContainerPort {
        name: Some(name.to_owned()),
        container_port: i32::from(port),
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    };
    let secrets = settings.env_from.iter().map(|source| EnvFromSource {
        secret_ref: Some(SecretEnvSource { name: source.secret_name.clone(), optional: None }),
        ..EnvFromSource::default()
    });
    Container {
        name: role.word().to_owned(),
        image: Some(settings.image.as_ref().unwrap_or(&spec.image).clone()),
        image_pull_policy: spec.image_pull_policy.map(|policy| policy.as_str().to_owned()),
        // The program of another image may have another name.
        command: settings.image.is_none().then(|| vec!["zagros".to_owned()]),
        args: Some(arguments(plan, role)),
        env: Some(environment(settings, role)),
        env_from: Some(secrets.collect::<Vec<_>>()).filter(|secrets| !secrets.is_empty()),
        ports: Some(vec![port("data", role.port()), port("http", ADMIN_PORT)]),
        resources: Some(resources(plan, role)),
        security_context: Some(container_security()),
        // Ten minutes for an image's first start on a slow disk; after that the two others count.
        startup_probe: Some(probe("/healthz", 2, 300)),
        liveness_probe: Some(probe("/healthz", 10, 6)),
        readiness_probe: Some(probe("/readyz", 3, 2)),
        // The last lines of the log are the error: what, where, why, next step.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        volume_mounts: Some(mounts(plan)),
        ..Container::default()
    }
}

fn arguments(plan: &Plan<'_>, role: Role) -> Vec<String> {
    let mut arguments = vec![role.command().to_owned(), "--config".to_owned(), JOB_FILE.to_owned()];
    let host = plan.attempt.host(role);
    match role {
        // The file has the address that the others reach it at.
        Role::Coordinator => {
            arguments.extend(["--set".to_owned(), format!("cluster.coordinator=0.0.0.0:{}", role.port())]);
        }
        Role::Server | Role::Worker => {
            let advertised = format!("{}-$(POD_INDEX).{host}:{}", plan.attempt.name(role), role.port());
            let more = ["--index", "$(POD_INDEX)", "--advertise", &advertised];
            arguments.extend(more.map(str::to_owned));
        }
    }
    arguments.push("--log-json".to_owned());
    arguments
}

fn environment(settings: &PodSettings, role: Role) -> Vec<EnvVar> {
    let field = |path: &str| EnvVar {
        name: "POD_INDEX".to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector { field_path: path.to_owned(), api_version: Some("v1".to_owned()) }),
            ..EnvVarSource::default()
        }),
        value: None,
    };
    let index = match role {
        Role::Coordinator => None,
        Role::Server => Some(field(SERVER_INDEX)),
        Role::Worker => Some(field(WORKER_INDEX)),
    };
    index.into_iter().chain(settings.env.iter().cloned()).collect()
}

/// What the user gave; for the rest a default of the role. A server's memory follows from `cluster.memory`.
fn resources(plan: &Plan<'_>, role: Role) -> ResourceRequirements {
    let memory = match (role, plan.job.job.cluster.memory) {
        (Role::Coordinator, _) => "512Mi".to_owned(),
        // An eighth for the store that rows leave for, an eighth for requests, and the process itself.
        (Role::Server, Some(bytes)) => format!("{}Mi", (bytes + bytes / 4).div_ceil(1 << 20) + 512),
        (Role::Server | Role::Worker, _) => "4Gi".to_owned(),
    };
    let cpu = if role == Role::Coordinator { ("100m", "1") } else { ("2", "2") };
    let given = plan.job.pod(role).resources.clone().unwrap_or_default();
    let (requested, limited) = (given.requests.unwrap_or_default(), given.limits.unwrap_or_default());
    let defaults = [("cpu", cpu.0, cpu.1), ("memory", memory.as_str(), memory.as_str())];
    let (mut requests, mut limits) = (requested.clone(), limited.clone());
    for (name, request, limit) in defaults {
        // A default never stands above or below what the user gave for the other of the two.
        let other = |given: &BTreeMap<String, Quantity>, default: &str| {
            given.get(name).cloned().unwrap_or_else(|| Quantity(default.to_owned()))
        };
        requests.entry(name.to_owned()).or_insert_with(|| other(&limited, request));
        limits.entry(name.to_owned()).or_insert_with(|| other(&requested, limit));
    }
    ResourceRequirements { limits: Some(limits), requests: Some(requests), claims: given.claims }
}

/// As the restricted profile of Pod Security has it.
fn pod_security() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        fs_group: Some(USER),
        fs_group_change_policy: Some("OnRootMismatch".to_owned()),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
        ..PodSecurityContext::default()
    }
}

fn container_security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
        ..SecurityContext::default()
    }
}

/// Asks the role itself: a process that hangs still accepts connections.
fn probe(path: &str, period: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String("http".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        timeout_seconds: Some(5),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

fn mounts(plan: &Plan<'_>) -> Vec<VolumeMount> {
    let mount = |name: &str, path: &str, read_only: bool| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(read_only),
        ..VolumeMount::default()
    };
    let spec = &plan.job.spec;
    let mut output = mount("output", OUTPUT_PATH, false);
    output.sub_path = spec.output.as_ref().and_then(|output| output.sub_path.clone());
    let mut mounts = vec![mount("job", "/etc/zagros", true), mount("tmp", "/tmp", false)];
    mounts.extend([output, mount(STATE, STATE_PATH, false)]);
    for (index, volume) in spec.volumes.iter().enumerate() {
        let mut data = mount(&format!("volume-{index}"), &volume.mount_path, volume.read_only);
        data.sub_path.clone_from(&volume.sub_path);
        mounts.push(data);
    }
    mounts
}

fn volumes(plan: &Plan<'_>, role: Role) -> Vec<Volume> {
    let spec = &plan.job.spec;
    let named = |name: &str| Volume { name: name.to_owned(), ..Volume::default() };
    let empty = |name: &str| Volume { empty_dir: Some(EmptyDirVolumeSource::default()), ..named(name) };
    let claim = |name: &str, read_only| PersistentVolumeClaimVolumeSource {
        claim_name: name.to_owned(),
        read_only: Some(read_only),
    };
    let job = ConfigMapVolumeSource {
        name: plan.attempt.config(),
        items: Some(vec![KeyToPath { key: JOB_KEY.to_owned(), path: JOB_KEY.to_owned(), mode: None }]),
        ..ConfigMapVolumeSource::default()
    };
    let output = spec.output.as_ref().map_or_else(
        || empty("output"),
        |output| Volume { persistent_volume_claim: Some(claim(&output.claim_name, false)), ..named("output") },
    );
    let mut volumes = vec![Volume { config_map: Some(job), ..named("job") }, empty("tmp"), output];
    // A claim template makes the servers' volume of that name.
    if role != Role::Server || spec.embedding_servers.storage.is_none() {
        volumes.push(empty(STATE));
    }
    for (index, volume) in spec.volumes.iter().enumerate() {
        let source = &volume.source;
        let mut data = named(&format!("volume-{index}"));
        data.persistent_volume_claim = source.claim_name.as_ref().map(|name| claim(name, volume.read_only));
        data.config_map = (source.config_map_name.clone())
            .map(|name| ConfigMapVolumeSource { name, ..ConfigMapVolumeSource::default() });
        data.secret = (source.secret_name.clone())
            .map(|name| SecretVolumeSource { secret_name: Some(name), ..SecretVolumeSource::default() });
        volumes.push(data);
    }
    volumes
}
