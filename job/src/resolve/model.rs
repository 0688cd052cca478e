//! `[model]`, `[optimizer]` and `[train]`.

use super::Resolver;
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
        }
    }
}
