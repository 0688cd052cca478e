//! One table: its stripes with their locks, its counters, and reading all its rows.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use parking_lot::{Mutex, MutexGuard};

use crate::admission::stripe_filter::StripeFilter;
use crate::config::RowLayout;
use crate::row::access::AccessCodec;
use crate::stripe::Stripe;
use crate::tier::ColdSweep;
use crate::tier::eviction_buffer::EvictionBuffer;
use crate::tier::shared_memory::SharedMemory;
use crate::{
    AdmissionPolicy, ColdStore, EvictionPolicy, RowBatch, StepClock, TableConfig, TableCounts, TableError,
    TableResources, TableTime, WeightType,
};

const NO_COLD_TIER: &str = "evicted rows go to the cold tier, but there is no cold tier; \
     set a budget of memory with a cold tier, or let evicted rows be dropped";

/// One embedding table. Any number of threads may call it at once.
#[derive(Debug)]
pub struct Table {
    pub(crate) number: u32,
    pub(crate) layout: RowLayout,
    pub(crate) eviction: EvictionPolicy,
    pub(crate) access_codec: AccessCodec,
    /// Whether rows have access metadata. Then requests use the calls in `tier::managed`.
    pub(crate) is_managed: bool,
    pub(crate) is_tiered: bool,
    /// Whether the table has an admission policy that refuses some ids.
    pub(crate) is_selective: bool,
    stripes: Vec<Mutex<Stripe>>,
    /// One lock per stripe. A thread holds it while it evicts rows of the stripe to the cold tier.
    eviction_locks: Vec<Mutex<()>>,
    pub(crate) cold_sweep: Mutex<ColdSweep>,
    pub(crate) pending_count: AtomicUsize,
    pub(crate) shared: Arc<SharedMemory>,
}

impl Table {
    /// Makes an empty table with memory of its own and no limit. `seed` and the table's number decide the first weights
    /// of rows.
    pub fn new(seed: u64, table: u32, config: &TableConfig) -> Result<Self, TableError> {
        Self::with_shared_memory(seed, table, config, &Arc::new(SharedMemory::new(TableResources::default())))
    }

    pub(crate) fn with_shared_memory(
        seed: u64,
        table: u32,
        config: &TableConfig,
        shared: &Arc<SharedMemory>,
    ) -> Result<Self, TableError> {
        config.check_settings(table)?;
        let (layout, eviction) = (config.layout(seed, table), config.eviction);
        let needs_cold = shared.capacity.budget.is_some() || eviction.small_norm > 0.0;
        let is_tiered = needs_cold && eviction.keeps_evicted_rows();
        if is_tiered && shared.capacity.cold.is_none() {
            return Err(TableError::Config { table, problem: NO_COLD_TIER.to_owned() });
        }
        let is_selective = config.admission != AdmissionPolicy::Always;
        let is_managed = config.has_access(shared.capacity.budget.is_some());
        let filter = || StripeFilter::new(config.admission, config.stripes, seed, table);
        let stripe = |number| Mutex::new(Stripe::new(number, &layout, is_managed, filter(), &shared.arena));
        Ok(Self {
            number: table,
            layout,
            eviction,
            access_codec: AccessCodec::new(&eviction),
            is_managed,
            is_tiered,
            is_selective,
            stripes: (0..config.stripes).map(stripe).collect(),
            eviction_locks: (0..config.stripes).map(|_| Mutex::default()).collect(),
            cold_sweep: Mutex::default(),
            pending_count: AtomicUsize::new(0),
            shared: Arc::clone(shared),
        })
    }

    pub fn dim(&self) -> usize {
        self.layout.dim
    }

    /// Words of 32 bits per slot: weights and optimiser state.
    pub fn stride(&self) -> usize {
        self.layout.stride
    }

    pub fn weight_type(&self) -> WeightType {
        self.layout.element
    }

    /// Whether rows keep gradients until their step is committed.
    pub fn stages_gradients(&self) -> bool {
        self.layout.optimizer.stages_gradients()
    }

    /// The format of access metadata, for a saved model. Tables with an equal format can read each other's metadata.
    /// `None` if rows have no metadata.
    pub fn access_layout(&self) -> Option<String> {
        self.is_managed.then(|| self.access_codec.describe())
    }

    pub fn stripes(&self) -> usize {
        self.stripes.len()
    }

    /// Rows in memory.
    pub fn row_count(&self) -> usize {
        self.stripes.iter().map(|stripe| stripe.lock().row_count()).sum()
    }

    /// Bytes of weights, optimiser state and index, used or not.
    pub fn memory_bytes(&self) -> usize {
        let fixed = self.stripes.len() * size_of::<Mutex<Stripe>>();
        fixed + self.stripes.iter().map(|stripe| stripe.lock().memory_bytes()).sum::<usize>()
    }

    pub fn event_counts(&self) -> TableCounts {
        self.stripes.iter().map(|stripe| stripe.lock().counts).sum()
    }

    /// Converts the access metadata of rows that another process saved, so that the rows keep their age. `saved` is the
    /// time of the save in that process ([`crate::TableSnapshot::snapshot_time`]).
    pub fn rebase_access(&self, rows: &mut RowBatch, saved: TableTime, steps: StepClock) {
        let now = self.shared.clock.now();
        rows.access.iter_mut().for_each(|access| *access = self.access_codec.rebase(*access, saved, now, steps));
    }

    /// The cold tier. `None` if evicted rows do not go there.
    pub(crate) fn cold_store(&self) -> Option<&dyn ColdStore> {
        self.shared.capacity.cold.as_deref().filter(|_| self.is_tiered)
    }

    pub(crate) fn current_tick(&self) -> u64 {
        self.access_codec.tick(self.shared.clock.now())
    }

    pub(crate) fn eviction_lock(&self, stripe: usize) -> &Mutex<()> {
        &self.eviction_locks[stripe]
    }

    pub(crate) fn with_eviction_buffer<T>(&self, work: impl FnOnce(&mut EvictionBuffer) -> T) -> T {
        let mut buffer = self.shared.buffer.lock().pop().unwrap_or_default();
        let done = work(&mut buffer);
        self.shared.buffer.lock().push(buffer);
        done
    }

    #[inline]
    pub(crate) fn lock(&self, stripe: usize) -> MutexGuard<'_, Stripe> {
        self.stripes[stripe].try_lock().unwrap_or_else(|| self.wait_for(stripe))
    }

    #[cold]
    fn wait_for(&self, stripe: usize) -> MutexGuard<'_, Stripe> {
        let nanos = || self.shared.capacity.nanos.map_or(0, |nanos| nanos());
        let start = nanos();
        let mut stripe = self.stripes[stripe].lock();
        stripe.counts.contended += 1;
        stripe.counts.waited_nanos += nanos().saturating_sub(start);
        stripe
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Initializer, LookupMode, Optimizer, RequestBuffers};

    #[test]
    fn an_empty_table_is_small_and_a_full_one_says_so() {
        let optimizer = Optimizer::Adagrad { lr: 0.1, epsilon: 1e-8, initial_accumulator: 0.5, l2: 0.0 };
        let config =
            TableConfig { dim: 4, init: Initializer::Uniform { bound: 1.0 }, optimizer, ..TableConfig::default() };
        let table = Table::new(1, 0, &config).unwrap();
        assert!(table.memory_bytes() < 70 << 10, "{} bytes", table.memory_bytes());
        let ids: Vec<u64> = (0..100_000).collect();
        table.lookup(&ids, LookupMode::Train, &mut vec![0.0; 400_000], &mut RequestBuffers::new()).unwrap();
        assert_eq!(table.row_count(), 100_000);
        // Each row takes a slot of 32 bytes, and 13 to 30 bytes of index.
        assert!((4_500_000..7_500_000).contains(&table.memory_bytes()), "{} bytes", table.memory_bytes());
    }
}
