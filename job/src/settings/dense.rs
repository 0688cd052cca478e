//! The dense network as rows of tables at the embedding servers.
//!
//! In mode `async` one more table holds the changes of all weights. Where weights are streamed, each layer has a table whose
//! rows are tiles: contiguous blocks of the layer's weights.

use zagros_table::optimizer::dense::Staging;
use zagros_table::{Initializer, Optimizer, TableConfig};

use super::{
    DenseOptimizer, Job, Mode, NonFinitePolicy, StreamedLayer, StreamedTensor, Table, TableSettings, WeightStore,
};

/// Name of the table that holds the dense network's weights in mode `async`. No feature's table may have this name.
pub const DENSE_TABLE: &str = "(dense)";

/// Weights per row: few enough rows for a fast lookup, and enough rows to spread over servers.
const DIM: usize = 256;

/// Stripes of a table of tiles: a request has few tiles, and each takes long.
const TILE_STRIPES: usize = 4;

#[derive(Clone, Debug, PartialEq)]
pub struct ServerTable {
    pub name: String,
    pub config: TableConfig,
}

pub fn is_dense_table(name: &str) -> bool {
    name.starts_with(DENSE_TABLE)
}

impl Job {
    /// In mode `async`, the table after those of the features. Its rows hold the difference between the dense network's
    /// weights and the first ones, which every worker makes from the seed. Clipping and the coupled decay act before
    /// that, at the worker.
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

    /// All tables of a server in the order of their ids: the features' tables, then those of the dense network, if there are any.
    pub fn server_tables(&self) -> Vec<ServerTable> {
        let server_table = |table: Table| ServerTable { config: table.table_config(), name: table.name };
        let rows = self.tables.iter().cloned().chain(self.dense_table()).map(server_table);
        let layers = self.streamed_layers();
        rows.chain(layers.iter().flat_map(|layer| &layer.tensors).map(|tensor| self.tile_table(tensor))).collect()
    }

    /// The layers whose weights are streamed; none where they are not.
    pub fn streamed_layers(&self) -> Vec<StreamedLayer> {
        match self.train.weights {
            WeightStore::Streamed => self.dense_layers().unwrap_or_default(),
            WeightStore::Auto | WeightStore::Resident => Vec::new(),
        }
    }

    /// Staged until those of all layers are known: to be clipped by their norm, or so that none of a bad batch is
    /// applied.
    pub fn gradient_staging(&self) -> Staging {
        let waits = self.train.updates.clip_norm.is_some() || self.train.updates.non_finite == NonFinitePolicy::Skip;
        if waits { Staging::UNTIL_COMMIT } else { Staging::None }
    }

    fn tile_table(&self, StreamedTensor { segment, tiles, .. }: &StreamedTensor) -> ServerTable {
        let rule = self.dense_optimizer;
        let config = TableConfig {
            dim: tiles.dim,
            init: segment.initializer(),
            optimizer: Optimizer::Dense {
                lr: rule.learning_rate(),
                factor: segment.lr_factor as f32,
                rule,
                staging: self.gradient_staging(),
            },
            schedule: self.train.updates.schedule.in_steps(),
            stripes: TILE_STRIPES,
            ..TableConfig::default()
        };
        ServerTable { name: format!("{DENSE_TABLE} {}", segment.tensor.name), config }
    }
}

/// The rule has no decay: decay acts on weights, and rows hold differences.
fn table_optimizer(optimizer: DenseOptimizer) -> Optimizer {
    match optimizer {
        DenseOptimizer::Adam { lr, .. } | DenseOptimizer::AdamW { lr, .. } => {
            Optimizer::Adam { lr: lr as f32, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, l2: 0.0 }
        }
        DenseOptimizer::Adagrad { lr, epsilon, initial_accumulator, .. } => {
            let [lr, epsilon, initial_accumulator] = [lr, epsilon, initial_accumulator].map(|value| value as f32);
            Optimizer::Adagrad { lr, epsilon, initial_accumulator, l2: 0.0 }
        }
        DenseOptimizer::Sgd { lr, momentum, .. } => {
            Optimizer::Sgd { lr: lr as f32, momentum: momentum as f32, l2: 0.0 }
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
        let text = "[train]\nmode = 'async'\nschedule = { kind = 'step', every = 7 }\n[optimizer]\nkind = 'sgd'\nlr = 0.5\nmomentum = 0.25\n";
        let job = job(CRITEO, text);
        let tables = job.server_tables();
        assert_eq!(tables.len(), job.tables.len() + 1);
        let ServerTable { name, config } = tables.last().unwrap();
        assert_eq!((name.as_str(), config.init, config.element), (DENSE_TABLE, Initializer::Zero, WeightType::F32));
        assert_eq!(config.optimizer, Optimizer::Sgd { lr: 0.5, momentum: 0.25, l2: 0.0 });
        assert_eq!(config.schedule, job.train.updates.schedule.in_steps());
    }

    #[test]
    fn each_streamed_tensor_has_a_table_of_tiles() {
        let text = "[model]\nkind = 'ffnn'\nhidden = [400, 8]\n[train]\nweights = 'streamed'\nmode = 'sync'\n";
        let job = job(CRITEO, text);
        let (tables, layers) = (job.server_tables(), job.dense_layers().unwrap());
        let tensors: Vec<&StreamedTensor> = layers.iter().flat_map(|layer| &layer.tensors).collect();
        assert_eq!(tables.len(), job.tables.len() + tensors.len());
        for tensor in &tensors {
            let ServerTable { name, config } = &tables[tensor.table as usize];
            assert_eq!((config.dim, name), (tensor.tiles.dim, &format!("(dense) {}", tensor.segment.tensor.name)));
            assert_eq!(config.init, tensor.segment.initializer());
            assert!(is_dense_table(name) && tensor.tiles.dim * tensor.tiles.count >= tensor.segment.range.len());
        }
        assert_eq!((tensors[0].tiles.count, tensors[0].segment.range.len()), (3, 429 * 400));
    }
}
