//! `[embedding]` and `[tables]`: the table of each feature, its settings, and which of them go together.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::JobResolver;
use crate::document::KeyPath;
use crate::file::CategoricalFile;
use crate::settings::{
    Categorical, ClusterSettings, EvictionOrder, StepCount, Table, TableOverrides, TableSettings, TrainSettings, Ttl,
    falls_at_once,
};
use crate::suggest;

impl JobResolver<'_> {
    /// Tables in the order in which features first name them: that order gives their ids.
    pub(super) fn resolve_tables(
        &mut self,
        features: &[CategoricalFile],
        embedding: &TableSettings,
        settings: &BTreeMap<String, TableOverrides>,
    ) -> (Vec<Table>, Vec<Categorical>) {
        let mut made = MadeTables { tables: Vec::new(), index: HashMap::new() };
        let mut categorical = Vec::new();
        for (position, feature) in features.iter().enumerate() {
            let path = KeyPath::from("features.categorical").index(position);
            let name = feature.table.clone().unwrap_or_else(|| feature.feature_name());
            self.table_exists(&path, feature, features, settings);
            let table = made.get_or_make(&name, || self.table(&name, embedding, settings.get(&name), feature.dim));
            self.one_dim(&path, feature, &made.tables[table]);
            categorical.push(self.resolve_categorical(&path, feature, table));
        }
        self.all_used(settings, &made, features);
        (made.tables, categorical)
    }

    /// A table. The nearest setting wins: the table's own key, the feature's `dim`, the key of `[embedding]`.
    fn table(&mut self, name: &str, common: &TableSettings, own: Option<&TableOverrides>, dim: Option<usize>) -> Table {
        let common = TableSettings { dim: dim.unwrap_or(common.dim), ..*common };
        let settings = own.map_or(Ok(common), |own| own.apply_to(&common)).unwrap_or_else(|error| {
            self.problem(KeyPath::from("tables").key(name), error.to_string(), "here", "see docs/job-file.md");
            common
        });
        Table { name: name.to_owned(), settings }
    }

    fn table_exists(
        &mut self,
        path: &KeyPath,
        feature: &CategoricalFile,
        features: &[CategoricalFile],
        settings: &BTreeMap<String, TableOverrides>,
    ) {
        let Some(name) = &feature.table else { return };
        let own = features.iter().filter(|feature| feature.table.is_none()).map(CategoricalFile::feature_name);
        let names: Vec<String> = settings.keys().cloned().chain(own).chain([feature.feature_name()]).collect();
        let known: Vec<&str> = names.iter().map(String::as_str).collect();
        if !known.contains(&name.as_str()) {
            let help = suggest::help_with_name(name, &known, "add [tables.<name>] for it; there are");
            self.problem(path.key("table"), format!("no table is named \"{name}\""), "no such table", help);
        }
    }

    fn one_dim(&mut self, path: &KeyPath, feature: &CategoricalFile, table: &Table) {
        if let Some(dim) = feature.dim.filter(|dim| *dim != table.dim) {
            let message = format!(
                "feature \"{}\" asks for dim {dim}, its table \"{}\" has {}",
                feature.feature_name(),
                table.name,
                table.dim
            );
            self.problem(path.key("dim"), message, "another dim", "features that share a table share its dim");
        }
    }

    fn all_used(
        &mut self,
        settings: &BTreeMap<String, TableOverrides>,
        made: &MadeTables,
        features: &[CategoricalFile],
    ) {
        for name in settings.keys().filter(|name| !made.index.contains_key(*name)) {
            let names: Vec<String> = features.iter().map(CategoricalFile::feature_name).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let help =
                suggest::help_with_name(name, &names, "name it as the `table` of a feature; categorical features are");
            let message = format!("no feature uses the table \"{name}\"");
            self.problem(KeyPath::from("tables").key(name), message, "not used", help);
        }
    }
}

struct MadeTables {
    tables: Vec<Table>,
    index: HashMap<String, usize>,
}

impl MadeTables {
    fn get_or_make(&mut self, name: &str, make: impl FnOnce() -> Table) -> usize {
        *self.index.entry(name.to_owned()).or_insert_with(|| {
            self.tables.push(make());
            self.tables.len() - 1
        })
    }
}

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
            if falls_at_once(schedule) && reported.insert(path.to_string()) {
                let message = format!("`{path}.schedule` falls over 0 steps");
                self.problem(path.key("schedule"), message, "at least 1", "give the steps or epochs of the fall");
            }
        }
    }
}

fn section_of(table: &Table, settings: &BTreeMap<String, TableOverrides>) -> KeyPath {
    let own = settings.contains_key(&table.name);
    if own { KeyPath::from("tables").key(&table.name) } else { KeyPath::from("embedding") }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{DELIMITED, assert_problems_with, job};
    use crate::settings::{Initializer, Job, Table};

    fn job_text(categorical: &str, rest: &str) -> String {
        format!("[features]\nlabel = 'y'\ncategorical = [{categorical}]\n{rest}")
    }

    fn dims(job: &Job) -> Vec<(&str, usize)> {
        job.tables.iter().map(|table| (table.name.as_str(), table.dim)).collect()
    }

    #[test]
    fn tables_are_numbered_as_features_name_them() {
        let features =
            "'b', { column = 'a', table = 'z' }, { column = 'n', table = 'b' }, { column = 'c', table = 'z' }";
        let job = job(DELIMITED, &job_text(features, "[tables.z]\n"));
        assert_eq!(dims(&job), [("b", 16), ("z", 16)]);
        let tables: Vec<usize> = job.features.categorical.iter().map(|feature| feature.table).collect();
        assert_eq!(tables, [0, 1, 0, 1]);
    }

    #[test]
    fn the_nearest_setting_wins() {
        let rest = "[embedding]\ndim = 4\ninit = { kind = 'zero' }\n[tables.a]\ndim = 8\n\
            [tables.b]\ninit = { kind = 'normal', deviation = 2 }\n";
        let job = job(DELIMITED, &job_text("'a', 'b', { column = 'c', dim = 2 }", rest));
        assert_eq!(dims(&job), [("a", 8), ("b", 4), ("c", 2)]);
        let inits: Vec<Initializer> = job.tables.iter().map(|table| table.init).collect();
        assert_eq!(inits, [Initializer::Zero, Initializer::Normal { deviation: 2.0 }, Initializer::Zero]);
    }

    #[test]
    fn a_limit_of_zero_means_none_and_a_table_may_remove_its_own() {
        let rest = "[embedding]\nclip_norm = 2\nweight_bound = 3\n[tables.a]\nclip_norm = 0\nclip_value = 0.5\n";
        let job = job(DELIMITED, &job_text("'a', 'b'", rest));
        let limits = |table: &Table| [table.clip_value, table.clip_norm, table.weight_bound];
        assert_eq!([limits(&job.tables[0]), limits(&job.tables[1])], [[0.5, 0.0, 3.0], [0.0, 2.0, 3.0]]);
    }

    /// A table that exists nowhere else would be a new one after a typing mistake.
    #[test]
    fn a_shared_table_has_one_dim_and_a_user() {
        let agreed = "{ column = 'a', table = 's', dim = 4 }, { column = 'b', table = 's', dim = 4 }";
        assert_eq!(dims(&job(DELIMITED, &job_text(agreed, "[tables.s]\n"))), [("s", 4)]);
        let rows = r#"
            { column = 'a', table = 's', dim = 2 }, { column = 'b', table = 's', dim = 4 } => feature "b" asks for dim 4, its table "s" has 2
        "#;
        assert_problems_with(DELIMITED, |features| job_text(features, "[tables.s]"), rows);
    }
}

#[cfg(test)]
mod row_tests {
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
            [tables.b]; eviction.ttl = { hours = 1 } => unknown key `tables.b.eviction.ttl.hours`
        "#;
        assert_problems_with(DELIMITED, text, rows);
    }
}
