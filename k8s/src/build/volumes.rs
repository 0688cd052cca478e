//! Volumes and mounts of a pod's containers. The disk of a coordinator or an embedding server: whether there is one, and how large.

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, EmptyDirVolumeSource, EphemeralVolumeSource, KeyToPath, PersistentVolumeClaim,
    PersistentVolumeClaimSpec, PersistentVolumeClaimTemplate, PersistentVolumeClaimVolumeSource, SecretVolumeSource,
    Volume, VolumeMount, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Resource;
use kube::api::ObjectMeta;

use super::{BuildPlan, JOB_KEY};
use crate::crd::{ClaimTemplate, EmptyDir, EphemeralClaim, FolderMedium, HybridJobSpec, MountedVolume};
use crate::names::{
    JOB_FOLDER, OUTPUT_PATH, PodRole, RETAIN_LABEL, SECRET_FOLDER, SHARED_MEMORY_PATH, STATE_PATH, secret_name,
};

const OUTPUT: &str = "output";
const SHARED_MEMORY: &str = "shared-memory";

const RUN_SECRET: &str = "run-secret";
/// The owner and the group of the pod read the key. A role refuses a key that others may read.
const SECRET_MODE: i32 = 0o440;

/// Where the key of the role is mounted, for the role's own container and for no sidecar.
pub(super) fn secret_mount(plan: &BuildPlan<'_>) -> Option<VolumeMount> {
    plan.job.asks_for_proof().then(|| VolumeMount {
        name: RUN_SECRET.to_owned(),
        mount_path: SECRET_FOLDER.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    })
}

/// The key of the role, and no other role's.
fn secret(plan: &BuildPlan<'_>, role: PodRole) -> Volume {
    let item = KeyToPath { key: role.short_name().to_owned(), path: "key".to_owned(), mode: None };
    let source = SecretVolumeSource {
        secret_name: Some(secret_name(plan.owner)),
        items: Some(vec![item]),
        default_mode: Some(SECRET_MODE),
        optional: None,
    };
    Volume { secret: Some(source), ..named(RUN_SECRET) }
}

pub(super) fn mounts(plan: &BuildPlan<'_>, role: PodRole) -> Vec<VolumeMount> {
    let mount = |name: &str, path: &str, read_only: bool| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(read_only),
        ..VolumeMount::default()
    };
    let spec = &plan.job.spec;
    let mut output = mount(OUTPUT, OUTPUT_PATH, false);
    output.sub_path = spec.output.as_ref().and_then(|output| output.sub_path.clone());
    let mut mounts = vec![mount("job", JOB_FOLDER, true), mount("tmp", "/tmp", false)];
    mounts.extend([output, mount(STATE, STATE_PATH, false)]);
    if plan.job.pod_settings(role).shared_memory.is_some() {
        mounts.push(mount(SHARED_MEMORY, SHARED_MEMORY_PATH, false));
    }
    for (index, volume) in spec.volumes.iter().enumerate() {
        let mut data = mount(&user_volume(spec, index), &volume.mount_path, volume.read_only);
        data.sub_path.clone_from(&volume.sub_path);
        mounts.push(data);
    }
    mounts
}

pub(super) fn volumes(plan: &BuildPlan<'_>, role: PodRole) -> Vec<Volume> {
    let spec = &plan.job.spec;
    let job = ConfigMapVolumeSource {
        name: plan.attempt.config_name(),
        items: Some(vec![KeyToPath { key: JOB_KEY.to_owned(), path: JOB_KEY.to_owned(), mode: None }]),
        ..ConfigMapVolumeSource::default()
    };
    let output = spec.output.as_ref().map_or_else(
        || empty(OUTPUT),
        |output| Volume { persistent_volume_claim: Some(claim(&output.claim_name)), ..named(OUTPUT) },
    );
    let mut volumes = vec![Volume { config_map: Some(job), ..named("job") }, empty("tmp"), output];
    if plan.job.asks_for_proof() {
        volumes.push(secret(plan, role));
    }
    // A claim template makes a volume of this name for each pod.
    if state_claim(plan, role).is_none() {
        volumes.push(empty(STATE));
    }
    if let Some(size) = &plan.job.pod_settings(role).shared_memory {
        let memory = EmptyDir { medium: Some(FolderMedium::Memory), size_limit: Some(size.clone()) };
        volumes.push(Volume { empty_dir: Some(empty_dir(&memory)), ..named(SHARED_MEMORY) });
    }
    for (index, volume) in spec.volumes.iter().enumerate() {
        let name = user_volume(spec, index);
        if volumes.iter().all(|one| one.name != name) {
            volumes.push(mounted(&name, volume));
        }
    }
    volumes
}

/// A claim is one volume of the pod, wherever it is mounted: a second one would get the rights of the first.
fn user_volume(spec: &HybridJobSpec, index: usize) -> String {
    let claim = |index: usize| spec.volumes.get(index).and_then(|volume| volume.source.claim_name.as_ref());
    let Some(name) = claim(index) else { return format!("volume-{index}") };
    if spec.output.as_ref().is_some_and(|output| output.claim_name == *name) {
        return OUTPUT.to_owned();
    }
    let first = (0..index).find(|earlier| claim(*earlier) == Some(name));
    format!("volume-{}", first.unwrap_or(index))
}

/// A volume that the user gives. Only its mounts are read-only: the others of the same claim may be written.
fn mounted(name: &str, volume: &MountedVolume) -> Volume {
    let source = &volume.source;
    Volume {
        persistent_volume_claim: source.claim_name.as_ref().map(|name| claim(name)),
        config_map: (source.config_map_name.clone())
            .map(|name| ConfigMapVolumeSource { name, ..ConfigMapVolumeSource::default() }),
        secret: (source.secret_name.clone())
            .map(|name| SecretVolumeSource { secret_name: Some(name), ..SecretVolumeSource::default() }),
        empty_dir: source.empty_dir.as_ref().map(empty_dir),
        ephemeral: source.ephemeral.as_ref().map(ephemeral),
        host_path: source.host_path.clone(),
        nfs: source.nfs.clone(),
        csi: source.csi.clone(),
        ..named(name)
    }
}

fn named(name: &str) -> Volume {
    Volume { name: name.to_owned(), ..Volume::default() }
}

fn empty(name: &str) -> Volume {
    Volume { empty_dir: Some(EmptyDirVolumeSource::default()), ..named(name) }
}

fn empty_dir(given: &EmptyDir) -> EmptyDirVolumeSource {
    let medium = given.medium.map(|FolderMedium::Memory| "Memory".to_owned());
    EmptyDirVolumeSource { medium, size_limit: given.size_limit.clone() }
}

fn claim(name: &str) -> PersistentVolumeClaimVolumeSource {
    PersistentVolumeClaimVolumeSource { claim_name: name.to_owned(), read_only: None }
}

fn ephemeral(given: &EphemeralClaim) -> EphemeralVolumeSource {
    let spec = disk(&given.size, given.storage_class_name.as_ref());
    EphemeralVolumeSource { volume_claim_template: Some(PersistentVolumeClaimTemplate { spec, metadata: None }) }
}

/// Name of the volume for what the next process in the pod needs: log, rows beyond memory, journal.
const STATE: &str = "state";
const GIB: u64 = 1 << 30;
/// Size of the coordinator's disk: a snapshot of its state, and some MiB of inputs.
const JOURNAL: u64 = GIB;
/// The tail of a log is at least so long before a new base is written.
const SHORTEST_TAIL: u64 = 256 << 20;

pub(super) fn state_claim(plan: &BuildPlan<'_>, role: PodRole) -> Option<PersistentVolumeClaim> {
    let given = given(plan, role);
    let is_needed = given.is_some() || (plan.job.is_durable() && role != PodRole::Worker);
    let storage = is_needed.then(|| given.cloned().unwrap_or_default())?;
    // The owner takes the claim along. Kubernetes' own policy does not (`workloads::kept`).
    let owner = plan.owner.owner_ref(&()).filter(|_| !storage.retain);
    let mut labels = plan.attempt.role_labels(role);
    labels.extend(storage.retain.then(|| (RETAIN_LABEL.to_owned(), true.to_string())));
    Some(PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(STATE.to_owned()),
            labels: Some(labels),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(disk(
            &storage.size.or_else(|| made(plan, role)).unwrap_or_else(|| size(plan, role)),
            storage.storage_class_name.as_ref(),
        )),
        ..PersistentVolumeClaim::default()
    })
}

fn given<'a>(plan: &BuildPlan<'a>, role: PodRole) -> Option<&'a ClaimTemplate> {
    match role {
        PodRole::Coordinator => plan.job.spec.coordinator.storage.as_ref(),
        PodRole::Server => plan.job.spec.embedding_servers.storage.as_ref(),
        PodRole::Worker => None,
    }
}

/// Kubernetes changes no claim of a StatefulSet, and refuses a whole object that asks for another.
fn made(plan: &BuildPlan<'_>, role: PodRole) -> Option<Quantity> {
    plan.run.servers.as_ref().filter(|_| role == PodRole::Server)?.disk.clone()
}

fn size(plan: &BuildPlan<'_>, role: PodRole) -> Quantity {
    let bytes = if role == PodRole::Server { of_server(plan) } else { JOURNAL };
    Quantity(format!("{}Gi", bytes.div_ceil(GIB)))
}

/// Two bases and one tail (docs/reliability.md). A base has at most the rows that fit into memory. The tail grows while
/// a base is written: as much again. Rows beyond memory: as many again as in memory.
fn of_server(plan: &BuildPlan<'_>) -> u64 {
    let rows = plan.job.server_rows();
    let tail = 2 * SHORTEST_TAIL.max(rows / 2);
    let disk = plan.job.job.cluster.memory.unwrap_or(0);
    2 * rows + tail + disk
}

fn disk(size: &Quantity, class: Option<&String>) -> PersistentVolumeClaimSpec {
    PersistentVolumeClaimSpec {
        access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
        storage_class_name: class.cloned(),
        resources: Some(VolumeResourceRequirements {
            requests: Some([("storage".to_owned(), size.clone())].into()),
            limits: None,
        }),
        ..PersistentVolumeClaimSpec::default()
    }
}
