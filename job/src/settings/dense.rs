//! Mode `async`: the dense network as rows of one more table, and the staleness that a worker may have.

use zagros_table::Initializer;

use super::{DenseOptimizer, Job, Mode, Table, TableOptimizer, TableSettings};

/// Name of the table that holds the dense network's weights in mode `async`. No feature's table may have this name.
pub const DENSE_TABLE: &str = "(dense)";

/// Weights per row: few enough rows for a fast lookup, and enough rows to spread over servers.
const DIM: usize = 256;

impl Job {
    /// In mode `async`, the table after those of the features. Its rows are 0 .. weights / dim, rounded up. They hold the
    /// difference between the dense network's weights and the first ones, which every worker makes from the seed. The table
    /// learns by the job's dense optimiser. Clipping and the coupled decay act before that, at the worker.
    #[must_use]
    pub fn dense_table(&self) -> Option<Table> {
        let settings = TableSettings {
            dim: DIM,
            init: Initializer::Zero,
            optimizer: table_optimizer(self.dense_optimizer),
            schedule: self.train.updates.schedule,
            ..TableSettings::default()
        };
        (self.train.mode == Mode::Async).then(|| Table { name: DENSE_TABLE.to_owned(), settings })
    }

    /// All tables of a server in the order of their ids: the features' tables, and the dense table if there is one.
    #[must_use]
    pub fn server_tables(&self) -> Vec<Table> {
        self.tables.iter().cloned().chain(self.dense_table()).collect()
    }

    /// τ of each worker: its own bound, or its share of the bound of all workers if that is less. If each of n workers has
    /// τ, a lookup misses at most τ of its own batches and τ + 1 of each other worker, n·(τ + 1) − 1 in all.
    #[must_use]
    pub fn staleness(&self) -> usize {
        let share = |total: usize| ((total + 1) / self.cluster.most_workers().max(1) as usize).saturating_sub(1);
        self.train.staleness_total.map_or(self.train.staleness, |total| share(total).min(self.train.staleness))
    }
}

/// The same rule with the constants of the dense optimiser, but without decay: decay acts on weights, and rows hold
/// differences.
fn table_optimizer(optimizer: DenseOptimizer) -> TableOptimizer {
    match optimizer {
        DenseOptimizer::Adam { lr, .. } | DenseOptimizer::AdamW { lr, .. } => {
            TableOptimizer::Adam { lr: lr as f32, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, l2: 0.0 }
        }
        DenseOptimizer::Adagrad { lr, epsilon, initial_accumulator, .. } => {
            let [lr, epsilon, initial_accumulator] = [lr, epsilon, initial_accumulator].map(|value| value as f32);
            TableOptimizer::Adagrad { lr, epsilon, initial_accumulator, l2: 0.0 }
        }
        DenseOptimizer::Sgd { lr, momentum, .. } => {
            TableOptimizer::Sgd { lr: lr as f32, momentum: momentum as f32, l2: 0.0 }
        }
    }
}

#[cfg(test)]
mod tests {
    use zagros_table::WeightType;

    use super::*;
    use crate::fixture::{CRITEO, job};

    #[test]
    fn only_mode_async_has_a_table_of_the_dense_network() {
        assert!(job(CRITEO, "").dense_table().is_none());
        let job = job(
            CRITEO,
            "[train]\nmode = 'async'\nschedule = { kind = 'step', every = 7 }\n[optimizer]\nkind = 'sgd'\nlr = 0.5\nmomentum = 0.25\n",
        );
        let tables = job.server_tables();
        assert_eq!(tables.len(), job.tables.len() + 1);
        let dense = tables.last().unwrap();
        assert_eq!((dense.name.as_str(), dense.init, dense.element), (DENSE_TABLE, Initializer::Zero, WeightType::F32));
        assert_eq!(dense.optimizer, TableOptimizer::Sgd { lr: 0.5, momentum: 0.25, l2: 0.0 });
        assert_eq!(dense.schedule, job.train.updates.schedule);
    }

    #[test]
    fn workers_share_the_total_staleness() {
        let staleness = |text: &str| job(CRITEO, text).staleness();
        assert_eq!(staleness("[train]\nstaleness = 7\n"), 7);
        for (total, expected) in [(2, 0), (4, 0), (5, 1), (8, 2), (100, 7)] {
            let text = format!("[train]\nstaleness = 7\nstaleness_total = {total}\n[cluster]\nworkers = 3\n");
            let found = staleness(&text);
            assert_eq!(found, expected, "{total}");
            assert!(3 * (found + 1) - 1 <= total, "{total}");
        }
        assert_eq!(staleness("[train]\nstaleness_total = 2\n"), 2);
    }
}
