//! From the job's tables to the tables of a server.

mod rows;

use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};
use zagros_job::{Init, Job, Table, TableLimits, TableOptimizer};
use zagros_table::{Capacity, ColdStore, DEFAULT_STRIPES, Initializer, Limits, Optimizer, TableConfig, TableSet};

use crate::ServerError;
use crate::tier::{ColdTier, MemoryBudget};

/// Of the memory for rows, at most one part in this many is for those that stripes hold whatever the budget says.
const FLOOR_SHARE: usize = 4;

/// What a server makes a table of the job from.
#[must_use]
pub fn table_config(table: &Table) -> TableConfig {
    TableConfig {
        dim: table.dim,
        init: initializer(table.init),
        optimizer: optimizer(table.optimizer),
        limits: limits(table.limits),
        non_finite: rows::non_finite(table.non_finite),
        element: rows::element(table.element),
        schedule: rows::schedule(table.schedule),
        admission: rows::admission(table.admission),
        retention: rows::retention(table.retention),
        ..TableConfig::default()
    }
}

/// What a server makes its tables from, in order.
pub(crate) fn table_configs(job: &Job) -> Vec<TableConfig> {
    let mut configs: Vec<TableConfig> = job.server_tables().iter().map(table_config).collect();
    if let Some(memory) = MemoryBudget::of(job) {
        let stripes = stripes_within(memory.rows / FLOOR_SHARE, &configs);
        configs.iter_mut().for_each(|config| config.stripes = stripes);
    }
    configs
}

/// Stripes of each table: as many as usual, unless the rows that each of them holds whatever the budget says would
/// take more than these bytes.
fn stripes_within(bytes: usize, configs: &[TableConfig]) -> usize {
    let floor: usize = configs.iter().map(TableConfig::stripe_floor).sum();
    let most = (bytes / floor.max(1)).clamp(1, DEFAULT_STRIPES);
    1 << most.ilog2()
}

/// Empty tables, within the memory that the job gives a server.
pub(crate) fn make_tables(job: &Job, configs: &[TableConfig], tier: Option<ColdTier>) -> Result<TableSet, ServerError> {
    let capacity = Capacity {
        budget: MemoryBudget::of(job).map(|memory| memory.rows),
        cold: tier.map(|tier| tier as Arc<dyn ColdStore>),
        nanos: Some(nanos),
        timeout: Some(job.cluster.timeout),
    };
    TableSet::new(job.train.seed, configs, capacity).map_err(|source| {
        let table = source.table().and_then(|table| job.server_tables().into_iter().nth(table as usize));
        ServerError::Table { name: table.map(|table| table.name).unwrap_or_default(), source }
    })
}

/// A clock that never goes back.
fn nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

fn initializer(init: Init) -> Initializer {
    match init {
        Init::Zero => Initializer::Zero,
        Init::Uniform { bound } => Initializer::Uniform { bound },
        Init::Normal { deviation } => Initializer::Normal { deviation },
        Init::TruncatedNormal { deviation } => Initializer::TruncatedNormal { deviation },
        Init::Xavier { rows } => Initializer::Xavier { rows },
        Init::Constant { value } => Initializer::Constant { value },
    }
}

fn optimizer(optimizer: TableOptimizer) -> Optimizer {
    match optimizer {
        TableOptimizer::Sgd { lr, momentum: 0.0, l2 } => Optimizer::Sgd { lr, l2 },
        TableOptimizer::Sgd { lr, momentum, l2 } => Optimizer::Momentum { lr, momentum, l2 },
        TableOptimizer::Adagrad { lr, epsilon, initial_accumulator, l2 } => {
            Optimizer::Adagrad { lr, epsilon, initial_accumulator, l2 }
        }
        TableOptimizer::RowAdagrad { lr, epsilon, initial_accumulator, l2 } => {
            Optimizer::RowAdagrad { lr, epsilon, initial_accumulator, l2 }
        }
        TableOptimizer::Adam { lr, beta1, beta2, epsilon, l2 } => {
            Optimizer::Adam { lr, beta1, beta2, epsilon, l2, weight_decay: 0.0 }
        }
        TableOptimizer::AdamW { lr, beta1, beta2, epsilon, weight_decay } => {
            Optimizer::Adam { lr, beta1, beta2, epsilon, l2: 0.0, weight_decay }
        }
        TableOptimizer::Ftrl { lr, beta, l1, l2 } => Optimizer::Ftrl { lr, beta, l1, l2 },
    }
}

fn limits(limits: TableLimits) -> Limits {
    let or_none = |limit: Option<f32>| limit.unwrap_or(f32::INFINITY);
    Limits {
        clip_value: or_none(limits.clip_value),
        clip_norm: or_none(limits.clip_norm),
        weight_bound: or_none(limits.weight_bound),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::job;

    #[test]
    fn momentum_needs_state_only_where_there_is_some() {
        let sgd = |momentum| optimizer(TableOptimizer::Sgd { lr: 0.5, momentum, l2: 0.25 });
        assert_eq!(sgd(0.0), Optimizer::Sgd { lr: 0.5, l2: 0.25 });
        assert_eq!(sgd(0.5), Optimizer::Momentum { lr: 0.5, momentum: 0.5, l2: 0.25 });
    }

    #[test]
    fn both_kinds_of_adam_share_their_rows() {
        let (lr, beta1, beta2, epsilon) = (0.1, 0.9, 0.99, 1e-8);
        let adam = optimizer(TableOptimizer::Adam { lr, beta1, beta2, epsilon, l2: 0.5 });
        let decoupled = optimizer(TableOptimizer::AdamW { lr, beta1, beta2, epsilon, weight_decay: 0.5 });
        assert_eq!(adam, Optimizer::Adam { lr, beta1, beta2, epsilon, l2: 0.5, weight_decay: 0.0 });
        assert_eq!(decoupled, Optimizer::Adam { lr, beta1, beta2, epsilon, l2: 0.0, weight_decay: 0.5 });
        assert_eq!(adam.layout(), decoupled.layout());
    }

    #[test]
    fn in_mode_async_the_dense_network_has_the_last_table() {
        let mut job = job(1);
        let tables = table_configs(&job).len();
        job.train.mode = zagros_job::Mode::Async;
        job.dense_optimizer = zagros_job::DenseOptimizer::Adam { lr: 0.5, weight_decay: 0.25 };
        let configs = table_configs(&job);
        assert_eq!((configs.len(), configs[tables].init), (tables + 1, Initializer::Zero));
        // The decay is the worker's part.
        let expected = Optimizer::Adam { lr: 0.5, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, l2: 0.0, weight_decay: 0.0 };
        assert_eq!(configs[tables].optimizer, expected);
        assert_eq!(make_tables(&job, &configs, None).unwrap().iter().count(), tables + 1);
    }

    /// 26 tables of dim 64 with the usual stripes would hold 55 MiB whatever the budget says.
    #[test]
    fn stripes_are_few_where_memory_is_short() {
        let optimizer = Optimizer::Adagrad { lr: 0.1, epsilon: 1e-8, initial_accumulator: 0.0, l2: 0.0 };
        let configs = [TableConfig { dim: 64, optimizer, ..TableConfig::default() }; 26];
        let floor = |stripes: usize| stripes * configs.iter().map(TableConfig::stripe_floor).sum::<usize>();
        assert!(floor(DEFAULT_STRIPES) > 50 << 20);
        for (bytes, stripes) in [(0, 1), (2 << 20, 2), (8 << 20, 8), (64 << 20, 64), (1 << 40, 64)] {
            assert_eq!(stripes_within(bytes, &configs), stripes, "{bytes}");
            assert!(stripes == 1 || floor(stripes) <= bytes);
        }
    }

    #[test]
    fn limits_reach_the_table() {
        let mut table = job(1).tables.remove(0);
        assert_eq!(table_config(&table).limits, Limits::default());
        table.limits = TableLimits { clip_value: Some(1.0), clip_norm: Some(2.0), weight_bound: Some(3.0) };
        let expected = Limits { clip_value: 1.0, clip_norm: 2.0, weight_bound: 3.0 };
        assert_eq!(table_config(&table).limits, expected);
    }
}
