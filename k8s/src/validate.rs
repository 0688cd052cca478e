//! Parse, don't validate: from a HybridJob and the text of its job file to a job that can be built, or to all its
//! problems.
//!
//! The API server refuses most problems by the schema of the definition and its rules. This module finds those that only
//! the checks of the job file know, with the same code as the roles.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::SecurityContext;
use toml_edit::{DocumentMut, Item, Table, value};
use zagros_job::{Job, Mode, Model, Overrides};

use crate::crd::{HybridJob, HybridJobSpec, PodSettings};
use crate::names::{
    ADMIN_PORT, JOB_FILE, JOB_FOLDER, OUTPUT_PATH, PodRole, RunAttempt, SHARED_MEMORY_PATH, STATE_PATH,
};

/// How long members wait for each other unless the job file says so. Pulling images and making disks takes time.
const TIMEOUT_SECONDS: f64 = 300.0;

/// What survives the end of a server's process unless the job file says so. Pods come and go.
const DURABILITY: &str = "process";

/// A HybridJob that can be built. Only [`validate_job`] makes one.
#[derive(Clone, Debug)]
pub struct ValidJob {
    /// The spec, for fields that need no check, with as many servers and workers as the run has now.
    pub spec: HybridJobSpec,
    /// The text of the job file that every role of the attempt gets.
    pub rendered: String,
    pub job: Job,
}

impl ValidJob {
    pub fn pod_settings(&self, role: PodRole) -> &PodSettings {
        match role {
            PodRole::Coordinator => &self.spec.coordinator.pod,
            PodRole::Server => &self.spec.embedding_servers.pod,
            PodRole::Worker => &self.spec.dense_workers.pod,
        }
    }

    pub fn replicas(&self, role: PodRole) -> i32 {
        role.replicas(&self.spec)
    }

    /// The same with so many embedding servers and dense workers, as a run has that was scaled.
    #[must_use]
    pub fn with_numbers(self, servers: i32, workers: i32) -> Self {
        Self { spec: self.spec.with_numbers(servers, workers), ..self }
    }

    /// The embedding servers and dense workers with which the attempt started.
    pub fn started_numbers(&self) -> (i32, i32) {
        let count = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        (count(self.job.cluster.servers), count(self.job.cluster.workers))
    }

    /// The same throughout an attempt (invariant RK-3), whatever its number of workers is: Kubernetes keeps the rules
    /// of a Job for good.
    pub fn workers_rejoin(&self) -> bool {
        let cluster = &self.job.cluster;
        self.job.train.mode != Mode::Sync && cluster.max_workers.unwrap_or(cluster.workers).max(cluster.workers) > 1
    }

    /// The proof is the Secret that the operator makes. A job file that says `cluster.insecure` needs none.
    pub fn asks_for_proof(&self) -> bool {
        !self.job.cluster.insecure
    }

    /// A process that ends is followed by one that goes on where it was: servers have a log, and both have a disk that
    /// outlives the pod.
    pub fn is_durable(&self) -> bool {
        self.job.cluster.durability.has_log()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct SpecProblem {
    /// The path of the field, as in `kubectl explain`: `spec.volumes[0].mountPath`.
    pub field: String,
    pub message: String,
}

pub(crate) fn problem(field: impl Into<String>, message: impl Into<String>) -> SpecProblem {
    SpecProblem { field: field.into(), message: message.into() }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobText {
    /// That of the spec, from which an attempt starts. The attempt has as many servers and workers as the spec says.
    OfSpec(String),
    /// That of an attempt, with the numbers of servers and workers with which it started. The spec may have others by now.
    OfAttempt(String),
}

/// Fails with all problems at once.
pub fn validate_job(object: &HybridJob, text: &JobText, attempt: &RunAttempt) -> Result<ValidJob, Vec<SpecProblem>> {
    let (JobText::OfSpec(source) | JobText::OfAttempt(source)) = text;
    let mut problems = check_mounts(&object.spec);
    let rendered = render(object, text, attempt);
    match rendered.and_then(|rendered| parse(&rendered, &Overrides::none()).map(|job| (rendered, job))) {
        Ok((rendered, job)) => {
            problems.extend(check_paths(&object.spec, &job));
            problems.extend(check_folders(object, &job));
            problems.extend(check_epochs(object, &job));
            if problems.is_empty() {
                return Ok(ValidJob { spec: object.spec.clone(), rendered, job });
            }
        }
        Err(message) => {
            // Positions in the message are those of the user's file, if that can be parsed at all.
            let message = check_text(object, source, attempt).err().unwrap_or(message);
            problems.push(problem(job_field(object), message));
        }
    }
    Err(problems)
}

/// The job file with the operator's keys. Fails when one of them cannot be set.
fn render(object: &HybridJob, text: &JobText, attempt: &RunAttempt) -> Result<String, String> {
    let (keeps_sizes, source) = match text {
        JobText::OfSpec(source) => (false, source),
        JobText::OfAttempt(source) => (true, source),
    };
    let mut document = source.parse::<DocumentMut>().map_err(|error| error.to_string())?;
    document.entry("name").or_insert(value(attempt.job.as_str()));
    let settings = settings(object, attempt).into_iter();
    for (section, key, item) in settings.filter(|(_, key, _)| !keeps_sizes || !SIZES.contains(key)) {
        let table = table(&mut document, section).ok_or_else(|| format!("`{section}` is not a section"))?;
        table.insert(key, item);
    }
    let bounds = if keeps_sizes { Vec::new() } else { worker_bounds(object, &document) };
    for (section, key, item) in fallbacks().into_iter().chain(bounds) {
        if let Some(table) = table(&mut document, section) {
            table.entry(key).or_insert(item);
        }
    }
    Ok(document.to_string())
}

fn table<'a>(document: &'a mut DocumentMut, section: &str) -> Option<&'a mut dyn toml_edit::TableLike> {
    document.entry(section).or_insert(Item::Table(Table::new())).as_table_like_mut()
}

/// The numbers of an attempt never change: its job file is immutable, and processes that start later read it too.
const SIZES: [&str; 2] = ["servers", "workers"];

fn settings(object: &HybridJob, attempt: &RunAttempt) -> Vec<(&'static str, &'static str, Item)> {
    let everywhere = |port: u16| format!("0.0.0.0:{port}");
    let servers = toml_edit::Array::from_iter([everywhere(PodRole::Server.data_port())]);
    vec![
        ("cluster", "servers", value(i64::from(object.spec.embedding_servers.replicas))),
        ("cluster", "workers", value(i64::from(object.spec.dense_workers.replicas))),
        ("cluster", "coordinator", value(attempt.coordinator_address())),
        ("cluster", "server_addresses", value(servers)),
        ("cluster", "worker_address", value(everywhere(PodRole::Worker.data_port()))),
        ("cluster", "admin", value(everywhere(ADMIN_PORT))),
        ("output", "folder", value(attempt.output_folder())),
    ]
}

/// The keys that have another default in a cluster of pods.
fn fallbacks() -> Vec<(&'static str, &'static str, Item)> {
    vec![
        ("cluster", "timeout_seconds", value(TIMEOUT_SECONDS)),
        ("cluster", "durability", value(DURABILITY)),
        ("cluster", "cold_folder", value(format!("{STATE_PATH}/cold"))),
        ("cluster", "log_folder", value(format!("{STATE_PATH}/log"))),
    ]
}

/// In modes `hybrid` and `async` a run continues without lost workers down to the lower bound, and takes more up to the
/// upper one. In mode `sync` the number of workers never changes.
fn worker_bounds(object: &HybridJob, document: &DocumentMut) -> Vec<(&'static str, &'static str, Item)> {
    let mode = document.get("train").and_then(|train| train.get("mode")).and_then(Item::as_str);
    let workers = object.spec.dense_workers.replicas;
    let Some(elasticity) = object.spec.elasticity.as_ref().filter(|_| mode != Some("sync")) else { return Vec::new() };
    let bound = |key, number: i32| ("cluster", key, value(i64::from(number)));
    let least = (elasticity.min_workers <= workers).then(|| bound("min_workers", elasticity.min_workers));
    let most = (elasticity.max_workers >= workers).then(|| bound("max_workers", elasticity.max_workers));
    least.into_iter().chain(most).collect()
}

/// No role counts the steps of an epoch for the others.
fn check_epochs(object: &HybridJob, job: &Job) -> Option<SpecProblem> {
    let key = job.uncounted_keys().into_iter().next()?;
    let message = format!(
        "{key} is in epochs: set train.epoch_steps (`zagros train JOB --dry-run` shows the steps of an epoch), or give steps"
    );
    Some(problem(job_field(object), message))
}

fn parse(text: &str, overrides: &Overrides) -> Result<Job, String> {
    Job::parse(text, Path::new(JOB_FILE), overrides).map_err(|errors| errors.plain_text())
}

/// Checks the user's own text with the operator's keys as overrides, so that lines and columns are the user's.
fn check_text(object: &HybridJob, text: &str, attempt: &RunAttempt) -> Result<Job, String> {
    let sets = settings(object, attempt).into_iter().map(|(section, key, item)| format!("{section}.{key}={item}"));
    parse(text, &Overrides::sets(sets.collect::<Vec<_>>()))
}

fn check_mounts(spec: &HybridJobSpec) -> Vec<SpecProblem> {
    let mut taken: BTreeSet<PathBuf> =
        [OUTPUT_PATH, STATE_PATH, SHARED_MEMORY_PATH, "/tmp", JOB_FOLDER].map(PathBuf::from).into();
    let mut problems = Vec::new();
    for (index, volume) in spec.volumes.iter().enumerate() {
        let path = plain(Path::new(&volume.mount_path));
        if path == Path::new("/") || !taken.insert(path) {
            let message = format!(
                "\"{}\" is taken: by another volume, or by the operator (/output, /tmp, {JOB_FOLDER}, …)",
                volume.mount_path
            );
            problems.push(problem(format!("spec.volumes[{index}].mountPath"), message));
        }
    }
    problems
}

/// A path without `.` and `..`. Only the text counts: no folder above a volume is a link.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

/// Checks that the files of the job are on volumes. Others would be missing in every pod.
fn check_paths(spec: &HybridJobSpec, job: &Job) -> Vec<SpecProblem> {
    let mounted = |path: &PathBuf| {
        let volumes = spec.volumes.iter().map(|volume| volume.mount_path.as_str());
        volumes.chain([OUTPUT_PATH]).any(|mount| path.starts_with(mount))
    };
    let module = match &job.model {
        Model::TorchScript { file, .. } => Some(file.as_path()),
        _ => None,
    };
    // A path may be relative to the job file's folder: `../data/train.txt`.
    let on_disk = |path: &&Path| !path.to_string_lossy().contains("://");
    let read = job.data_files().into_iter().filter(on_disk).chain(module).map(plain);
    let lost: Vec<PathBuf> = read.filter(|path| !mounted(path)).collect();
    let Some(first) = lost.first() else { return Vec::new() };
    let message = format!(
        "the job file reads {} ({} file(s) in all), which are on no volume: mount the data and name it by its path there",
        first.display(),
        lost.len()
    );
    vec![problem("spec.volumes", message)]
}

/// Checks that pods can write to the folders of the job, and that what servers with a log keep outlives the pod. The file
/// system of the image is read-only.
fn check_folders(object: &HybridJob, job: &Job) -> Vec<SpecProblem> {
    let of_run: &[&str] = &[OUTPUT_PATH];
    let of_servers: &[&str] = match &object.spec.output {
        _ if !job.cluster.durability.has_log() => &[STATE_PATH, OUTPUT_PATH, "/tmp"],
        Some(_) => &[STATE_PATH, OUTPUT_PATH],
        None => &[STATE_PATH],
    };
    let folders = [
        ("checkpoint.folder", job.checkpoint.folder.as_deref(), of_run),
        ("output.model_folder", job.output.model_folder.as_deref(), of_run),
        ("cluster.cold_folder", job.cluster.cold_folder.as_deref().and_then(Path::to_str), of_servers),
        ("cluster.log_folder", job.cluster.log_folder.as_deref().and_then(Path::to_str), of_servers),
    ];
    let volumes = object.spec.volumes.iter().filter(|volume| !volume.read_only);
    let writable: Vec<&str> = volumes.map(|volume| volume.mount_path.as_str()).collect();
    let lost = folders.into_iter().filter_map(|(key, folder, own)| {
        let folder = folder?;
        let path = plain(Path::new(folder));
        let is_kept = folder.contains("://") || own.iter().chain(&writable).any(|mount| path.starts_with(mount));
        (!is_kept).then_some((key, folder, own[0]))
    });
    let reported = lost.map(|(key, folder, place)| {
        let message = format!(
            "{key} is \"{folder}\", which no pod can write, or which goes with the pod: name a folder below {place}, or \
             below a volume whose readOnly is false, or one in an object store"
        );
        problem(job_field(object), message)
    });
    reported.collect()
}

fn job_field(object: &HybridJob) -> &'static str {
    if object.spec.job.inline.is_some() { "spec.job.inline" } else { "spec.job.configMap" }
}

/// Refuses what would give a HybridJob its nodes: folders of their disks, and containers with all rights. Who may create HybridJobs need
/// not be allowed to create pods, so an operator without `--allow-host-access` adds these to the problems of the spec
/// (docs/security.md).
pub fn refuse_host_access<T>(
    spec: &HybridJobSpec,
    is_allowed: bool,
    valid: Result<T, Vec<SpecProblem>>,
) -> Result<T, Vec<SpecProblem>> {
    let mut problems = if is_allowed { Vec::new() } else { host_access(spec) };
    if problems.is_empty() {
        return valid;
    }
    problems.extend(valid.err().unwrap_or_default());
    Err(problems)
}

fn host_access(spec: &HybridJobSpec) -> Vec<SpecProblem> {
    let refused = |field: String, what: &str| {
        let message = format!(
            "{what}, which this operator refuses: do without, or ask who runs it for --allow-host-access (docs/security.md)"
        );
        problem(field, message)
    };
    let folders = spec.volumes.iter().enumerate().filter(|(_, volume)| volume.source.host_path.is_some());
    let folders = folders.map(|(index, _)| format!("spec.volumes[{index}].source.hostPath"));
    let roles = [
        ("coordinator", &spec.coordinator.pod),
        ("embeddingServers", &spec.embedding_servers.pod),
        ("denseWorkers", &spec.dense_workers.pod),
    ];
    let containers = roles.into_iter().flat_map(|(role, pod)| privileged(&format!("spec.{role}.pod"), pod));
    let folders = folders.map(|field| refused(field, "gives the pods a folder of their node"));
    folders.chain(containers.map(|field| refused(field, "gives a container all rights on its node"))).collect()
}

fn privileged(path: &str, pod: &PodSettings) -> Vec<String> {
    let own = (format!("{path}.containerSecurityContext"), pod.container_security_context.as_ref());
    let sidecars = pod.sidecars.iter().enumerate();
    let sidecars = sidecars
        .map(|(index, one)| (format!("{path}.sidecars[{index}].securityContext"), one.security_context.as_ref()));
    let all = std::iter::once(own).chain(sidecars);
    all.filter(|(_, rights)| rights.is_some_and(has_all_rights)).map(|(field, _)| field).collect()
}

/// Whether a container may do what root of its node may.
pub(crate) fn has_all_rights(rights: &SecurityContext) -> bool {
    const ALL: [&str; 4] = ["ALL", "CAP_ALL", "SYS_ADMIN", "CAP_SYS_ADMIN"];
    let added = rights.capabilities.iter().filter_map(|capabilities| capabilities.add.as_ref()).flatten();
    rights.privileged == Some(true) || added.into_iter().any(|one| ALL.contains(&one.as_str()))
}

#[cfg(test)]
mod tests;
