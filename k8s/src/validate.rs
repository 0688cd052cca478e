//! Parse, don't validate: from a HybridJob and the text of its job file to a job that can be built, or to all its problems.
//!
//! The schema and its CEL rules refuse most problems at admission. This module finds the problems that only the checks of
//! the job file know. It uses the same code as the roles.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use toml_edit::{DocumentMut, Item, Table, value};
use zagros_job::{Job, Mode, Model, Overrides};

use crate::crd::{HybridJob, HybridJobSpec, PodSettings, refusals};
use crate::names::{ADMIN_PORT, Attempt, Role};
use crate::paths::{JOB_FILE, JOB_FOLDER, OUTPUT_PATH, SHARED_MEMORY_PATH, STATE_PATH};
pub use crate::problem::SpecProblem;
use crate::problem::problem;

/// How long members wait for each other unless the job file says so. Pulling images and making disks takes time.
const TIMEOUT_SECONDS: f64 = 300.0;

/// What survives the end of a server's process unless the job file says so. Pods come and go.
const DURABILITY: &str = "process";
/// A HybridJob that can be built. Only [`validate`] makes one.
#[derive(Clone, Debug)]
pub struct ValidJob {
    /// The spec, for fields that need no check.
    pub spec: HybridJobSpec,
    /// The text of the job file that every role of the attempt gets.
    pub rendered: String,
    /// The parsed job file.
    pub job: Job,
}

impl ValidJob {
    /// Settings of a role's pods.
    #[must_use]
    pub fn pod(&self, role: Role) -> &PodSettings {
        match role {
            Role::Coordinator => &self.spec.coordinator.pod,
            Role::Server => &self.spec.embedding_servers.pod,
            Role::Worker => &self.spec.dense_workers.pod,
        }
    }

    /// Pods that a role should have.
    #[must_use]
    pub fn replicas(&self, role: Role) -> i32 {
        match role {
            Role::Coordinator => 1,
            Role::Server => self.spec.embedding_servers.replicas,
            Role::Worker => self.spec.dense_workers.replicas,
        }
    }

    /// Whether the others wait for a lost worker and continue once it is replaced (invariant RK-3).
    #[must_use]
    pub fn rejoins(&self) -> bool {
        self.job.train.mode != Mode::Sync && self.replicas(Role::Worker) > 1
    }

    /// Whether the processes of the run prove that they belong to it, by the Secret that the operator makes. Not if the job
    /// file says `cluster.insecure`, as the files of attempts do that an operator before 0.2 has made.
    #[must_use]
    pub fn asks_for_proof(&self) -> bool {
        !self.job.cluster.insecure
    }

    /// Whether a process of coordinator or servers that ends is followed by one that goes on where it was: servers have a
    /// log, and both have a disk that outlives the pod.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.job.cluster.durability.has_log()
    }

    /// All pods of the run.
    #[must_use]
    pub fn pods(&self) -> i32 {
        Role::ALL.into_iter().map(|role| self.replicas(role)).sum()
    }
}

/// Checks everything and renders the job file of an attempt.
///
/// # Errors
/// All problems at once.
pub fn validate(object: &HybridJob, text: &str, attempt: &Attempt) -> Result<ValidJob, Vec<SpecProblem>> {
    let mut problems = check_spec(object);
    let rendered = render(object, text, attempt);
    match parse(&rendered.text).and_then(|job| rendered.complete().map(|()| job)) {
        Ok(job) => {
            problems.extend(check_paths(&object.spec, &job));
            problems.extend(check_folders(object, &job));
            if problems.is_empty() {
                return Ok(ValidJob { spec: object.spec.clone(), rendered: rendered.text, job });
            }
        }
        Err(message) => {
            // Positions in the message are those of the user's file, if that can be parsed at all.
            let message = check_text(object, text, attempt).err().unwrap_or(message);
            problems.push(problem(job_field(object), message));
        }
    }
    Err(problems)
}

/// The text of the job file with the operator's keys.
struct Rendered {
    text: String,
    missing: Option<String>,
}

impl Rendered {
    fn complete(&self) -> Result<(), String> {
        self.missing.clone().map_or(Ok(()), Err)
    }
}

fn render(object: &HybridJob, text: &str, attempt: &Attempt) -> Rendered {
    let Ok(mut document) = text.parse::<DocumentMut>() else {
        return Rendered { text: text.to_owned(), missing: Some("not TOML".to_owned()) };
    };
    let mut missing = None;
    document.entry("name").or_insert(value(attempt.job.as_str()));
    for (section, key, item) in settings(object, attempt) {
        match table(&mut document, section) {
            Some(table) => {
                table.insert(key, item);
            }
            None => missing = Some(format!("`{section}` is not a section")),
        }
    }
    let least = least_workers(object, &document);
    for (section, key, item) in fallbacks().into_iter().chain(least) {
        if let Some(table) = table(&mut document, section) {
            table.entry(key).or_insert(item);
        }
    }
    Rendered { text: document.to_string(), missing }
}

fn table<'a>(document: &'a mut DocumentMut, section: &str) -> Option<&'a mut dyn toml_edit::TableLike> {
    document.entry(section).or_insert(Item::Table(Table::new())).as_table_like_mut()
}

/// The keys that the operator sets.
fn settings(object: &HybridJob, attempt: &Attempt) -> Vec<(&'static str, &'static str, Item)> {
    let everywhere = |port: u16| format!("0.0.0.0:{port}");
    let servers = toml_edit::Array::from_iter([everywhere(Role::Server.port())]);
    vec![
        ("cluster", "servers", value(i64::from(object.spec.embedding_servers.replicas))),
        ("cluster", "workers", value(i64::from(object.spec.dense_workers.replicas))),
        ("cluster", "coordinator", value(attempt.coordinator())),
        ("cluster", "server_addresses", value(servers)),
        ("cluster", "worker_address", value(everywhere(Role::Worker.port()))),
        ("cluster", "admin", value(everywhere(ADMIN_PORT))),
        ("output", "folder", value(attempt.output())),
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

/// The lower bound of `elasticity` as a key of the job file. A run in mode `hybrid` or `async` continues without lost
/// workers down to it.
fn least_workers(object: &HybridJob, document: &DocumentMut) -> Option<(&'static str, &'static str, Item)> {
    let least = object.spec.elasticity.as_ref()?.min_workers;
    let mode = document.get("train").and_then(|train| train.get("mode")).and_then(Item::as_str);
    let workers = object.spec.dense_workers.replicas;
    let may = mode.is_none_or(|mode| mode != "sync") && workers > 1 && least <= workers;
    may.then(|| ("cluster", "min_workers", value(i64::from(least))))
}

fn parse(text: &str) -> Result<Job, String> {
    Job::parse(text, Path::new(JOB_FILE), &Overrides::none()).map_err(|errors| errors.plain())
}

/// Checks the user's own text with the operator's keys as overrides, so that lines and columns are the user's.
fn check_text(object: &HybridJob, text: &str, attempt: &Attempt) -> Result<(), String> {
    let sets = settings(object, attempt).into_iter().map(|(section, key, item)| format!("{section}.{key}={item}"));
    let overrides = Overrides::sets(sets.collect::<Vec<_>>());
    Job::parse(text, Path::new(JOB_FILE), &overrides).map(|_| ()).map_err(|errors| errors.plain())
}

/// Checks the rules of the definition, because the installed definition may be older than this operator, and rules that it
/// cannot express.
fn check_spec(object: &HybridJob) -> Vec<SpecProblem> {
    // The operator writes the status, so the status is no reason to refuse a job.
    let written = HybridJob { status: None, ..object.clone() };
    let mut problems = match serde_json::to_value(written) {
        Ok(value) => refusals(&value, None),
        Err(error) => vec![problem("spec", format!("cannot be written as JSON: {error}"))],
    };
    problems.extend(check_mounts(&object.spec));
    problems
}

/// Checks that no volume is mounted at a folder that the roles use.
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
    let read = job.data_files().into_iter().chain(module).map(plain);
    let lost: Vec<PathBuf> = read.filter(|path| !mounted(path)).collect();
    let Some(first) = lost.first() else { return Vec::new() };
    let message = format!(
        "the job file reads {} ({} file(s) in all), which are on no volume: mount the data and name it by its path there",
        first.display(),
        lost.len()
    );
    vec![problem("spec.volumes", message)]
}

/// Checks that pods can write to the folders of the job. The file system of the image is read-only.
fn check_folders(object: &HybridJob, job: &Job) -> Vec<SpecProblem> {
    let cold = job.cluster.cold_folder.as_deref().and_then(Path::to_str);
    let log = job.cluster.log_folder.as_deref().and_then(Path::to_str);
    let folders = [
        ("checkpoint.folder", job.checkpoint.folder.as_deref(), &[OUTPUT_PATH][..]),
        ("output.model_folder", job.output.model_folder.as_deref(), &[OUTPUT_PATH]),
        ("cluster.cold_folder", cold, &[OUTPUT_PATH, STATE_PATH, "/tmp"]),
        ("cluster.log_folder", log, &[OUTPUT_PATH, STATE_PATH, "/tmp"]),
    ];
    let volumes = object.spec.volumes.iter().filter(|volume| !volume.read_only);
    let writable: Vec<&str> = volumes.map(|volume| volume.mount_path.as_str()).collect();
    let is_lost = |folder: &str, own: &[&str]| {
        let path = plain(Path::new(folder));
        !folder.contains("://") && !own.iter().chain(&writable).any(|mount| path.starts_with(mount))
    };
    let reported = |(key, folder): (&str, &str)| {
        let message = format!(
            "{key} is \"{folder}\", which is on no volume that pods can write: name a folder below /output, or below a \
             volume whose readOnly is false, or one in an object store"
        );
        problem(job_field(object), message)
    };
    let lasting =
        [("cluster.cold_folder", cold), ("cluster.log_folder", log)].into_iter().filter_map(|(key, folder)| {
            let short = ["/tmp"].into_iter().chain(object.spec.output.is_none().then_some(OUTPUT_PATH));
            let is_short = |one: &&str| short.clone().any(|mount| plain(Path::new(one)).starts_with(mount));
            let folder = folder.filter(is_short).filter(|_| job.cluster.durability.has_log())?;
            let message = format!("{key} is \"{folder}\", which goes with the pod: name a folder below {STATE_PATH}");
            Some(problem(job_field(object), message))
        });
    let lost =
        folders.into_iter().filter_map(|(key, folder, own)| Some((key, folder.filter(|one| is_lost(one, own))?)));
    lost.map(reported).chain(lasting).collect()
}

fn job_field(object: &HybridJob) -> &'static str {
    if object.spec.job.inline.is_some() { "spec.job.inline" } else { "spec.job.configMap" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{JOB_TEXT, attempt, hybrid_job};

    fn problems(change: impl FnOnce(&mut HybridJob)) -> Vec<String> {
        let mut object = hybrid_job();
        change(&mut object);
        let text = object.spec.job.inline.clone().unwrap_or_default();
        let found = validate(&object, &text, &attempt(1)).map(|_| ()).err().unwrap_or_default();
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_rendered_file_is_the_users_with_the_clusters_addresses() {
        let valid = validate(&hybrid_job(), JOB_TEXT, &attempt(2)).unwrap();
        let cluster = &valid.job.cluster;
        assert_eq!((cluster.servers, cluster.workers), (3, 2));
        assert_eq!(cluster.coordinator, "ctr-2-coordinator.ads.svc:7700");
        assert_eq!(cluster.server_addresses, ["0.0.0.0:7701"]);
        assert_eq!(cluster.timeout.as_secs_f64(), TIMEOUT_SECONDS);
        assert_eq!(cluster.durability, zagros_job::Durability::Process);
        assert!(valid.is_durable());
        assert_eq!(valid.job.output.folder, Path::new("/output/ctr"));
        assert_eq!(valid.job.name, "ctr");
        assert_eq!(valid.job.train.seed, 7);
        assert!(valid.rendered.contains("# What the user wrote stays."));
    }

    #[test]
    fn a_hybrid_run_continues_down_to_the_lower_bound_of_elasticity() {
        let least = |text: &str, workers: i32| {
            let mut object = hybrid_job();
            object.spec.dense_workers.replicas = workers;
            object.spec.elasticity = Some(crate::crd::Elasticity { min_workers: 1, max_workers: 8 });
            validate(&object, text, &attempt(1)).unwrap().job.cluster.min_workers
        };
        assert_eq!(least(JOB_TEXT, 4), Some(1));
        assert_eq!(least(&format!("{JOB_TEXT}[cluster]\nmin_workers = 3\n"), 4), Some(3), "the user's own stays");
        assert_eq!(least(&format!("{JOB_TEXT}mode = \"sync\"\n"), 4), None);
        assert_eq!(least(JOB_TEXT, 1), None);
        assert_eq!(validate(&hybrid_job(), JOB_TEXT, &attempt(1)).unwrap().job.cluster.min_workers, None);
    }

    /// Roles do not compare addresses and folders, so the pods of one attempt agree.
    #[test]
    fn every_attempt_trains_the_same_job() {
        let of = |number| validate(&hybrid_job(), JOB_TEXT, &attempt(number)).unwrap().job;
        assert_eq!(of(1).fingerprint(), of(2).fingerprint());
    }

    /// A run is found by its name and its parent folder. Other settings may change since a checkpoint.
    #[test]
    fn an_attempt_finds_the_checkpoints_of_earlier_ones_and_may_continue_from_them() {
        let text = format!("{JOB_TEXT}[checkpoint]\nfolder = \"s3://models/ads\"\n");
        let of = |number, workers| {
            let mut object = hybrid_job();
            object.spec.dense_workers.replicas = workers;
            validate(&object, &text, &attempt(number)).unwrap().job
        };
        let (first, second) = (of(1, 2), of(2, 4));
        assert_eq!((&first.name, &first.output.folder), (&second.name, &second.output.folder));
        assert_eq!(first.checkpoint.folder, second.checkpoint.folder);
        let changed = second.changes_since(&first);
        assert!(!changed.is_empty() && !changed.iter().any(zagros_job::KeyChange::is_learning), "{changed:?}");
    }

    #[test]
    fn the_users_timeout_stays() {
        let text = format!("{JOB_TEXT}[cluster]\ntimeout_seconds = 40.0\nservers = 9\n");
        let cluster = validate(&hybrid_job(), &text, &attempt(1)).unwrap().job.cluster;
        assert_eq!((cluster.timeout.as_secs(), cluster.servers), (40, 3));
    }

    #[test]
    fn a_wrong_job_file_is_reported_by_its_own_lines() {
        let found = problems(|object| object.spec.job.inline = Some(JOB_TEXT.replace("seed", "sede")));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("spec.job.inline: ") && found[0].contains("sede"), "{found:?}");
        assert!(found[0].contains("job.toml:8:1") && found[0].contains("seed"), "{found:?}");
        let found = problems(|object| object.spec.job.inline = Some("data = [".to_owned()));
        assert!(found[0].contains("job.toml:1:"), "{found:?}");
        let found = problems(|object| object.spec.job.inline = Some(format!("cluster = 3\n{JOB_TEXT}")));
        assert!(found[0].contains("cluster"), "{found:?}");
    }

    #[test]
    fn data_that_no_volume_holds_is_named() {
        let found = problems(|object| object.spec.volumes.clear());
        assert!(found[0].starts_with("spec.volumes: the job file reads /data/train.txt (2 file(s)"), "{found:?}");
    }

    /// Paths in a job file start at its folder, so `../data` is mounted at `/data`.
    #[test]
    fn a_path_with_dots_is_found_where_it_leads() {
        let of =
            |path: &str| problems(|object| object.spec.job.inline = Some(JOB_TEXT.replace("/data/train.txt", path)));
        for path in ["../data/train.txt", "/data/../data/./train.txt", "../data/a/../train.txt", "../output/x"] {
            assert_eq!(of(path), Vec::<String>::new(), "{path}");
        }
        for (path, plain) in
            [("train.txt", "/zagros/train.txt"), ("/data/../etc/passwd", "/etc/passwd"), ("../x", "/x")]
        {
            let found = of(path);
            assert!(found.len() == 1 && found[0].contains(&format!("the job file reads {plain}")), "{path}: {found:?}");
        }
    }

    /// Refused now, and not by a pod that has trained up to its first checkpoint.
    #[test]
    fn a_folder_that_pods_cannot_write_is_named() {
        let of = |keys: &str| problems(|object| object.spec.job.inline = Some(format!("{JOB_TEXT}{keys}")));
        for (keys, key) in [
            ("[checkpoint]\nfolder = \"checkpoints\"\n", "checkpoint.folder is \"checkpoints\""),
            ("[checkpoint]\nfolder = \"/data/checkpoints\"\n", "checkpoint.folder"),
            ("[output]\nmodel_folder = \"/output/../models\"\n", "output.model_folder"),
            ("[cluster]\ncold_folder = \"/var/lib/rows\"\n", "cluster.cold_folder"),
            ("[cluster]\nlog_folder = \"/var/lib/rows\"\n", "cluster.log_folder"),
            // What goes with the pod is no place for rows that must outlive it.
            ("[cluster]\ncold_folder = \"/tmp/rows\"\n", "cluster.cold_folder"),
            ("[cluster]\nlog_folder = \"/tmp/rows\"\n", "cluster.log_folder"),
            ("[cluster]\nlog_folder = \"/output/rows\"\n", "cluster.log_folder"),
        ] {
            let found = of(keys);
            assert!(found.len() == 1 && found[0].starts_with(&format!("spec.job.inline: {key}")), "{keys}: {found:?}");
        }
        for keys in [
            "[checkpoint]\nfolder = \"s3://models/ads\"\n",
            "[checkpoint]\nfolder = \"/output/checkpoints\"\n",
            "[cluster]\ndurability = \"checkpoint\"\ncold_folder = \"/tmp/rows\"\n",
        ] {
            assert_eq!(of(keys), Vec::<String>::new(), "{keys}");
        }
        let shared = problems(|object| {
            object.spec.volumes[0].read_only = false;
            object.spec.job.inline = Some(format!("{JOB_TEXT}[checkpoint]\nfolder = \"/data/checkpoints\"\n"));
        });
        assert_eq!(shared, Vec::<String>::new());
    }

    #[test]
    fn everything_is_reported_at_once() {
        let found = problems(|object| {
            object.spec.dense_workers.replicas = 0;
            object.spec.volumes.push(object.spec.volumes[0].clone());
            object.spec.coordinator.pod.labels.insert("team".to_owned(), "-".to_owned());
            object.spec.job.inline = Some("[data]".to_owned());
        });
        let fields: Vec<&str> = found.iter().filter_map(|text| text.split(": ").next()).collect();
        let expected = [
            "spec.coordinator.pod.labels.team",
            "spec.denseWorkers.replicas",
            "spec.volumes[1].mountPath",
            "spec.job.inline",
        ];
        assert_eq!(fields, expected);
    }

    /// The definition in the cluster may be older, so the operator checks its rules too.
    #[test]
    fn the_rules_of_the_definition_hold_without_a_cluster() {
        let found = problems(|object| {
            object.spec.volumes[0].source.secret_name = Some("s".to_owned());
            object.spec.dense_workers.pod.env = vec![k8s_openapi::api::core::v1::EnvVar {
                name: "ZAGROS__TRAIN__SEED".to_owned(),
                ..Default::default()
            }];
        });
        let fields: Vec<&str> = found.iter().filter_map(|text| text.split(": ").next()).collect();
        assert_eq!(fields, ["spec.denseWorkers.pod.env", "spec.volumes[0].source"], "{found:?}");
    }

    /// The roles use folders of their own. No spelling of a path may hide one.
    #[test]
    fn no_volume_hides_a_folder_of_the_roles() {
        for path in ["/output", "/tmp/", "/zagros", "/dev/shm", "/var/lib/zagros/", "/var/./lib/zagros", "/data"] {
            let found = problems(|object| {
                let volume = object.spec.volumes[0].clone();
                object.spec.volumes.push(crate::crd::MountedVolume { mount_path: path.to_owned(), ..volume });
            });
            assert!(
                found.iter().any(|one| one.contains(&format!("\"{path}\" is taken")) || one.contains("two volumes")),
                "{path}: {found:?}"
            );
        }
    }

    #[test]
    fn a_size_beyond_elasticity_is_refused() {
        let found = problems(|object| {
            object.spec.elasticity = Some(crate::crd::Elasticity { min_workers: 3, max_workers: 4 });
        });
        let expected = "spec: denseWorkers.replicas must lie within elasticity.minWorkers and elasticity.maxWorkers";
        assert_eq!(found, [expected]);
    }
}
