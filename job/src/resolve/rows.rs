//! Keys of `[embedding]` and `[tables]` about rows: how they are stored, which exist, and where they are kept.

use std::collections::{BTreeMap, BTreeSet};

use super::JobResolver;
use crate::document::KeyPath;
use crate::settings::{ClusterSettings, EvictionOrder, StepCount, Table, TableOverrides, TrainSettings, Ttl};

impl JobResolver<'_> {
    /// A rule that all tables break is reported once.
    pub(super) fn eviction_fits(
        &mut self,
        tables: &[Table],
        settings: &BTreeMap<String, TableOverrides>,
        cluster: &ClusterSettings,
    ) {
        let mut reported = BTreeSet::new();
        for table in tables {
            let (path, eviction) = (section_of(table, settings).key("eviction"), table.eviction);
            let by_frequency = matches!(eviction.order, EvictionOrder::Lfu { .. });
            let by_seconds = matches!(eviction.ttl, Some(Ttl::Seconds(_)));
            if by_frequency && by_seconds && reported.insert((path.to_string(), 0)) {
                let message = format!("`{path}` orders rows by steps, but their time to live is in seconds");
                let help = "give ttl = { steps = … }, or use order = { kind = \"lru\" }";
                self.problem(path.key("ttl"), message, "not in steps", help);
            }
            let keeps_small = eviction.small_norm > 0.0 && eviction.keeps_evicted_rows();
            if keeps_small && cluster.memory.is_none() && reported.insert((path.to_string(), 1)) {
                let message = format!("`{path}.small_norm` sends rows to disk, which needs `cluster.memory`");
                let help = "set `cluster.memory`, or delete the rows with target = \"drop\"";
                self.problem(path.key("small_norm"), message, "no memory limit", help);
            }
        }
    }

    /// Steps may also be given in epochs, and so have no least value of their own.
    pub(super) fn steps_fit(
        &mut self,
        train: &TrainSettings,
        tables: &[Table],
        settings: &BTreeMap<String, TableOverrides>,
    ) {
        if train.evaluate_every == Some(StepCount::Steps(0)) {
            let help = "give at least 1, or remove the key: an evaluation follows every epoch in any case";
            self.problem("train.evaluate_every", "`train.evaluate_every` is 0", "not even one step", help);
        }
        let tables = tables.iter().map(|table| (section_of(table, settings), table.schedule));
        let mut reported = BTreeSet::new();
        for (path, schedule) in std::iter::once((KeyPath::from("train"), train.updates.schedule)).chain(tables) {
            if schedule.falls_at_once() && reported.insert(path.to_string()) {
                let message = format!("`{path}.schedule` falls over 0 steps");
                self.problem(path.key("schedule"), message, "at least 1", "give the steps or epochs of the fall");
            }
        }
    }
}

/// The keys that set a table: its own, or those of all.
fn section_of(table: &Table, settings: &BTreeMap<String, TableOverrides>) -> KeyPath {
    let own = settings.contains_key(&table.name);
    if own { KeyPath::from("tables").key(&table.name) } else { KeyPath::from("embedding") }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{DELIMITED, assert_problems_with, job};
    use crate::settings::{EvictionOrder, EvictionPolicy, EvictionTarget, Table, Ttl, WeightType};

    fn text(rest: &str) -> String {
        format!("[features]\nlabel = 'y'\ncategorical = ['a', 'b']\n{rest}")
    }

    fn tables(rest: &str) -> [Table; 2] {
        job(DELIMITED, &text(rest)).tables.try_into().unwrap()
    }

    #[test]
    fn a_table_differs_in_single_keys() {
        let common = "[embedding]\nelement = 'bf16'\neviction = { order = { kind = 'lfu' }, target = 'drop' }\n";
        let [a, b] = tables(&format!("{common}[tables.b]\nelement = 'f16'\neviction = {{ ttl = {{ steps = 7 }} }}\n"));
        let order = EvictionOrder::Lfu { half_life: 10_000 };
        let dropped = EvictionPolicy { order, target: EvictionTarget::Drop, ..EvictionPolicy::default() };
        assert_eq!((a.element, a.eviction), (WeightType::Bf16, dropped));
        let forgotten = EvictionPolicy { ttl: Some(Ttl::Steps(7)), ..EvictionPolicy::default() };
        assert_eq!((b.element, b.eviction), (WeightType::F16, forgotten));
    }

    #[test]
    fn rules_of_eviction_go_together() {
        let rows = r#"
            [embedding]; eviction = { order = { kind = 'lfu' }, ttl = { seconds = 5 }, small_norm = 0.5 } => `embedding.eviction` orders rows by steps, but their time to live is in seconds & `embedding.eviction.small_norm` sends rows to disk, which needs `cluster.memory`
            [tables.b]; eviction.small_norm = 0.5 => `tables.b.eviction.small_norm` sends rows to disk, which needs `cluster.memory`
            [tables.b]; eviction = { small_norm = 0.5, target = 'drop' } => fine
            [tables.b]; eviction.small_norm = 0.5; [cluster]; memory = '1GiB' => fine
            [tables.b]; eviction.ttl = { steps = 1, seconds = 1 } => unknown key `tables.b.eviction.ttl.seconds`
            [tables.b]; eviction.ttl = { seconds = 0 } => …out of range
        "#;
        assert_problems_with(DELIMITED, text, rows);
    }
}
