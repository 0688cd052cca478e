//! A cold store that runs a hook between a read and its answer, and tables with this store.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use zagros_fakes::MemoryColdStore;
use zagros_table::{
    ColdError, ColdRead, ColdSize, ColdStore, ColdView, Initializer, LookupMode, LookupReport, Optimizer, PushReport,
    RequestBuffers, RequestDeadline, RequestPart, RowBatch, Table, TableConfig, TableError, TableResources, TableSet,
    TableSnapshot,
};
use zagros_zip::ZipEq;

/// SGD with learning rate 1 from zeros: a row is minus the sum of its gradients.
pub(crate) fn ledger_config(dim: usize, stripes: usize) -> TableConfig {
    let optimizer = Optimizer::Sgd { lr: 1.0, momentum: 0.0, l2: 0.0 };
    TableConfig { dim, init: Initializer::Zero, optimizer, stripes, ..TableConfig::default() }
}

/// Tables with the smallest possible memory, and their store.
pub(crate) fn tiny(configs: &[TableConfig]) -> (TableSet, Arc<HookedStore>) {
    tables_within(configs, 1)
}

pub(crate) fn tables_within(configs: &[TableConfig], budget: usize) -> (TableSet, Arc<HookedStore>) {
    lookahead_tables(configs, budget, 0)
}

/// As [`tables_within`]. Rows of a hint are kept for so many more hints.
pub(crate) fn lookahead_tables(configs: &[TableConfig], budget: usize, hints: usize) -> (TableSet, Arc<HookedStore>) {
    let resources = TableResources { budget: Some(budget), lookahead_hints: hints, ..TableResources::default() };
    with_store(configs, 0, resources)
}

/// The index of the store has so many bytes for each row.
pub(crate) fn with_store(
    configs: &[TableConfig],
    index_bytes: usize,
    resources: TableResources,
) -> (TableSet, Arc<HookedStore>) {
    let widths: Vec<usize> = configs.iter().map(TableConfig::cold_words).collect();
    let (inner, hooks, full) = (MemoryColdStore::new(&widths), Mutex::default(), AtomicBool::new(false));
    let store = Arc::new(HookedStore { inner, hooks, full, index_bytes });
    let cold: Arc<dyn ColdStore> = Arc::clone(&store) as _;
    (TableSet::new(0, configs, TableResources { cold: Some(cold), ..resources }).unwrap(), store)
}

/// One stripe, with row 1 in the cold tier at −5 and others in memory.
pub(crate) fn cold_row(dim: usize) -> (Arc<TableSet>, Arc<HookedStore>) {
    let (tables, store) = tiny(&[ledger_config(dim, 1)]);
    push(&tables, &[1], 5.0);
    crowd(&tables, 1000);
    assert!(!hot(&tables).contains(&1));
    (Arc::new(tables), store)
}

/// Uses enough rows to evict all others from a stripe without memory.
pub(crate) fn crowd(tables: &TableSet, from: u64) {
    train(tables, &(from..from + 64).collect::<Vec<_>>());
}

pub(crate) fn maintain_all(tables: &TableSet) {
    assert!((0..10_000).any(|_| tables.maintain().unwrap().is_idle()), "maintenance never ends");
}

pub(crate) fn train(tables: &TableSet, ids: &[u64]) -> Vec<f32> {
    look(tables, ids, LookupMode::Train)
}

pub(crate) fn read(tables: &TableSet, ids: &[u64]) -> Vec<f32> {
    look(tables, ids, LookupMode::Read)
}

fn look(tables: &TableSet, ids: &[u64], access: LookupMode) -> Vec<f32> {
    lookup_before(tables, ids, access, RequestDeadline::NONE).unwrap().0
}

/// Looks up rows of table 0, for a sender that gives up at `deadline`.
pub(crate) fn lookup_before(
    tables: &TableSet,
    ids: &[u64],
    access: LookupMode,
    deadline: RequestDeadline,
) -> Result<(Vec<f32>, LookupReport), TableError> {
    let part = part(tables, ids);
    let mut out = vec![f32::NAN; ids.len() * part.dim as usize];
    let report = tables.enter_before(deadline)?.lookup(&[part], access, &mut out, &mut RequestBuffers::new())?;
    Ok((out, report))
}

/// Hints rows of table 0 and answers how many came to memory.
pub(crate) fn hint(tables: &TableSet, ids: &[u64]) -> u64 {
    tables.enter().page_in_hinted(&[part(tables, ids)], &mut RequestBuffers::new()).unwrap()
}

/// Pushes the same number to each value of each row.
pub(crate) fn push(tables: &TableSet, ids: &[u64], amount: f32) {
    push_before(tables, ids, amount, RequestDeadline::NONE).unwrap();
}

/// As [`push`], for a sender that gives up at `deadline`.
pub(crate) fn push_before(
    tables: &TableSet,
    ids: &[u64],
    amount: f32,
    deadline: RequestDeadline,
) -> Result<PushReport, TableError> {
    let part = part(tables, ids);
    let gradients = vec![amount; ids.len() * part.dim as usize];
    tables.enter_before(deadline)?.push(&[part], &gradients, 0, &mut RequestBuffers::new())
}

/// Rows of table 0.
pub(crate) fn part<'a>(tables: &TableSet, ids: &'a [u64]) -> RequestPart<'a> {
    RequestPart { table: 0, dim: tables.table(0).unwrap().dim() as u32, ids }
}

pub(crate) fn optimizers() -> Vec<Optimizer> {
    let (lr, l2, epsilon, initial_accumulator) = (0.1, 0.01, 1e-8, 0.1);
    vec![
        Optimizer::Sgd { lr, momentum: 0.0, l2 },
        Optimizer::Sgd { lr, momentum: 0.9, l2 },
        Optimizer::Adagrad { lr, epsilon, initial_accumulator, l2 },
        Optimizer::RowAdagrad { lr, epsilon, initial_accumulator, l2 },
        Optimizer::AdamW { lr, beta1: 0.9, beta2: 0.99, epsilon, weight_decay: 0.01 },
        Optimizer::Ftrl { lr, beta: 1.0, l1: 0.01, l2 },
    ]
}

pub(crate) fn hot(tables: &TableSet) -> Vec<u64> {
    in_memory(tables.table(0).unwrap()).ids
}

pub(crate) fn in_memory(table: &Table) -> RowBatch {
    let mut rows = RowBatch::default();
    for stripe in 0..table.stripes() {
        let mut ids = table.ids_in_memory(stripe);
        ids.sort_unstable();
        table.read_rows(stripe, &ids, &mut rows);
    }
    rows
}

/// The rows of a table in a snapshot, stripe after stripe.
pub(crate) fn saved(snapshot: &TableSnapshot<'_>, table: u32, stripes: usize) -> RowBatch {
    let mut rows = RowBatch::default();
    (0..stripes).for_each(|stripe| snapshot.read_stripe(table, stripe, &mut rows).unwrap());
    rows
}

pub(crate) fn by_id(rows: &RowBatch, stride: usize) -> BTreeMap<u64, Vec<f32>> {
    assert_eq!(rows.slots.len(), rows.ids.len() * stride);
    let floats = |slot: &[u32]| slot.iter().map(|word| f32::from_bits(*word)).collect();
    let all: BTreeMap<_, _> = rows.ids.iter().copied().zip_eq(rows.slots.chunks(stride).map(floats)).collect();
    assert_eq!(all.len(), rows.ids.len(), "an id occurs twice");
    all
}

type Hook = Box<dyn FnOnce() + Send>;

/// Runs one hook after a read, before the table gets the rows.
pub(crate) struct HookedStore {
    pub(crate) inner: MemoryColdStore,
    hooks: Mutex<VecDeque<Hook>>,
    full: AtomicBool,
    index_bytes: usize,
}

impl HookedStore {
    pub(crate) fn fail_writes(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }

    pub(crate) fn after_read(&self, hook: impl FnOnce() + Send + 'static) {
        self.hooks.lock().unwrap().push_back(Box::new(hook));
    }

    pub(crate) fn has_hooks(&self) -> bool {
        !self.hooks.lock().unwrap().is_empty()
    }
}

impl fmt::Debug for HookedStore {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(to)
    }
}

impl ColdStore for HookedStore {
    fn read_all(&self, reads: &mut [ColdRead<'_>]) -> Result<(), ColdError> {
        reads.iter_mut().try_for_each(|read| {
            let done = self.inner.read(read.table, read.cold_keys, read.into);
            let hook = self.hooks.lock().unwrap().pop_front();
            if let Some(hook) = hook {
                hook();
            }
            done
        })
    }

    fn write(&self, table: u32, places: &[u64], rows: &[u32]) -> Result<(), ColdError> {
        if self.full.load(Ordering::Relaxed) {
            return Err(ColdError { doing: "write", reason: "no space left on device".to_owned() });
        }
        self.inner.write(table, places, rows)
    }

    fn remove(&self, table: u32, places: &[u64]) -> Result<(), ColdError> {
        self.inner.remove(table, places)
    }

    fn remove_all(&self, table: u32) -> Result<(), ColdError> {
        self.inner.remove_all(table)
    }

    fn flush(&self) -> Result<(), ColdError> {
        self.inner.flush()
    }

    fn freeze(&self) -> Result<Box<dyn ColdView>, ColdError> {
        self.inner.freeze()
    }

    fn size(&self) -> ColdSize {
        self.inner.size()
    }

    fn memory(&self) -> usize {
        self.size().rows as usize * self.index_bytes
    }
}
