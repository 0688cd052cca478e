//! Which settings may change when a run resumes: compares the job file of the checkpoint with the present one.

use std::collections::BTreeMap;

use toml::Value;

use crate::Job;
use crate::shape::{self, ValueShape};

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
    use crate::fixture::{CRITEO, job};

    fn changes(before: &str, now: &str) -> Vec<(String, ChangeEffect)> {
        let changes = job(CRITEO, now).changes_since(&job(CRITEO, before));
        changes.into_iter().map(|change| (change.to_string(), change.effect)).collect()
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
