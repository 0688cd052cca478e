//! `[model]`, `[optimizer]` and `[train]`.

use super::{Resolver, eval};
use crate::document::Path;
use crate::raw;
use crate::spec::{DenseOptimizer, Features, Mode, Model, Table, Train};
use crate::threads;

/// Batches in flight when the job does not say: enough to hide a lookup behind the steps before it.
const HYBRID_STALENESS: usize = 4;

/// The network, whose widths the schema has checked.
pub(super) fn network(raw: raw::Model) -> Model {
    match raw {
        raw::Model::Dlrm { bottom, top, dropout } => Model::Dlrm { bottom, top, dropout },
        raw::Model::Ffnn { hidden, dropout } => Model::Ffnn { hidden, dropout },
    }
}

/// The dense optimiser, whose numbers the schema has checked.
pub(super) fn optimizer(raw: raw::DenseOptimizer) -> DenseOptimizer {
    match raw {
        raw::DenseOptimizer::Adam { lr, weight_decay } => DenseOptimizer::Adam { lr, weight_decay },
        raw::DenseOptimizer::Sgd { lr, momentum, weight_decay } => DenseOptimizer::Sgd { lr, momentum, weight_decay },
    }
}

impl Resolver<'_> {
    /// Whether features and tables fit the network.
    pub(super) fn model(&mut self, raw: &raw::Model, features: &Features, tables: &[Table]) {
        if matches!(raw, raw::Model::Dlrm { .. }) {
            self.dlrm_needs_one_dim(features, tables);
            if features.numeric.is_empty() {
                let help = r#"list columns under `features.numeric`, or use [model] kind = "ffnn""#;
                self.problem(
                    "model.kind",
                    "a DLRM needs a numeric feature for its bottom MLP",
                    "no numeric feature",
                    help,
                );
            }
        }
    }

    fn dlrm_needs_one_dim(&mut self, features: &Features, tables: &[Table]) {
        let Some(first) = tables.first() else { return };
        for table in tables.iter().filter(|table| table.dim != first.dim) {
            let message = format!(
                "a DLRM needs tables of one dim: \"{}\" has {}, \"{}\" has {}",
                first.name, first.dim, table.name, table.dim
            );
            let help = r#"give all tables the same `dim`, or use [model] kind = "ffnn""#;
            self.problem(self.dim_of(table, features, tables), message, "another dim", help);
        }
    }

    /// The key that gave a table its dim.
    fn dim_of(&self, table: &Table, features: &Features, tables: &[Table]) -> Path {
        let own = Path::from("tables").key(&table.name).key("dim");
        let written = |path: &Path| self.context.document.find(path).is_some();
        let uses = |index: &usize| tables[features.categorical[*index].table].name == table.name;
        let of_feature = |index| Path::from("features.categorical").index(index).key("dim");
        let candidates = (0..features.categorical.len()).filter(uses).map(of_feature);
        std::iter::once(own).chain(candidates).find(written).unwrap_or_else(|| Path::from("embedding.dim"))
    }

    pub(super) fn train(&mut self, raw: &raw::Train) -> Train {
        let sync = raw.mode == raw::Mode::Sync;
        if sync && raw.staleness.is_some_and(|staleness| staleness > 0) {
            let help = "set it to 0 or remove it, or use mode = \"hybrid\"";
            self.problem("train.staleness", "mode \"sync\" allows no staleness", "must be 0", help);
        }
        let planned = threads::plan(self.context.cores).torch;
        Train {
            batch_size: raw.batch_size,
            epochs: raw.epochs,
            mode: if sync { Mode::Sync } else { Mode::Hybrid },
            staleness: raw.staleness.unwrap_or(if sync { 0 } else { HYBRID_STALENESS }),
            seed: raw.seed,
            threads: if raw.threads == 0 { planned } else { raw.threads },
            max_steps: raw.max_steps,
            evaluate_every: raw.evaluate_every,
            early_stop: raw.early_stop.map(eval::early_stop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{CRITEO, job, problems};

    #[test]
    fn staleness_follows_the_mode() {
        let staleness = |train: &str| job(CRITEO, &format!("[train]\n{train}\n")).train.staleness;
        assert_eq!(staleness(""), HYBRID_STALENESS);
        assert_eq!(staleness("mode = 'sync'"), 0);
        assert_eq!(staleness("staleness = 0"), 0);
        assert_eq!(staleness("mode = 'sync'\nstaleness = 0"), 0);
        let found = problems(CRITEO, "[train]\nmode = 'sync'\nstaleness = 1\n");
        assert_eq!(found, ["mode \"sync\" allows no staleness"]);
    }

    #[test]
    fn threads_are_planned_unless_given() {
        let planned = threads::plan(threads::cores());
        let automatic = job(CRITEO, "");
        assert_eq!((automatic.data.threads, automatic.train.threads), (planned.parse, planned.torch));
        let given = job(CRITEO, "threads = 5\n[train]\nthreads = 6\n");
        assert_eq!((given.data.threads, given.train.threads), (5, 6));
    }

    #[test]
    fn the_default_network_is_a_dlrm() {
        assert_eq!(job(CRITEO, "").model, job(CRITEO, "[model]\nkind = 'dlrm'\n").model);
        assert!(
            matches!(job(CRITEO, "[model]\nkind = 'ffnn'\nhidden = []\n").model, Model::Ffnn { hidden, .. } if hidden.is_empty())
        );
    }

    #[test]
    fn every_table_of_another_dim_is_named_to_a_dlrm() {
        let text = "[tables]\nC2 = { dim = 8 }\nC7 = { dim = 4 }\n";
        let expected = ["\"C1\" has 16, \"C2\" has 8", "\"C1\" has 16, \"C7\" has 4"];
        let expected = expected.map(|dims| format!("a DLRM needs tables of one dim: {dims}"));
        assert_eq!(problems(CRITEO, text), expected);
        assert_eq!(job(CRITEO, &format!("{text}[model]\nkind = 'ffnn'\n")).tables[6].dim, 4);
    }
}
