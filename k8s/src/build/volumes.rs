//! Volumes and mounts of a pod's containers. The disk of a coordinator or an embedding server, and the memory of a server: whether
//! there is one, and how large.

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
use crate::validate::ValidJob;

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

/// Memory of a server's container where neither the spec nor the job file says how much, bytes.
const SERVER_MEMORY: u64 = 4 << 30;

impl ValidJob {
    #[must_use]
    pub fn server_rows(&self) -> u64 {
        let limit = || {
            let resources = self.spec.embedding_servers.pod.resources.as_ref()?;
            let limits = [resources.limits.as_ref(), resources.requests.as_ref()];
            limits.into_iter().flatten().find_map(|amounts| amount_bytes(amounts.get("memory")?))
        };
        self.job.cluster.memory.or_else(limit).unwrap_or(SERVER_MEMORY)
    }

    /// The most bytes of rows that one server writes into a checkpoint: those in its memory and those beyond.
    #[must_use]
    pub fn saved_rows(&self) -> u64 {
        self.server_rows().saturating_add(self.rows_beyond_memory())
    }

    /// Rows that do not fit into `cluster.memory`: as many again, or what a larger disk has room for besides two bases
    /// of the log.
    fn rows_beyond_memory(&self) -> u64 {
        let Some(memory) = self.job.cluster.memory else { return 0 };
        let size = self.spec.embedding_servers.storage.as_ref().and_then(|storage| storage.size.as_ref());
        let room = size.and_then(amount_bytes).map(|disk| disk.saturating_sub(2 * memory));
        room.unwrap_or(0).max(memory)
    }

    /// The memory of a server's container, unless the user says otherwise. It follows from `cluster.memory`.
    #[must_use]
    pub fn default_server_memory(&self) -> String {
        match self.job.cluster.memory {
            // An eighth for rows on their way to the cold tier, an eighth for requests, and the process itself.
            Some(bytes) => format!("{}Mi", (bytes + bytes / 4).div_ceil(1 << 20) + 512),
            None => format!("{}Gi", SERVER_MEMORY >> 30),
        }
    }
}

/// The bytes of an amount such as `8Gi`, `500M` or `1e9`. `None` if it is no amount.
fn amount_bytes(amount: &Quantity) -> Option<u64> {
    let text = amount.0.trim_start_matches('+');
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().ok()?;
    let factor = match unit {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => f64::from(1 << 20),
        "Gi" => f64::from(1 << 30),
        "Ti" => 1024_f64.powi(4),
        "Pi" => 1024_f64.powi(5),
        "Ei" => 1024_f64.powi(6),
        exponent => 10_f64.powi(exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    Some((number * factor).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_an_amount_is_read() {
        for (text, expected) in [
            ("8Gi", Some(8 << 30)),
            ("1.5Ki", Some(1536)),
            ("+500M", Some(500_000_000)),
            ("1e3", Some(1000)),
            ("2E", Some(2_000_000_000_000_000_000)),
            ("2E2", Some(200)),
            ("100m", Some(1)),
            ("7", Some(7)),
            ("8GB", None),
            ("", None),
        ] {
            assert_eq!(amount_bytes(&Quantity(text.to_owned())), expected, "{text}");
        }
    }
}
