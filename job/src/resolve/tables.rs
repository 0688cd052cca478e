//! `[embedding]` and `[tables]`: which feature's rows live where.

use std::collections::{BTreeMap, HashMap};

use super::Resolver;
use crate::document::Path;
use crate::raw::{self, CategoricalTable};
use crate::spec::{Categorical, Init, Table, TableOptimizer};
use crate::suggest;

impl Resolver<'_> {
    /// Tables in the order in which features first name them: that order gives their ids.
    pub(super) fn tables(
        &mut self,
        features: &[CategoricalTable],
        embedding: &raw::Embedding,
        settings: &BTreeMap<String, raw::Table>,
    ) -> (Vec<Table>, Vec<Categorical>) {
        let mut made = Made { tables: Vec::new(), index: HashMap::new() };
        let mut categorical = Vec::new();
        for (position, feature) in features.iter().enumerate() {
            let path = Path::from("features.categorical").index(position);
            let name = feature.table.as_deref().unwrap_or(&feature.column);
            self.table_exists(&path, feature, features, settings);
            let table = made.get_or_make(name, || table(name, embedding, settings.get(name), feature.dim));
            self.one_dim(&path, feature, &made.tables[table]);
            categorical.push(Categorical {
                column: feature.column.clone(),
                table,
                values: self.values(&path, feature),
            });
        }
        self.all_used(settings, &made, features);
        (made.tables, categorical)
    }

    fn table_exists(
        &mut self,
        path: &Path,
        feature: &CategoricalTable,
        features: &[CategoricalTable],
        settings: &BTreeMap<String, raw::Table>,
    ) {
        let Some(name) = &feature.table else { return };
        let own = features.iter().filter(|feature| feature.table.is_none()).map(|feature| feature.column.as_str());
        let mut known: Vec<&str> = settings.keys().map(String::as_str).chain(own).collect();
        known.push(&feature.column);
        if !known.contains(&name.as_str()) {
            let help = suggest::name(name, &known, "add [tables.<name>] for it; there are");
            self.problem(path.key("table"), format!("no table is named \"{name}\""), "no such table", help);
        }
    }

    fn one_dim(&mut self, path: &Path, feature: &CategoricalTable, table: &Table) {
        if let Some(dim) = feature.dim.filter(|dim| *dim != table.dim) {
            let message = format!(
                "feature \"{}\" asks for dim {dim}, its table \"{}\" has {}",
                feature.column, table.name, table.dim
            );
            self.problem(path.key("dim"), message, "another dim", "features that share a table share its dim");
        }
    }

    fn all_used(&mut self, settings: &BTreeMap<String, raw::Table>, made: &Made, features: &[CategoricalTable]) {
        for name in settings.keys().filter(|name| !made.index.contains_key(*name)) {
            let columns: Vec<&str> = features.iter().map(|feature| feature.column.as_str()).collect();
            let help = suggest::name(name, &columns, "name it as the `table` of a feature; categorical features are");
            let message = format!("no feature uses the table \"{name}\"");
            self.problem(Path::from("tables").key(name), message, "not used", help);
        }
    }
}

/// Tables made so far.
struct Made {
    tables: Vec<Table>,
    index: HashMap<String, usize>,
}

impl Made {
    fn get_or_make(&mut self, name: &str, make: impl FnOnce() -> Table) -> usize {
        *self.index.entry(name.to_owned()).or_insert_with(|| {
            self.tables.push(make());
            self.tables.len() - 1
        })
    }
}

fn table(name: &str, common: &raw::Embedding, own: Option<&raw::Table>, dim: Option<usize>) -> Table {
    let own = own.copied().unwrap_or_default();
    Table {
        name: name.to_owned(),
        dim: own.dim.or(dim).unwrap_or(common.dim),
        init: init(own.init.unwrap_or(common.init)),
        optimizer: optimizer(own.optimizer.unwrap_or(common.optimizer)),
    }
}

fn init(raw: raw::Init) -> Init {
    match raw {
        raw::Init::Zero => Init::Zero,
        raw::Init::Uniform { bound } => Init::Uniform { bound: bound as f32 },
        raw::Init::Normal { deviation } => Init::Normal { deviation: deviation as f32 },
    }
}

fn optimizer(raw: raw::TableOptimizer) -> TableOptimizer {
    match raw {
        raw::TableOptimizer::Sgd { lr, l2 } => TableOptimizer::Sgd { lr: lr as f32, l2: l2 as f32 },
        raw::TableOptimizer::Adagrad { lr, epsilon, initial_accumulator, l2 } => TableOptimizer::Adagrad {
            lr: lr as f32,
            epsilon: epsilon as f32,
            initial_accumulator: initial_accumulator as f32,
            l2: l2 as f32,
        },
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{DELIMITED, job, problems};
    use crate::spec::{Init, Job};

    fn with(categorical: &str, rest: &str) -> String {
        format!("[features]\nlabel = 'y'\ncategorical = [{categorical}]\n{rest}")
    }

    fn dims(job: &Job) -> Vec<(&str, usize)> {
        job.tables.iter().map(|table| (table.name.as_str(), table.dim)).collect()
    }

    #[test]
    fn tables_are_numbered_as_features_name_them() {
        let features =
            "'b', { column = 'a', table = 'z' }, { column = 'n', table = 'b' }, { column = 'c', table = 'z' }";
        let job = job(DELIMITED, &with(features, "[tables.z]\n"));
        assert_eq!(dims(&job), [("b", 16), ("z", 16)]);
        let tables: Vec<usize> = job.features.categorical.iter().map(|feature| feature.table).collect();
        assert_eq!(tables, [0, 1, 0, 1]);
    }

    #[test]
    fn the_nearest_setting_wins() {
        let rest = "[embedding]\ndim = 4\ninit = { kind = 'zero' }\n[tables.a]\ndim = 8\n\
            [tables.b]\ninit = { kind = 'normal', deviation = 2 }\n";
        let job = job(DELIMITED, &with("'a', 'b', { column = 'c', dim = 2 }", rest));
        assert_eq!(dims(&job), [("a", 8), ("b", 4), ("c", 2)]);
        let inits: Vec<Init> = job.tables.iter().map(|table| table.init).collect();
        assert_eq!(inits, [Init::Zero, Init::Normal { deviation: 2.0 }, Init::Zero]);
    }

    #[test]
    fn a_shared_table_has_one_dim() {
        let agreed = "{ column = 'a', table = 's', dim = 4 }, { column = 'b', table = 's', dim = 4 }";
        assert_eq!(dims(&job(DELIMITED, &with(agreed, "[tables.s]\n"))), [("s", 4)]);
        let found = problems(DELIMITED, &with(&agreed.replace("'s', dim = 4 }, ", "'s', dim = 2 }, "), "[tables.s]\n"));
        assert_eq!(found, ["feature \"b\" asks for dim 4, its table \"s\" has 2"]);
    }

    /// A typing mistake would otherwise quietly make a table that nothing shares.
    #[test]
    fn a_shared_table_has_to_exist() {
        let text = with("'a', { column = 'b', table = 'aa' }", "");
        assert_eq!(problems(DELIMITED, &text), ["no table is named \"aa\""]);
    }

    #[test]
    fn settings_that_no_feature_uses_are_refused() {
        assert_eq!(problems(DELIMITED, &with("'a'", "[tables.b]\n")), ["no feature uses the table \"b\""]);
    }
}
