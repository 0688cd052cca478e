//! `[embedding]` and `[tables]`: which feature's rows live where.

use std::collections::{BTreeMap, HashMap};

use super::{Resolver, rows};
use crate::document::Path;
use crate::raw::{self, CategoricalTable};
use crate::spec::{Categorical, Init, Table, TableLimits, TableOptimizer};
use crate::suggest;

impl Resolver<'_> {
    /// Tables in the order in which features first name them: that order gives their ids.
    pub(super) fn tables(
        &mut self,
        features: &[CategoricalTable],
        embedding: &raw::Embedding,
        settings: &BTreeMap<String, raw::Table>,
    ) -> (Vec<Table>, Vec<Categorical>) {
        self.one_ttl(embedding, settings);
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
        limits: TableLimits {
            clip_value: limit(own.clip_value.unwrap_or(common.clip_value)),
            clip_norm: limit(own.clip_norm.unwrap_or(common.clip_norm)),
            weight_bound: limit(own.weight_bound.unwrap_or(common.weight_bound)),
        },
        non_finite: rows::non_finite(own.non_finite.unwrap_or(common.non_finite)),
        element: rows::element(own.element.unwrap_or(common.element)),
        schedule: rows::schedule(own.schedule.unwrap_or(common.schedule)),
        admission: rows::admission(own.admission.unwrap_or(common.admission)),
        retention: rows::retention(common, &own),
    }
}

/// 0 is none, and so is what f32 cannot tell from it.
fn limit(raw: f64) -> Option<f32> {
    Some(raw as f32).filter(|limit| *limit > 0.0)
}

fn init(raw: raw::Init) -> Init {
    match raw {
        raw::Init::Zero => Init::Zero,
        raw::Init::Uniform { bound } => Init::Uniform { bound: bound as f32 },
        raw::Init::Normal { deviation } => Init::Normal { deviation: deviation as f32 },
        raw::Init::TruncatedNormal { deviation } => Init::TruncatedNormal { deviation: deviation as f32 },
        raw::Init::Xavier { rows } => Init::Xavier { rows: rows as f32 },
        raw::Init::Constant { value } => Init::Constant { value: value as f32 },
    }
}

fn optimizer(raw: raw::TableOptimizer) -> TableOptimizer {
    let narrow = |value: f64| value as f32;
    match raw {
        raw::TableOptimizer::Sgd { lr, momentum, l2 } => {
            let [lr, momentum, l2] = [lr, momentum, l2].map(narrow);
            TableOptimizer::Sgd { lr, momentum, l2 }
        }
        raw::TableOptimizer::Adagrad { lr, epsilon, initial_accumulator, l2 } => {
            let [lr, epsilon, initial_accumulator, l2] = [lr, epsilon, initial_accumulator, l2].map(narrow);
            TableOptimizer::Adagrad { lr, epsilon, initial_accumulator, l2 }
        }
        raw::TableOptimizer::RowAdagrad { lr, epsilon, initial_accumulator, l2 } => {
            let [lr, epsilon, initial_accumulator, l2] = [lr, epsilon, initial_accumulator, l2].map(narrow);
            TableOptimizer::RowAdagrad { lr, epsilon, initial_accumulator, l2 }
        }
        raw::TableOptimizer::Adam { lr, beta1, beta2, epsilon, l2 } => {
            let [lr, beta1, beta2, epsilon, l2] = [lr, beta1, beta2, epsilon, l2].map(narrow);
            TableOptimizer::Adam { lr, beta1, beta2, epsilon, l2 }
        }
        raw::TableOptimizer::AdamW { lr, beta1, beta2, epsilon, weight_decay } => {
            let [lr, beta1, beta2, epsilon, weight_decay] = [lr, beta1, beta2, epsilon, weight_decay].map(narrow);
            TableOptimizer::AdamW { lr, beta1, beta2, epsilon, weight_decay }
        }
        raw::TableOptimizer::Ftrl { lr, beta, l1, l2 } => {
            let [lr, beta, l1, l2] = [lr, beta, l1, l2].map(narrow);
            TableOptimizer::Ftrl { lr, beta, l1, l2 }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{DELIMITED, job, problems};
    use crate::spec::{Init, Job, TableLimits, TableOptimizer};

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
    fn a_limit_of_zero_is_none_and_a_table_may_lift_its_own() {
        let rest = "[embedding]\nclip_norm = 2\nweight_bound = 3\n[tables.a]\nclip_norm = 0\nclip_value = 0.5\n";
        let job = job(DELIMITED, &with("'a', 'b'", rest));
        let limits: Vec<TableLimits> = job.tables.iter().map(|table| table.limits).collect();
        let common = TableLimits { clip_value: None, clip_norm: Some(2.0), weight_bound: Some(3.0) };
        assert_eq!(limits, [TableLimits { clip_value: Some(0.5), clip_norm: None, ..common }, common]);
    }

    #[test]
    fn every_optimiser_and_initialiser_has_a_name() {
        let optimizer = |kind: &str| {
            job(DELIMITED, &with("'a'", &format!("[embedding]\noptimizer = {{ kind = '{kind}' }}\n"))).tables[0]
                .optimizer
        };
        assert_eq!(optimizer("sgd"), TableOptimizer::Sgd { lr: 0.1, momentum: 0.0, l2: 0.0 });
        assert!(matches!(optimizer("row_adagrad"), TableOptimizer::RowAdagrad { lr: 0.02, .. }));
        assert!(matches!(optimizer("adam"), TableOptimizer::Adam { lr: 0.001, beta2: 0.999, .. }));
        assert!(matches!(optimizer("adamw"), TableOptimizer::AdamW { weight_decay: 0.01, .. }));
        assert_eq!(optimizer("ftrl"), TableOptimizer::Ftrl { lr: 0.05, beta: 1.0, l1: 0.0, l2: 0.0 });
        let init = |text: &str| job(DELIMITED, &with("'a'", &format!("[embedding]\ninit = {text}\n"))).tables[0].init;
        assert_eq!(init("{ kind = 'truncated_normal' }"), Init::TruncatedNormal { deviation: 0.01 });
        assert_eq!(init("{ kind = 'xavier', rows = 500 }"), Init::Xavier { rows: 500.0 });
        assert_eq!(init("{ kind = 'constant', value = -0.5 }"), Init::Constant { value: -0.5 });
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
