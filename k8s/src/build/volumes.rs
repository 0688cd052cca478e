//! Volumes and mounts of a pod's containers.

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, EmptyDirVolumeSource, EphemeralVolumeSource, KeyToPath, PersistentVolumeClaimTemplate,
    PersistentVolumeClaimVolumeSource, SecretVolumeSource, Volume, VolumeMount,
};

use super::{BuildPlan, JOB_KEY, claims};
use crate::crd::{EmptyDir, EphemeralClaim, FolderMedium, HybridJobSpec, MountedVolume};
use crate::names::PodRole;
use crate::paths::{JOB_FOLDER, OUTPUT_PATH, SECRET_FOLDER, SHARED_MEMORY_PATH, STATE_PATH};
use crate::secret_names::{secret_entry, secret_name};

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
    let item = KeyToPath { key: secret_entry(role).to_owned(), path: "key".to_owned(), mode: None };
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
    mounts.extend([output, mount(claims::STATE, STATE_PATH, false)]);
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
    if claims::template(plan, role).is_none() {
        volumes.push(empty(claims::STATE));
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
    let spec = claims::disk(&given.size, given.storage_class_name.as_ref());
    EphemeralVolumeSource { volume_claim_template: Some(PersistentVolumeClaimTemplate { spec, metadata: None }) }
}
