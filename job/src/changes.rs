//! What a run that goes on may change: the job file of the checkpoint beside the one that is given now.

use std::collections::BTreeMap;

use toml::Value;

use crate::{Job, Standardise};

/// Keys that may be another value when a run goes on, and all below them. The others say what is learned from what:
/// rows and weights of one would be nonsense under the other.
const FREE: [&str; 27] = [
    "name",
    "checkpoint",
    "cluster",
    "eval",
    "output",
    // Compared file by file: they may have moved.
    "data.train",
    "data.test",
    "data.validation",
    "data.threads",
    "data.max_bad_rows",
    "data.max_line_bytes",
    "optimizer.lr",
    "optimizer.weight_decay",
    "train.batch_size",
    "train.clip_norm",
    "train.clip_value",
    "train.device",
    "train.early_stop",
    "train.epochs",
    "train.evaluate_every",
    "train.max_steps",
    "train.non_finite",
    "train.precision",
    "train.schedule",
    "train.staleness",
    "train.staleness_total",
    "train.threads",
];

/// The same of tables: below `embedding` and `tables.<name>`.
const FREE_OF_TABLES: [&str; 5] = ["optimizer.lr", "optimizer.weight_decay", "schedule", "clip_norm", "clip_value"];

/// A key of which two jobs have other values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// `train.epochs`.
    pub key: String,
    /// As TOML; `None` where it was not there.
    pub before: Option<String>,
    /// As TOML; `None` where it is not there any more.
    pub now: Option<String>,
    /// Whether a run may go on with it.
    pub allowed: bool,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
        write!(f, "{}: {} → {}", self.key, value(&self.before), value(&self.now))
    }
}

impl Job {
    /// Every key of which this job has another value than `earlier`, by name.
    #[must_use]
    pub fn changes_since(&self, earlier: &Self) -> Vec<Change> {
        let (before, now) = (keys(earlier), keys(self));
        let names: std::collections::BTreeSet<&String> = before.keys().chain(now.keys()).collect();
        let changed = names.into_iter().filter(|name| before.get(*name) != now.get(*name));
        let change = |key: &String| Change {
            key: key.clone(),
            before: before.get(key).cloned(),
            now: now.get(key).cloned(),
            allowed: is_free(key),
        };
        changed.map(change).collect()
    }
}

/// Values by dotted key. A list is one value.
fn keys(job: &Job) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut job = job.clone();
    // What was fitted to the data is no choice of the file's.
    for feature in job.features.numeric.iter_mut().filter(|feature| feature.standardise != Standardise::No) {
        feature.standardise = Standardise::Fit;
    }
    // Where roles listen is different in every run of `zagros up`.
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

fn is_free(key: &str) -> bool {
    let within =
        |key: &str, free: &str| key == free || key.strip_prefix(free).is_some_and(|rest| rest.starts_with('.'));
    let of_table = match key.split_once('.') {
        Some(("embedding", rest)) => Some(rest),
        Some(("tables", rest)) => rest.split_once('.').map(|(_, rest)| rest),
        _ => None,
    };
    match of_table {
        Some(rest) => FREE_OF_TABLES.iter().any(|free| within(rest, free)),
        None => FREE.iter().any(|free| within(key, free)),
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{CRITEO, job};

    fn changes(before: &str, now: &str) -> Vec<(String, bool)> {
        let changes = job(CRITEO, now).changes_since(&job(CRITEO, before));
        changes.into_iter().map(|change| (change.to_string(), change.allowed)).collect()
    }

    #[test]
    fn a_job_has_no_changes_since_itself() {
        let text =
            "validation_share = 0.1\n[train]\nearly_stop = { patience = 3 }\n[tables.C1]\ninit = { kind = 'zero' }\n";
        assert_eq!(changes(text, text), []);
    }

    #[test]
    fn how_long_how_fast_and_on_what_may_change() {
        let before = "[train]\nepochs = 1\n[optimizer]\nlr = 0.01\n[cluster]\nservers = 2\n";
        let now = "[train]\nepochs = 3\nmax_steps = 9\n[optimizer]\nlr = 0.02\n[cluster]\nservers = 3\n";
        let expected = [
            ("cluster.servers: 2 → 3", true),
            ("optimizer.lr: 0.01 → 0.02", true),
            ("train.epochs: 1 → 3", true),
            ("train.max_steps: nothing → 9", true),
        ];
        assert_eq!(changes(before, now), expected.map(|(text, allowed)| (text.to_owned(), allowed)));
    }

    #[test]
    fn what_is_learned_may_not() {
        let refused = |now: &str| changes("", now).into_iter().filter(|(_, allowed)| !allowed).count();
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
            assert!(refused(now) > 0, "{now}");
        }
        assert_eq!(refused("[embedding.optimizer]\nkind = 'adagrad'\nlr = 0.5\n"), 0);
    }
}
