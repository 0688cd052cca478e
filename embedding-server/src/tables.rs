//! Makes the tables of a server from the tables of the job.

use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};
use zagros_job::Job;
use zagros_rows::cold::MemoryBudget;
use zagros_table::{ColdStore, TableConfig, TableResources, TableSet};

use crate::ServerError;
use crate::tier::ColdTier;

pub(crate) fn table_configs(job: &Job) -> Vec<TableConfig> {
    let mut configs: Vec<TableConfig> = job.server_tables().into_iter().map(|table| table.config).collect();
    if let Some(memory) = job.cluster.memory {
        MemoryBudget::new(memory).limit_stripes(&mut configs);
    }
    configs
}

pub(crate) fn make_tables(job: &Job, configs: &[TableConfig], tier: Option<ColdTier>) -> Result<TableSet, ServerError> {
    let capacity = TableResources {
        budget: job.cluster.memory.map(|memory| MemoryBudget::new(memory).rows),
        cold: tier.map(|tier| tier as Arc<dyn ColdStore>),
        nanos: Some(monotonic_nanos),
        // The rows of a hint are kept for the hints of all workers until its batch is looked up.
        lookahead_hints: job.lookahead_hints().saturating_mul(job.cluster.most_workers() as usize),
        copies: None,
        timeout: Some(job.cluster.timeout),
    };
    TableSet::new(job.train.seed, configs, capacity).map_err(|source| {
        let table = source.table_number().and_then(|table| job.server_tables().into_iter().nth(table as usize));
        ServerError::Table { name: table.map(|table| table.name).unwrap_or_default(), source }
    })
}

pub(crate) fn monotonic_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::Overrides;
    use zagros_table::{
        AdmissionPolicy, EvictionOrder, EvictionPolicy, EvictionTarget, Initializer, LearningRateSchedule,
        NonFinitePolicy, Optimizer, Ttl, WeightType,
    };

    use super::*;
    use crate::testing::job;

    #[test]
    fn in_mode_async_the_dense_network_has_the_last_table() {
        let mut job = job(1);
        let tables = table_configs(&job).len();
        job.train.mode = zagros_job::Mode::Async;
        job.dense_optimizer = zagros_job::DenseOptimizer::Adam { lr: 0.5, weight_decay: 0.25 };
        let configs = table_configs(&job);
        assert_eq!((configs.len(), configs[tables].init), (tables + 1, Initializer::Zero));
        // The worker applies the weight decay.
        let expected = Optimizer::Adam { lr: 0.5, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, l2: 0.0 };
        assert_eq!(configs[tables].optimizer, expected);
        assert_eq!(make_tables(&job, &configs, None).unwrap().iter().count(), tables + 1);
    }

    /// The settings of a table of a job with these keys in `[embedding]`.
    fn config(keys: &str) -> TableConfig {
        let text = format!("[data]\nformat = 'criteo'\ntrain = 'a'\n[embedding]\n{keys}\n");
        let job = Job::parse(&text, Path::new("job.toml"), &Overrides::none()).unwrap();
        let config = job.tables[0].table_config();
        zagros_table::Table::new(1, 0, &config).unwrap();
        config
    }

    #[test]
    fn the_settings_of_the_job_reach_the_table() {
        let config = config(
            "element = 'bf16'\nnon_finite = 'skip'\nadmission = { kind = 'probability', share = 0.25 }\n\
             schedule = { kind = 'cosine', warmup = 5, decay = 7, floor = 0.5 }\n\
             eviction = { order = { kind = 'lfu' }, ttl = { steps = 9 }, small_norm = 0.125, target = 'drop' }",
        );
        assert_eq!((config.element, config.non_finite), (WeightType::Bf16, NonFinitePolicy::Skip));
        assert_eq!(config.admission, AdmissionPolicy::Probability { share: 0.25 });
        assert_eq!(config.schedule, LearningRateSchedule::Cosine { warmup: 5, decay: 7, floor: 0.5 });
        let (order, ttl) = (EvictionOrder::Lfu { half_life: 10_000 }, Some(Ttl::Steps(9)));
        assert_eq!(config.eviction, EvictionPolicy { order, ttl, small_norm: 0.125, target: EvictionTarget::Drop });
    }

    /// The widest ranges of the job file are within the ranges of the table.
    #[test]
    fn a_table_accepts_every_setting_that_the_job_file_allows() {
        for counter in ["kind = 'exact'", "kind = 'count_min', error = 0.5"] {
            let config =
                config(&format!("admission = {{ kind = 'count', min_count = 65535, counter = {{ {counter} }} }}"));
            assert!(matches!(config.admission, AdmissionPolicy::Count { threshold: 65535, .. }));
        }
        config("schedule = { kind = 'linear', warmup = 1000000000000, decay = 1 }");
        config(
            "schedule = { kind = 'step', every = 1, factor = 0 }\neviction = { ttl = { seconds = 4294967295 }, small_norm = 1e30, target = 'drop' }",
        );
    }
}
