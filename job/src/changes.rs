//! Which settings may change when a run resumes: compares the job file of the checkpoint with the present one.

use std::collections::BTreeMap;

use toml::Value;

use crate::Job;

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

/// Keys of each section, and sections whose keys all have one effect. `rows` stands for `embedding` and `tables.<name>`.
const EFFECTS: &[(&str, ChangeEffect, &str)] = &[
    ("", Operational, "name checkpoint eval output"),
    ("", Meaning, "features mlp model optimizer"),
    ("optimizer.", Learning, "lr weight_decay"),
    // Files are compared one by one, because they may have moved.
    ("data.", Operational, "train test validation"),
    ("data.", Operational, "max_bad_rows max_bad_share max_line_bytes threads drop_last"),
    ("data.", Meaning, "format delimiter header columns comment trim quoted_breaks decimal missing"),
    ("data.", Meaning, "test_fraction validation_share test_from validation_from time_column order"),
    // The resume cursor of a stream counts shuffle windows.
    ("data.", Meaning, "shuffle_rows"),
    ("rows.", Meaning, "dim init weight_bound non_finite element admission eviction"),
    // Another kind has another optimiser state.
    ("rows.", Meaning, "optimizer"),
    ("rows.", Learning, "optimizer.lr optimizer.weight_decay clip_value clip_norm schedule"),
    ("train.", Operational, "epochs threads device memory max_steps"),
    ("train.", Learning, "batch_size staleness precision schedule clip_value clip_norm non_finite"),
    ("train.", Learning, "label_smoothing embedding_dropout embedding_l2 feature_l2 ema reset_embeddings"),
    // Early stopping compares the states that are evaluated.
    ("train.", Learning, "evaluate_every epoch_steps early_stop"),
    // Weights are in files of workers, or in those of servers.
    ("train.", Meaning, "weights"),
    ("train.", Meaning, "mode seed start_from start_steps start_changed"),
    // A run may move to more or fewer machines, although a step of more workers has more samples.
    ("cluster.", Operational, "servers workers min_workers max_workers buckets"),
    ("cluster.", Operational, "coordinator server_addresses worker_address collective admin insecure"),
    ("cluster.", Operational, "timeout_seconds lease_seconds server_threads memory"),
    ("cluster.", Operational, "cold_folder durability log_folder"),
    // A narrow format rounds rows and gradients.
    ("cluster.", Learning, "wire"),
];

/// Each key, or section, with its effect.
fn listed_effects() -> impl Iterator<Item = (String, ChangeEffect)> {
    EFFECTS
        .iter()
        .flat_map(|(section, effect, keys)| keys.split(' ').map(move |key| (format!("{section}{key}"), *effect)))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    pub key: String,
    /// The earlier value as TOML; `None` if there was none.
    pub before: Option<String>,
    pub now: Option<String>,
    pub effect: ChangeEffect,
}

impl KeyChange {
    #[must_use]
    pub fn is_learning(&self) -> bool {
        self.effect != Operational
    }

    #[must_use]
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
    #[must_use]
    pub fn changes_since(&self, earlier: &Self) -> Vec<KeyChange> {
        let (mut before, mut now) = (keys(earlier), keys(self));
        // Where one says how many, the other takes it from there.
        if self.train.epoch_steps.is_none() || earlier.train.epoch_steps.is_none() {
            [&mut before, &mut now].into_iter().for_each(|keys| drop(keys.remove("train.epoch_steps")));
        }
        let names: std::collections::BTreeSet<&String> = before.keys().chain(now.keys()).collect();
        let changed = names.into_iter().filter(|name| before.get(*name) != now.get(*name));
        let change = |key: &String| KeyChange {
            key: key.clone(),
            before: before.get(key).cloned(),
            now: now.get(key).cloned(),
            effect: effect(key),
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

/// The effect of the longest entry that is the key or one of its sections. A key without an entry is the worst.
fn effect(key: &str) -> ChangeEffect {
    let key = general(key);
    let entries = listed_effects().filter(|(entry, _)| is_within(&key, entry));
    entries.max_by_key(|(entry, _)| entry.len()).map_or(Meaning, |(_, effect)| effect)
}

fn is_within(key: &str, section: &str) -> bool {
    key == section || key.strip_prefix(section).is_some_and(|rest| rest.starts_with('.'))
}

/// Replaces the table's name in a key of rows, so that the key applies to any table.
fn general(key: &str) -> String {
    let rest = match key.split_once('.') {
        Some(("embedding", rest)) => Some(rest),
        Some(("tables", rest)) => rest.split_once('.').map(|(_, rest)| rest),
        _ => None,
    };
    rest.map_or_else(|| key.to_owned(), |rest| format!("rows.{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{CRITEO, job, job_fields};
    use crate::shape::ValueShape;

    fn changes(before: &str, now: &str) -> Vec<(String, ChangeEffect)> {
        let changes = job(CRITEO, now).changes_since(&job(CRITEO, before));
        changes.into_iter().map(|change| (change.to_string(), change.effect)).collect()
    }

    /// A change that adds a key must state its effect on a run that resumes with another value.
    #[test]
    fn each_key_of_the_job_file_is_classified_and_nothing_else_is() {
        let of_all_kinds =
            |path: &str| path.split('(').map(|part| part.rsplit(')').next().unwrap()).collect::<String>();
        let key = |path: &str| general(&of_all_kinds(path)["job.".len()..].replace("[]", ".any"));
        let fields = job_fields().into_iter().filter(|(path, _)| path != "job.tables");
        let fields = fields.filter(|(_, field)| !matches!(field.shape, ValueShape::Table(_)));
        let keys: Vec<String> = fields.map(|(path, _)| key(&path)).collect();
        assert!(keys.len() > 100, "{keys:?}");
        let entries: Vec<String> = listed_effects().map(|(entry, _)| entry).collect();
        let is_classified = |key: &&String| entries.iter().any(|entry| is_within(key, entry));
        let missing: Vec<_> = keys.iter().filter(|key| !is_classified(key)).collect();
        assert!(missing.is_empty(), "what do other values of these mean for a run? {missing:?}");
        let is_used = |entry: &&String| keys.iter().any(|key| is_within(key, entry));
        let unknown: Vec<_> = entries.iter().filter(|entry| !is_used(entry)).collect();
        assert!(unknown.is_empty(), "no such keys: {unknown:?}");
        let different: std::collections::BTreeSet<_> = entries.iter().collect();
        assert_eq!(different.len(), entries.len(), "one is there twice: {entries:?}");
    }

    #[test]
    fn a_job_has_no_changes_since_itself() {
        let text =
            "validation_share = 0.1\n[train]\nearly_stop = { patience = 3 }\n[tables.C1]\ninit = { kind = 'zero' }\n";
        assert_eq!(changes(text, text), []);
    }

    #[test]
    fn places_and_durations_are_operational_and_learning_rates_are_learning() {
        let earlier = "[train]\nepochs = 1\n[optimizer]\nlr = 0.01\n[cluster]\nservers = 2\n";
        let now = "[train]\nepochs = 3\nmax_steps = 9\n[optimizer]\nlr = 0.02\n[cluster]\nservers = 3\n";
        let expected = [
            ("cluster.servers: 2 → 3", Operational),
            ("optimizer.lr: 0.01 → 0.02", Learning),
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
        ] {
            assert!(worst(now) > 0, "{now}");
        }
        let rate = "[embedding.optimizer]\nkind = 'adagrad'\nlr = 0.5\n";
        assert_eq!((worst(rate), changes("", rate)[0].1), (0, Learning));
    }
}
