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

/// Every key, or section whose keys all have one effect. `rows` stands for `embedding` and `tables.<name>`.
const EFFECTS: [(&str, ChangeEffect); 97] = [
    ("name", Operational),
    ("checkpoint", Operational),
    ("eval", Operational),
    ("output", Operational),
    ("features", Meaning),
    ("mlp", Meaning),
    ("model", Meaning),
    ("data.format", Meaning),
    // Files are compared one by one, because they may have moved.
    ("data.train", Operational),
    ("data.test", Operational),
    ("data.validation", Operational),
    ("data.test_fraction", Meaning),
    ("data.validation_share", Meaning),
    ("data.test_from", Meaning),
    ("data.validation_from", Meaning),
    ("data.time_column", Meaning),
    ("data.delimiter", Meaning),
    ("data.header", Meaning),
    ("data.columns", Meaning),
    ("data.comment", Meaning),
    ("data.trim", Meaning),
    ("data.quoted_breaks", Meaning),
    ("data.decimal", Meaning),
    ("data.missing", Meaning),
    ("data.max_bad_rows", Operational),
    ("data.max_bad_share", Operational),
    ("data.max_line_bytes", Operational),
    ("data.threads", Operational),
    // The resume cursor of a stream counts shuffle windows.
    ("data.shuffle_rows", Meaning),
    ("data.order", Meaning),
    ("data.drop_last", Operational),
    ("rows.dim", Meaning),
    ("rows.init", Meaning),
    // Another kind has another optimiser state.
    ("rows.optimizer", Meaning),
    ("rows.optimizer.lr", Learning),
    ("rows.optimizer.weight_decay", Learning),
    ("rows.clip_value", Learning),
    ("rows.clip_norm", Learning),
    ("rows.weight_bound", Meaning),
    ("rows.non_finite", Meaning),
    ("rows.element", Meaning),
    ("rows.schedule", Learning),
    ("rows.admission", Meaning),
    ("rows.evict", Meaning),
    ("rows.ttl_steps", Meaning),
    ("rows.ttl_seconds", Meaning),
    ("rows.small_norm", Meaning),
    ("rows.victims", Meaning),
    ("optimizer", Meaning),
    ("optimizer.lr", Learning),
    ("optimizer.weight_decay", Learning),
    ("train.batch_size", Learning),
    ("train.epochs", Operational),
    ("train.mode", Meaning),
    ("train.staleness", Learning),
    ("train.seed", Meaning),
    ("train.threads", Operational),
    ("train.precision", Learning),
    ("train.device", Operational),
    // Weights are in files of workers, or in those of servers.
    ("train.weights", Meaning),
    ("train.memory", Operational),
    ("train.start_from", Meaning),
    ("train.start_steps", Meaning),
    ("train.start_changed", Meaning),
    ("train.max_steps", Operational),
    // Early stopping compares the states that are evaluated.
    ("train.evaluate_every", Learning),
    ("train.epoch_steps", Learning),
    ("train.early_stop", Learning),
    ("train.label_smoothing", Learning),
    ("train.embedding_dropout", Learning),
    ("train.embedding_l2", Learning),
    ("train.feature_l2", Learning),
    ("train.ema", Learning),
    ("train.reset_embeddings", Learning),
    ("train.schedule", Learning),
    ("train.clip_value", Learning),
    ("train.clip_norm", Learning),
    ("train.non_finite", Learning),
    // A run may move to more or fewer machines, although a step of more workers has more samples.
    ("cluster.servers", Operational),
    ("cluster.workers", Operational),
    ("cluster.min_workers", Operational),
    ("cluster.max_workers", Operational),
    ("cluster.buckets", Operational),
    ("cluster.coordinator", Operational),
    ("cluster.server_addresses", Operational),
    ("cluster.worker_address", Operational),
    ("cluster.collective", Operational),
    ("cluster.admin", Operational),
    ("cluster.timeout_seconds", Operational),
    ("cluster.lease_seconds", Operational),
    // A narrow format rounds rows and gradients.
    ("cluster.wire", Learning),
    ("cluster.server_threads", Operational),
    ("cluster.memory", Operational),
    ("cluster.cold_folder", Operational),
    ("cluster.durability", Operational),
    ("cluster.log_folder", Operational),
    ("cluster.insecure", Operational),
];

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
    let entries = EFFECTS.iter().filter(|(entry, _)| is_within(&key, entry));
    entries.max_by_key(|(entry, _)| entry.len()).map_or(Meaning, |(_, effect)| *effect)
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
    use crate::fixture::{CRITEO, job};
    use crate::shape::{self, ValueShape};

    fn changes(before: &str, now: &str) -> Vec<(String, ChangeEffect)> {
        let changes = job(CRITEO, now).changes_since(&job(CRITEO, before));
        changes.into_iter().map(|change| (change.to_string(), change.effect)).collect()
    }

    /// Dotted keys of the job file. Keys of list items and of tables with a user's name occur once.
    fn all_keys(path: &str, shape: &ValueShape, found: &mut Vec<String>) {
        let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        match shape {
            ValueShape::Table(fields) => {
                fields.iter().for_each(|field| all_keys(&below(&field.name), &field.shape, found))
            }
            ValueShape::Tagged { variants, .. } => {
                found.push(below(shape::TAG));
                for field in variants.iter().flat_map(|variant| &variant.fields) {
                    all_keys(&below(&field.name), &field.shape, found);
                }
            }
            ValueShape::Named(item) => all_keys(&below("any"), item, found),
            _ => found.push(path.to_owned()),
        }
    }

    /// A change that adds a key must state its effect on a run that resumes with another value.
    #[test]
    fn each_key_of_the_job_file_is_classified_and_nothing_else_is() {
        let mut keys = Vec::new();
        all_keys("", &shape::job_shape(), &mut keys);
        let keys: Vec<String> = keys.iter().map(|key| general(key)).collect();
        assert!(keys.len() > 100, "{keys:?}");
        let is_classified = |key: &&String| EFFECTS.iter().any(|(entry, _)| is_within(key, entry));
        let missing: Vec<_> = keys.iter().filter(|key| !is_classified(key)).collect();
        assert!(missing.is_empty(), "what do other values of these mean for a run? {missing:?}");
        let is_used = |entry: &str| keys.iter().any(|key| is_within(key, entry));
        let unknown: Vec<_> = EFFECTS.iter().filter(|(entry, _)| !is_used(entry)).collect();
        assert!(unknown.is_empty(), "no such keys: {unknown:?}");
        let mut names: Vec<_> = EFFECTS.iter().map(|(entry, _)| entry).collect();
        names.sort_unstable();
        assert!(names.is_sorted_by(|one, other| one < other), "one is there twice: {names:?}");
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
