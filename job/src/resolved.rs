//! Values of a validated job: its resolved file, the fingerprint that all roles compare, its data files, and what has changed since another one:
//! which settings may change when a run resumes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::json;
use toml::Value;
use xxhash_rust::xxh3::xxh3_64;

use crate::file::JobFile;
use crate::settings::{Device, Job, Model, TrainSettings};
use crate::shape::{self, ValueShape};

impl Job {
    /// Every key written, paths absolute. Panics when a number does not fit into a job file, such as a seed above
    /// `i64::MAX`.
    pub fn to_toml(&self) -> String {
        let file =
            toml::to_string_pretty(&JobFile::from_job(self)).expect("a job made from TOML can be written as TOML");
        format!("# Resolved job, with every default. `zagros train` accepts this file.\n{file}")
    }

    /// Equal for two roles only if they work on the same run. Paths, addresses, time limits and thread counts may
    /// differ between machines and do not count, and neither does whether statistics are already measured.
    pub fn fingerprint(&self) -> u64 {
        let mut features = self.features.clone();
        features.forget_measured();
        let mut model = self.model.clone();
        if let Model::TorchScript { file, .. } = &mut model {
            file.clear();
        }
        // A worker that may get company forms a group from the start.
        let cluster = &self.cluster;
        let counts = [Some(cluster.servers), Some(cluster.workers), Some(cluster.buckets)].into_iter();
        let most = Some(cluster.most_workers()).filter(|most| *most > cluster.workers);
        let agreed = json!({
            "format": self.data.format,
            "features": features,
            "tables": self.tables,
            "model": model,
            "parametrization": self.parametrization,
            "optimizer": self.dense_optimizer,
            "train": TrainSettings { threads: 0, device: Device::Cpu, ..self.train.clone() },
            "eval": self.eval,
            "cluster": counts.chain([most]).flatten().collect::<Vec<u32>>(),
            "wire": self.cluster.wire,
            "collective": self.cluster.collective,
        });
        xxh3_64(agreed.to_string().as_bytes())
    }

    /// All files that the run reads: training, validation, test.
    pub fn data_files(&self) -> Vec<&Path> {
        let held_out = self.data.validation.file_paths().iter().chain(self.data.test.file_paths());
        self.data.train.iter().chain(held_out).map(PathBuf::as_path).collect()
    }
}

/// What another value of a key means for a run that resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeEffect {
    /// The same is learned: the key says where, how long, how fast, or what is reported. A run resumes with the new value.
    Operational,
    /// Something else is learned from then on: another experiment. A run resumes with the new value only on request.
    Learning,
    /// The learned values would lose their meaning. No run resumes with the new value.
    Meaning,
}

use ChangeEffect::{Learning, Meaning, Operational};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    pub key: String,
    /// The earlier value as TOML; `None` if there was none.
    pub before: Option<String>,
    pub now: Option<String>,
    pub effect: ChangeEffect,
}

impl KeyChange {
    pub fn is_learning(&self) -> bool {
        self.effect != Operational
    }

    pub fn may_go_on(&self) -> bool {
        self.effect != Meaning
    }
}

impl std::fmt::Display for KeyChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
        write!(f, "{}: {} → {}", self.key, value(&self.before), value(&self.now))
    }
}

impl Job {
    pub fn changes_since(&self, earlier: &Self) -> Vec<KeyChange> {
        let (mut before, mut now) = (keys(earlier), keys(self));
        // Where one says how many, the other takes it from there.
        if self.train.epoch_steps.is_none() || earlier.train.epoch_steps.is_none() {
            [&mut before, &mut now].into_iter().for_each(|keys| drop(keys.remove("train.epoch_steps")));
        }
        let shape = shape::job_shape();
        let names: std::collections::BTreeSet<&String> = before.keys().chain(now.keys()).collect();
        let changed = names.into_iter().filter(|name| before.get(*name) != now.get(*name));
        let change = |key: &String| KeyChange {
            key: key.clone(),
            before: before.get(key).cloned(),
            now: now.get(key).cloned(),
            effect: effect(&shape, key),
        };
        changed.map(change).collect()
    }
}

/// Values by dotted key. A list is one value.
fn keys(job: &Job) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut job = job.clone();
    job.features.forget_measured();
    // The addresses differ in every run of `zagros up`.
    let cluster = &mut job.cluster;
    [&mut cluster.coordinator, &mut cluster.worker_address, &mut cluster.admin].into_iter().for_each(String::clear);
    cluster.server_addresses.clear();
    let resolved = job.to_toml().parse::<toml::Table>().unwrap_or_default();
    flatten("", &Value::Table(resolved), &mut found);
    found
}

fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(&path, value, into);
            }
        }
        value => {
            into.insert(path.to_owned(), value.to_string());
        }
    }
}

/// The effect that the key states as `x-change` in its schema, or else the innermost section around it: [`Meaning`] where none does.
fn effect(job: &ValueShape, key: &str) -> ChangeEffect {
    let (mut shape, mut effect) = (job, Meaning);
    for step in key.split('.') {
        if let ValueShape::Named(item) = shape {
            shape = item;
            continue;
        }
        let Some(field) = shape.field(step) else { break };
        effect = match field.change.as_deref() {
            Some("operational") => Operational,
            Some("learning") => Learning,
            Some(_) => Meaning,
            None => effect,
        };
        shape = &field.shape;
    }
    effect
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Overrides;

    const FILE: &str = "[data]\nformat = 'criteo'\ntrain = ['a', '/b/c']\ntest = 'd'\n[features]\n\
        numeric = ['I1', { column = 'I2', standardise = true }]\n";

    fn job(sets: &[&str]) -> Job {
        Job::parse(FILE, Path::new("/jobs/ads.toml"), &Overrides::sets(sets.iter().copied())).unwrap()
    }

    #[test]
    fn roles_of_one_run_have_one_fingerprint() {
        let same = "train.threads=7 train.device=cuda data.threads=9 cluster.server_threads=3 data.train=elsewhere \
            cluster.coordinator=far:1 cluster.admin='0.0.0.0:9' cluster.worker_address='0.0.0.0:9' cluster.timeout_seconds=5 \
            cluster.min_workers=1 output.folder=other cluster.memory=2GiB cluster.cold_folder=other cluster.durability=machine \
            cluster.log_folder=other cluster.insecure=true name=other";
        for set in same.split(' ') {
            assert_eq!(job(&[set]).fingerprint(), job(&[]).fingerprint(), "{set}");
        }
    }

    #[test]
    fn roles_of_different_runs_do_not() {
        let different = "train.seed=2 train.batch_size=7 train.mode=sync train.mode=async train.precision=bf16 embedding.dim=8 \
            embedding.optimizer.lr=0.5 embedding.init.bound=0.5 embedding.non_finite=skip embedding.element=bf16 \
            embedding.schedule={kind='linear',decay=5} embedding.admission={kind='count'} embedding.eviction.order={kind='lfu'} \
            embedding.eviction.ttl={steps=7} embedding.eviction.ttl={seconds=7} embedding.eviction.target=drop features.categorical=['C1'] \
            features.numeric=['I1','I2'] model.top=[1] model={kind='ffnn',hidden=[7]} model={kind='dcnv2'} \
            model={kind='dcnv2',rank=7} optimizer.lr=0.5 optimizer.kind=adagrad train.schedule={kind='linear',decay=5} \
            train.clip_norm=5 train.non_finite=skip cluster.servers=2 cluster.workers=2 cluster.max_workers=2 \
            cluster.buckets=512 cluster.wire=bf16 cluster.collective=nccl";
        let mut seen = std::collections::HashSet::from([job(&[]).fingerprint()]);
        for set in different.split(' ') {
            assert!(seen.insert(job(&[set]).fingerprint()), "{set}");
        }
        assert!(seen.insert(job(&["embedding.eviction={target='drop',small_norm=0.5}"]).fingerprint()));
    }

    #[test]
    fn paths_start_where_they_were_written() {
        let paths =
            |sets: &[&str]| job(sets).data_files().iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(paths(&[]), ["/jobs/a", "/b/c", "/jobs/d"]);
        let here = std::env::current_dir().unwrap();
        assert_eq!(paths(&["data.train=x/y"]), [here.join("x/y").display().to_string(), "/jobs/d".to_owned()]);
    }

    #[test]
    fn the_resolved_form_is_as_short_as_it_can_be() {
        let job = job(&["tables.C3.dim=16", "tables.C2.optimizer={kind='sgd'}", "embedding.init={kind='normal'}"]);
        let written: JobFile = toml::from_str(&job.to_toml()).unwrap();
        assert_eq!(written.tables.keys().collect::<Vec<_>>(), ["C2"]);
        assert!(!job.to_toml().contains("tables.C2.init"));
        assert!(!job.to_toml().contains("\nbound") && job.to_toml().contains("deviation = 0.01\n"));
    }
}

#[cfg(test)]
mod change_tests {
    use super::*;
    use crate::fixture::{CRITEO, job};

    fn changes(before: &str, now: &str) -> Vec<(String, ChangeEffect)> {
        let changes = job(CRITEO, now).changes_since(&job(CRITEO, before));
        changes.into_iter().map(|change| (change.to_string(), change.effect)).collect()
    }

    #[test]
    fn places_and_durations_are_operational_and_learning_rates_are_learning() {
        let earlier = "[train]\nepochs = 1\n[optimizer]\nlr = 0.01\n[cluster]\nservers = 2\n";
        let now = "max_bad_rows = 4\n[train]\nepochs = 3\nmax_steps = 9\nbatch_size = 8\n[optimizer]\nlr = 0.02\n[cluster]\nservers = 3\n\
            wire = 'bf16'\n[tables.C2]\nclip_norm = 2\n";
        let expected = [
            ("cluster.servers: 2 → 3", Operational),
            ("cluster.wire: \"f32\" → \"bf16\"", Learning),
            ("data.max_bad_rows: 0 → 4", Operational),
            ("optimizer.lr: 0.01 → 0.02", Learning),
            ("tables.C2.clip_norm: nothing → 2.0", Learning),
            ("train.batch_size: 4096 → 8", Learning),
            ("train.epochs: 1 → 3", Operational),
            ("train.max_steps: nothing → 9", Operational),
        ];
        assert_eq!(changes(earlier, now), expected.map(|(text, effect)| (text.to_owned(), effect)));
    }

    #[test]
    fn a_key_that_changes_the_meaning_of_rows_or_weights_is_recognised() {
        let worst = |now: &str| changes("", now).into_iter().filter(|(_, effect)| *effect == Meaning).count();
        for now in [
            "[train]\nseed = 5\n",
            "[train]\nmode = 'sync'\n",
            "test_fraction = 0.5\n",
            "validation_share = 0.5\n",
            "shuffle_rows = 7\n",
            "[embedding]\ndim = 4\n",
            "[tables.C1]\ninit = { kind = 'zero' }\n",
            "[model]\nkind = 'ffnn'\n",
            "[optimizer]\nkind = 'sgd'\nlr = 0.1\n",
            "[train]\nstart_changed = 'keep'\n",
            "[embedding]\neviction.target = 'drop'\n",
        ] {
            assert!(worst(now) > 0, "{now}");
        }
        let rate = "[embedding.optimizer]\nkind = 'adagrad'\nlr = 0.5\n";
        assert_eq!((worst(rate), changes("", rate)[0].1), (0, Learning));
    }
}
