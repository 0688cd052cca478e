//! Keys of `[embedding]` and `[tables]` about rows: how they are stored, which exist, and where they are kept.

use std::collections::{BTreeMap, BTreeSet};

use super::JobResolver;
use crate::document::KeyPath;
use crate::settings::{ClusterSettings, EvictionOrder, StepCount, Table, TableOverrides, TableSettings, TrainSettings};

impl JobResolver<'_> {
    pub(super) fn one_ttl(&mut self, embedding: &TableSettings, settings: &BTreeMap<String, TableOverrides>) {
        let common = (KeyPath::from("embedding"), u64::from(embedding.ttl_steps), u64::from(embedding.ttl_seconds));
        let own = |(name, table): (&String, &TableOverrides)| {
            let path = KeyPath::from("tables").key(name);
            (path, table.number("ttl_steps").unwrap_or(0), table.number("ttl_seconds").unwrap_or(0))
        };
        for (path, steps, seconds) in std::iter::once(common).chain(settings.iter().map(own)) {
            if steps > 0 && seconds > 0 {
                let message = format!("`{path}.ttl_steps` and `{path}.ttl_seconds` exclude each other");
                self.problem(path.key("ttl_seconds"), message, "beside ttl_steps", "keep one of the two");
            }
        }
    }

    /// A rule that all tables break is reported once.
    pub(super) fn retention_fits(
        &mut self,
        tables: &[Table],
        settings: &BTreeMap<String, TableOverrides>,
        cluster: &ClusterSettings,
    ) {
        let mut reported = BTreeSet::new();
        for table in tables {
            let path = section_of(table, settings);
            let by_frequency = matches!(table.evict, EvictionOrder::Lfu { .. });
            if by_frequency && table.ttl_seconds > 0 && reported.insert((path.to_string(), 0)) {
                let message = format!("`{path}` orders eviction by steps, but its time to live is in seconds");
                let help = "give `ttl_steps`, or use evict = { kind = \"lru\" }";
                self.problem(path.key("ttl_seconds"), message, "not in steps", help);
            }
            let keeps_small = table.small_norm > 0.0 && table.eviction_policy().keeps_evicted_rows();
            if keeps_small && cluster.memory.is_none() && reported.insert((path.to_string(), 1)) {
                let message = format!("`{path}.small_norm` sends rows to disk, which needs `cluster.memory`");
                let help = "set `cluster.memory`, or delete the rows with victims = \"drop\"";
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
    use zagros_table::{EvictionPolicy, Ttl};

    use crate::fixture::{DELIMITED, assert_problems_with, job};
    use crate::settings::{EvictionOrder, EvictionTarget, Table, WeightType};

    fn text(rest: &str) -> String {
        format!("[features]\nlabel = 'y'\ncategorical = ['a', 'b']\n{rest}")
    }

    fn tables(rest: &str) -> [Table; 2] {
        job(DELIMITED, &text(rest)).tables.try_into().unwrap()
    }

    #[test]
    fn a_table_differs_in_single_keys() {
        let common = "[embedding]\nelement = 'bf16'\nevict = { kind = 'lfu' }\nsmall_norm = 0.5\nvictims = 'drop'\n";
        let [a, b] = tables(&format!("{common}[tables.b]\nelement = 'f16'\nevict = {{ kind = 'lru' }}\n"));
        let policy = |order| EvictionPolicy { order, ttl: None, small_norm: 0.5, target: EvictionTarget::Drop };
        let order = EvictionOrder::Lfu { half_life: 10_000 };
        assert_eq!((a.element, a.eviction_policy()), (WeightType::Bf16, policy(order)));
        assert_eq!((b.element, b.eviction_policy()), (WeightType::F16, policy(EvictionOrder::Lru)));
    }

    #[test]
    fn rules_of_retention_go_together() {
        let rows = r#"
            [embedding]; evict = { kind = 'lfu' }; ttl_seconds = 5; small_norm = 0.5 => `embedding` orders eviction by steps, but its time to live is in seconds & `embedding.small_norm` sends rows to disk, which needs `cluster.memory`
            [tables.b]; small_norm = 0.5                   => `tables.b.small_norm` sends rows to disk, which needs `cluster.memory`
            [tables.b]; small_norm = 0.5; victims = 'drop' => fine
            [tables.b]; small_norm = 0.5; [cluster]; memory = '1GiB' => fine
            [tables.b]; ttl_steps = 1; ttl_seconds = 1     => `tables.b.ttl_steps` and `tables.b.ttl_seconds` exclude each other
        "#;
        assert_problems_with(DELIMITED, text, rows);
    }

    #[test]
    fn a_table_that_sets_one_time_to_live_replaces_both() {
        let ttl = |own: &str| {
            tables(&format!("[embedding]\nttl_steps = 7\n[tables.b]\n{own}\n")).map(|t| t.eviction_policy().ttl)
        };
        assert_eq!(ttl(""), [Some(Ttl::Steps(7)); 2]);
        assert_eq!(ttl("ttl_seconds = 9"), [Some(Ttl::Steps(7)), Some(Ttl::Seconds(9))]);
        assert_eq!(ttl("ttl_steps = 0"), [Some(Ttl::Steps(7)), None]);
    }
}
