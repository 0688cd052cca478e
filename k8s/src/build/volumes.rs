//! Volumes and mounts of a pod's containers. The disk of a coordinator or an embedding server, and the memory of a server: whether
//! there is one, and how large.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Resource;
use serde_json::{Value, json};

use super::{BuildPlan, JOB_KEY};
use crate::crd::{ClaimTemplate, EphemeralClaim, HybridJobSpec, MountedVolume};
use crate::names::{
    JOB_FOLDER, OUTPUT_PATH, PodRole, RETAIN_LABEL, SECRET_FOLDER, SHARED_MEMORY_PATH, STATE_PATH, secret_name,
};
use crate::validate::ValidJob;

const OUTPUT: &str = "output";
const SHARED_MEMORY: &str = "shared-memory";

const RUN_SECRET: &str = "run-secret";
/// The owner and the group of the pod read the key. A role refuses a key that others may read.
const SECRET_MODE: i32 = 0o440;

fn mount(name: &str, path: &str, read_only: bool) -> Value {
    json!({ "name": name, "mountPath": path, "readOnly": read_only })
}

/// Where the key of the role is mounted, for the role's own container and for no sidecar.
pub(super) fn secret_mount(plan: &BuildPlan<'_>) -> Option<Value> {
    plan.job.asks_for_proof().then(|| mount(RUN_SECRET, SECRET_FOLDER, true))
}

pub(super) fn mounts(plan: &BuildPlan<'_>, role: PodRole) -> Vec<Value> {
    let spec = &plan.job.spec;
    let mut output = mount(OUTPUT, OUTPUT_PATH, false);
    output["subPath"] = json!(spec.output.as_ref().and_then(|output| output.sub_path.as_ref()));
    let mut mounts = vec![mount("job", JOB_FOLDER, true), mount("tmp", "/tmp", false)];
    mounts.extend([output, mount(STATE, STATE_PATH, false)]);
    if plan.job.pod_settings(role).shared_memory.is_some() {
        mounts.push(mount(SHARED_MEMORY, SHARED_MEMORY_PATH, false));
    }
    for (index, volume) in spec.volumes.iter().enumerate() {
        let mut data = mount(&user_volume(spec, index), &volume.mount_path, volume.read_only);
        data["subPath"] = json!(volume.sub_path);
        mounts.push(data);
    }
    mounts
}

pub(super) fn volumes(plan: &BuildPlan<'_>, role: PodRole) -> Vec<Value> {
    let spec = &plan.job.spec;
    let empty = |name: &str| json!({ "name": name, "emptyDir": {} });
    let job = json!({ "name": plan.attempt.config_name(), "items": [{ "key": JOB_KEY, "path": JOB_KEY }] });
    let output = spec.output.as_ref().map_or_else(
        || empty(OUTPUT),
        |output| json!({ "name": OUTPUT, "persistentVolumeClaim": { "claimName": output.claim_name } }),
    );
    let mut volumes = vec![json!({ "name": "job", "configMap": job }), empty("tmp"), output];
    if plan.job.asks_for_proof() {
        // The key of the role, and no other role's.
        let items = json!([{ "key": role.short_name(), "path": "key" }]);
        let secret = json!({ "secretName": secret_name(plan.owner), "items": items, "defaultMode": SECRET_MODE });
        volumes.push(json!({ "name": RUN_SECRET, "secret": secret }));
    }
    // A claim template makes a volume of this name for each pod.
    if state_claim(plan, role).is_none() {
        volumes.push(empty(STATE));
    }
    if let Some(size) = &plan.job.pod_settings(role).shared_memory {
        volumes.push(json!({ "name": SHARED_MEMORY, "emptyDir": { "medium": "Memory", "sizeLimit": size } }));
    }
    for (index, volume) in spec.volumes.iter().enumerate() {
        let name = user_volume(spec, index);
        if volumes.iter().all(|one| one["name"] != name) {
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
fn mounted(name: &str, volume: &MountedVolume) -> Value {
    let source = &volume.source;
    let claim = |given: &EphemeralClaim| {
        let spec = disk(&given.size, given.storage_class_name.as_ref());
        json!({ "volumeClaimTemplate": { "spec": spec } })
    };
    json!({
        "name": name,
        "persistentVolumeClaim": source.claim_name.as_ref().map(|name| json!({ "claimName": name })),
        "configMap": source.config_map_name.as_ref().map(|name| json!({ "name": name })),
        "secret": source.secret_name.as_ref().map(|name| json!({ "secretName": name })),
        "emptyDir": source.empty_dir,
        "ephemeral": source.ephemeral.as_ref().map(claim),
        "hostPath": source.host_path,
        "nfs": source.nfs,
        "csi": source.csi,
    })
}

/// Name of the volume for what the next process in the pod needs: log, rows beyond memory, journal.
const STATE: &str = "state";
const GIB: u64 = 1 << 30;
/// Size of the coordinator's disk: a snapshot of its state, and some MiB of inputs.
const JOURNAL: u64 = GIB;
/// The tail of a log is at least so long before a new base is written.
const SHORTEST_TAIL: u64 = 256 << 20;

pub(super) fn state_claim(plan: &BuildPlan<'_>, role: PodRole) -> Option<Value> {
    let given = given(plan, role);
    let is_needed = given.is_some() || (plan.job.is_durable() && role != PodRole::Worker);
    let storage = is_needed.then(|| given.cloned().unwrap_or_default())?;
    // The owner takes the claim along. Kubernetes' own policy does not (`workloads::stateful_set`).
    let owner = plan.owner.owner_ref(&()).filter(|_| !storage.retain);
    let mut labels = plan.attempt.role_labels(role);
    labels.extend(storage.retain.then(|| (RETAIN_LABEL.to_owned(), true.to_string())));
    let size = storage.size.or_else(|| made(plan, role)).unwrap_or_else(|| size(plan, role));
    Some(json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": STATE, "labels": labels, "ownerReferences": owner.map(|owner| [owner]) },
        "spec": disk(&size, storage.storage_class_name.as_ref()),
    }))
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

fn disk(size: &Quantity, class: Option<&String>) -> Value {
    let resources = json!({ "requests": { "storage": size } });
    json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": class, "resources": resources })
}

/// Memory of a server's container where neither the spec nor the job file says how much, bytes.
const SERVER_MEMORY: u64 = 4 << 30;

impl ValidJob {
    pub fn server_rows(&self) -> u64 {
        let limit = || {
            let resources = self.spec.embedding_servers.pod.resources.as_ref()?;
            let limits = [resources.limits.as_ref(), resources.requests.as_ref()];
            limits.into_iter().flatten().find_map(|amounts| amount_bytes(amounts.get("memory")?))
        };
        self.job.cluster.memory.or_else(limit).unwrap_or(SERVER_MEMORY)
    }

    /// The most bytes of rows that one server writes into a checkpoint: those in its memory and those beyond.
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
    pub fn default_server_memory(&self) -> String {
        match self.job.cluster.memory {
            // An eighth for rows on their way to the cold tier, an eighth for requests, and the process itself.
            Some(bytes) => format!("{}Mi", (bytes + bytes / 4).div_ceil(1 << 20) + 512),
            None => format!("{}Gi", SERVER_MEMORY >> 30),
        }
    }
}

/// Powers of 1000, from -3.
const DECIMAL_UNITS: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
/// Powers of 1024, from 1.
const BINARY_UNITS: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// The bytes of an amount such as `8Gi`, `500M` or `1e9`. `None` if it is no amount.
fn amount_bytes(amount: &Quantity) -> Option<u64> {
    let text = amount.0.trim_start_matches('+');
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().ok()?;
    let power = |units: &[&str]| units.iter().position(|one| *one == unit).and_then(|power| i32::try_from(power).ok());
    let factor = match (power(&DECIMAL_UNITS), power(&BINARY_UNITS)) {
        (Some(power), _) => 1000_f64.powi(power - 3),
        (None, Some(power)) => 1024_f64.powi(power + 1),
        (None, None) => 10_f64.powi(unit.strip_prefix(['e', 'E'])?.parse().ok()?),
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
