//! What a log of changes says makes the same rows again, bit for bit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use zagros_fakes::MemoryColdStore;
use zagros_table::{
    AdmissionPolicy, ChangeKind, ColdError, ColdStore, EvictionPolicy, EvictionTarget, FrequencyCounter,
    FrequencyCounts, Initializer, LookupMode, Optimizer, PushOrigin, PushStep, RequestBuffers, RequestPart, RowBatch,
    RowSlices, StepRowBatch, StepRowSlices, StripeChange, TableConfig, TableResources, TableSet, Ttl, UpdateLog,
    WeightType,
};
use zagros_zip::ZipEq;

use crate::support::{optimizers, part};

const DIM: usize = 5;

#[derive(Debug)]
enum LoggedChange {
    Rows([u32; 2], Option<PushOrigin>, RowBatch),
    Removed(u32, Vec<u64>),
    Seen(u32, Vec<u64>),
    CountsAdded(u32, Vec<u64>, Vec<u32>),
    SketchAdded([u32; 3], Vec<u32>),
    Pending(u32, u64, PushStep, Vec<f32>),
    StepRows(u32, StepRowBatch),
    Cleared,
}

impl LoggedChange {
    fn origin(&self) -> Option<PushOrigin> {
        if let Self::Rows(_, origin, _) = self { *origin } else { None }
    }
}

#[derive(Debug, Default)]
struct MemoryLog {
    changes: Mutex<Vec<LoggedChange>>,
    flushed: AtomicUsize,
}

impl UpdateLog for MemoryLog {
    fn append(&self, change: &StripeChange<'_>) {
        let table = change.table;
        let logged = match change.kind {
            ChangeKind::Rows { ids, slots, access } => {
                let rows = RowBatch { ids: ids.to_vec(), slots: slots.to_vec(), access: access.to_vec() };
                LoggedChange::Rows([table, change.stripe], change.origin.copied(), rows)
            }
            ChangeKind::StepRows(rows) => {
                let StepRowSlices { step, ids, before, sums } = rows;
                let (ids, before, sums) = (ids.to_vec(), before.to_vec(), sums.to_vec());
                LoggedChange::StepRows(table, StepRowBatch { step, ids, before, sums })
            }
            ChangeKind::Removed(ids) => LoggedChange::Removed(table, ids.to_vec()),
            ChangeKind::Seen(ids) => LoggedChange::Seen(table, ids.to_vec()),
            ChangeKind::CountsAdded(ids, counts) => LoggedChange::CountsAdded(table, ids.to_vec(), counts.to_vec()),
            ChangeKind::SketchAdded { from, cells } => {
                LoggedChange::SketchAdded([table, change.stripe, from], cells.to_vec())
            }
            ChangeKind::Pending { id, step, gradient } => LoggedChange::Pending(table, id, step, gradient.to_vec()),
        };
        self.changes.lock().unwrap().push(logged);
    }

    fn cleared(&self) {
        self.changes.lock().unwrap().push(LoggedChange::Cleared);
    }

    fn flush(&self) -> Result<(), ColdError> {
        self.flushed.store(self.changes.lock().unwrap().len(), Ordering::Release);
        Ok(())
    }

    fn keeps_steps(&self) -> bool {
        true
    }

    fn position(&self) -> u64 {
        self.changes.lock().unwrap().len() as u64
    }
}

/// Makes the tables again from what was logged.
fn replay(log: &MemoryLog, tables: &TableSet) {
    let mut scratch = RequestBuffers::new();
    let table = |number: u32| tables.table(number).unwrap();
    for change in log.changes.lock().unwrap().iter() {
        match change {
            LoggedChange::Rows([number, stripe], _, RowBatch { ids, slots, access }) => {
                table(*number).restore_rows(*stripe as usize, &RowSlices { ids, slots, access }, &mut scratch).unwrap();
            }
            LoggedChange::StepRows(number, rows) => table(*number).put_step_rows(&rows.as_slices()).unwrap(),
            LoggedChange::Removed(number, ids) => {
                table(*number).remove_again(ids).unwrap();
                table(*number).forget_counts_again(ids);
            }
            LoggedChange::Seen(number, ids) => table(*number).observe_again(ids),
            LoggedChange::CountsAdded(number, ids, counts) => table(*number).add_counts_again(ids, counts),
            LoggedChange::SketchAdded([number, stripe, from], cells) => {
                table(*number).add_sketch_again(*stripe as usize, *from as usize, cells).unwrap();
            }
            LoggedChange::Pending(number, id, step, gradient) => table(*number).defer_again(*id, gradient, *step),
            LoggedChange::Cleared => tables.clear().unwrap(),
        }
    }
}

type TableContent = (BTreeMap<(u32, u64), Vec<u32>>, Vec<FrequencyCounts>);

/// Slots of all rows, in memory and in the cold tier, and all frequency counts.
fn content(tables: &TableSet) -> TableContent {
    let (mut rows, mut counts) = (BTreeMap::new(), Vec::new());
    let snapshot = tables.take_snapshot().unwrap();
    for (number, table) in tables.iter().enumerate() {
        for stripe in 0..table.stripes() {
            let (mut batch, mut counted) = (RowBatch::default(), FrequencyCounts::default());
            snapshot.read_stripe(number as u32, stripe, &mut batch).unwrap();
            snapshot.read_frequency_counts(number as u32, stripe, &mut counted).unwrap();
            for (id, slot) in batch.ids.iter().zip_eq(batch.slots.chunks(table.stride())) {
                rows.insert((number as u32, *id), slot.to_vec());
            }
            counts.push(counted);
        }
    }
    (rows, counts)
}

/// Tables with a cold tier of their own, made again from what was logged.
fn made_again(log: &MemoryLog, kind: Kind, config: &TableConfig) -> TableSet {
    let recovered = tables(config, kind, &cold_store(config));
    replay(log, &recovered);
    recovered
}

/// The recovered tables have the rows of the others, but for those that have not changed since they were made.
fn assert_equal_content(config: &TableConfig, live: &TableSet, recovered: &TableSet) {
    recovered.advance_clock(live.table_time().steps, 0);
    assert_recovered(config, content(live), recovered);
}

fn assert_recovered(config: &TableConfig, (live, counts): TableContent, recovered: &TableSet) {
    let (found, found_counts) = content(recovered);
    assert_eq!(counts, found_counts);
    for (key, slot) in &found {
        assert_eq!(live.get(key), Some(slot), "{key:?}");
    }
    let fresh = TableSet::new(3, &[plain(config), plain(config)], TableResources::default()).unwrap();
    let mut out = [0.0; DIM];
    for ((number, id), slot) in live.iter().filter(|(key, _)| !found.contains_key(key)) {
        assert_eq!(config.admission, AdmissionPolicy::Always, "row {id} of table {number} is lost");
        let part = RequestPart { table: *number, dim: DIM as u32, ids: &[*id] };
        fresh.lookup(&[part], LookupMode::Train, &mut out, &mut RequestBuffers::new()).unwrap();
        assert_eq!(content(&fresh).0.get(&(*number, *id)), Some(slot), "row {id} of table {number} is lost");
    }
}

fn plain(config: &TableConfig) -> TableConfig {
    TableConfig { eviction: EvictionPolicy::default(), admission: AdmissionPolicy::Always, ..*config }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Plain,
    Cold,
    Dropping,
    Expiring,
    Exact,
    Sketch,
}

const KINDS: [Kind; 6] = [Kind::Plain, Kind::Cold, Kind::Dropping, Kind::Expiring, Kind::Exact, Kind::Sketch];

fn config(kind: Kind, optimizer: Optimizer, element: WeightType) -> TableConfig {
    let count = |counter| AdmissionPolicy::Count { threshold: 3, counter };
    let drop = EvictionPolicy { target: EvictionTarget::Drop, ..EvictionPolicy::default() };
    let (eviction, admission) = match kind {
        Kind::Plain | Kind::Cold => (EvictionPolicy::default(), AdmissionPolicy::Always),
        Kind::Dropping => (drop, AdmissionPolicy::Always),
        Kind::Expiring => (EvictionPolicy { ttl: Some(Ttl::Steps(40)), ..drop }, AdmissionPolicy::Always),
        Kind::Exact => (EvictionPolicy::default(), count(FrequencyCounter::Exact)),
        Kind::Sketch => (EvictionPolicy::default(), count(FrequencyCounter::CountMin { error: 0.01, failure: 0.1 })),
    };
    let init = Initializer::Uniform { bound: 0.5 };
    TableConfig { dim: DIM, init, optimizer, element, eviction, admission, stripes: 4, ..TableConfig::default() }
}

fn tables(config: &TableConfig, kind: Kind, cold: &Arc<MemoryColdStore>) -> TableSet {
    let budget = matches!(kind, Kind::Cold | Kind::Dropping).then_some(48 << 10);
    let cold = (kind == Kind::Cold).then(|| Arc::clone(cold) as Arc<dyn ColdStore>);
    TableSet::new(3, &[*config, *config], TableResources { budget, cold, ..TableResources::default() }).unwrap()
}

fn next(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

/// Lookups and pushes of one writer, of ids that other writers use as well.
fn train(tables: &TableSet, kind: Kind, writer: u64, seed: u64, rounds: u64) {
    let (mut random, mut scratch) = (seed * 2 + 1, RequestBuffers::new());
    for seq in 0..rounds {
        let ids: Vec<u64> = (0..60).map(|_| next(&mut random) % 3000).collect();
        let (first, second) = ids.split_at(40);
        let parts = [(0, first), (1, second)].map(|(table, ids)| RequestPart { table, dim: DIM as u32, ids });
        let mut out = vec![0.0; 60 * DIM];
        tables.lookup(&parts, LookupMode::Train, &mut out, &mut scratch).unwrap();
        tables.advance_clock(seq, 0);
        // A lookup alone renews the life of a row, which the log does not say.
        if seq % 5 == 0 && kind != Kind::Expiring {
            continue;
        }
        let gradients: Vec<f32> = (0..60 * DIM).map(|_| (next(&mut random) % 200) as f32 / 100.0 - 1.0).collect();
        let origin = PushOrigin { writer, incarnation: 1, seq };
        let step = PushStep { share: 0.5, ..seq.into() };
        tables.enter().push_from(origin, &parts, &gradients, step, &mut scratch).unwrap();
        if seq % 7 == 0 {
            tables.maintain().unwrap();
        }
    }
}

type LoggedTables = (Arc<MemoryLog>, TableSet);

fn trained(kind: Kind, config: &TableConfig, seed: u64, writers: u64, cold: &Arc<MemoryColdStore>) -> LoggedTables {
    let (log, live) = (Arc::new(MemoryLog::default()), tables(config, kind, cold));
    live.set_log(Arc::clone(&log) as Arc<dyn UpdateLog>);
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let live = &live;
            scope.spawn(move || train(live, kind, writer, seed + writer * 1000, 60));
        }
    });
    (log, live)
}

fn cold_store(config: &TableConfig) -> Arc<MemoryColdStore> {
    Arc::new(MemoryColdStore::new(&[config.cold_words(), config.cold_words()]))
}

/// Invariant DU-2, with writers that push at the same time, each kind of table, each form of weights and each optimiser.
#[test]
fn the_log_makes_the_same_rows_again() {
    for (number, optimizer) in optimizers().into_iter().enumerate() {
        for (kind, element) in KINDS.into_iter().flat_map(|kind| WeightType::ALL.map(|element| (kind, element))) {
            let config = config(kind, optimizer, element);
            let cold = cold_store(&config);
            let (log, live) = trained(kind, &config, number as u64 + 1, 3, &cold);
            let recovered = tables(&config, kind, &cold_store(&config));
            // Rows that are recovered take no more memory than rows that were trained, but may be evicted at other times.
            let recovered = if kind == Kind::Dropping { tables(&config, Kind::Expiring, &cold) } else { recovered };
            replay(&log, &recovered);
            assert_equal_content(&config, &live, &recovered);
            let origins: BTreeSet<_> = log.changes.lock().unwrap().iter().filter_map(LoggedChange::origin).collect();
            // A push to a selective table may change no row.
            let is_selective = matches!(kind, Kind::Exact | Kind::Sketch);
            assert!(origins.len() >= if is_selective { 3 * 30 } else { 3 * 48 }, "pushes are named: {}", origins.len());
            if kind == Kind::Cold {
                assert!(live.iter().any(|table| table.event_counts().evicted > 0), "nothing was evicted");
                assert!(log.flushed.load(Ordering::Acquire) > 0, "the log is flushed before the cold tier is written");
            }
            if kind == Kind::Dropping {
                assert!(live.iter().any(|table| table.event_counts().dropped > 0), "nothing was dropped");
            }
        }
    }
}

/// Invariant RK-1 across a restart: the last push of a step finds in the tables made again what the tables before had.
#[test]
fn a_step_goes_on_in_the_tables_made_again() {
    for (number, optimizer) in optimizers().into_iter().enumerate() {
        for (kind, element) in KINDS.into_iter().flat_map(|kind| WeightType::ALL.map(|element| (kind, element))) {
            // Rows are dropped at other times in the tables made again.
            if kind == Kind::Dropping {
                continue;
            }
            let config = config(kind, optimizer, element);
            let (log, live) = trained(kind, &config, number as u64 + 20, 1, &cold_store(&config));
            let recovered = made_again(&log, kind, &config);
            recovered.advance_clock(live.table_time().steps, 0);
            let ids: Vec<u64> = (0..3000).collect();
            let gradients: Vec<f32> = (0..3000 * DIM).map(|place| (place % 7) as f32 / 8.0).collect();
            let step = PushStep { share: 0.5, ..live.table_time().steps.into() };
            let origin = PushOrigin { writer: 7, incarnation: 1, seq: 1 };
            for tables in [&live, &recovered] {
                let mut scratch = RequestBuffers::new();
                tables.enter().push_from(origin, &[part(tables, &ids)], &gradients, step, &mut scratch).unwrap();
            }
            assert_equal_content(&config, &live, &recovered);
        }
    }
}

/// The cold tier of the ended process is opened again: it is newer than where the log starts.
#[test]
fn a_cold_tier_that_is_newer_than_the_log_does_no_harm() {
    let config = config(Kind::Cold, optimizers()[2], WeightType::F32);
    let cold = cold_store(&config);
    let (log, live) = trained(Kind::Cold, &config, 9, 3, &cold);
    let expected = content(&live);
    drop(live);
    let recovered = tables(&config, Kind::Cold, &cold);
    replay(&log, &recovered);
    assert_recovered(&config, expected, &recovered);
}

/// A sketch moves part by part, and the log has each part once.
#[test]
fn a_sketch_that_moves_in_parts_is_logged_once() {
    let counter = FrequencyCounter::CountMin { error: 0.001, failure: 0.01 };
    let admission = AdmissionPolicy::Count { threshold: 9, counter };
    let config = TableConfig { dim: DIM, admission, stripes: 1, ..TableConfig::default() };
    let made = || TableSet::new(3, &[config], TableResources::default()).unwrap();
    let (source, target, recovered, log) = (made(), made(), made(), Arc::<MemoryLog>::default());
    source.table(0).unwrap().observe_again(&(0..3000).collect::<Vec<_>>());
    target.set_log(Arc::clone(&log) as _);
    let (mut from, mut is_last) = (0, false);
    while !is_last {
        let mut cells = Vec::new();
        is_last = source.table(0).unwrap().read_sketch(0, from, 500, &mut cells);
        target.table(0).unwrap().raise_sketch(0, from, &cells).unwrap();
        from += cells.len();
    }
    let words = |change: &LoggedChange| if let LoggedChange::SketchAdded(_, cells) = change { cells.len() } else { 0 };
    assert_eq!(log.changes.lock().unwrap().iter().map(words).sum::<usize>(), from);
    replay(&log, &recovered);
    assert_eq!(content(&recovered), content(&target));
    assert_eq!(content(&recovered), content(&source));
}

/// A gradient of a step waits for its row and is applied. Then the process ends, and another worker pushes for the step.
#[test]
fn a_step_goes_on_with_a_gradient_that_waited() {
    let config = config(Kind::Cold, optimizers()[2], WeightType::F32);
    let (log, live) = trained(Kind::Cold, &config, 5, 1, &cold_store(&config));
    let step = PushStep { share: 0.25, ..(live.table_time().steps + 1).into() };
    let table = live.table(0).unwrap();
    let ids = table.ids_in_memory(0)[..3].to_vec();
    let push = |tables: &TableSet, seq: u64| {
        let (parts, origin) = ([part(tables, &ids)], PushOrigin { writer: 7, incarnation: 1, seq });
        tables.enter().push_from(origin, &parts, &[0.5; 3 * DIM], step, &mut RequestBuffers::new()).unwrap();
    };
    push(&live, 1);
    table.defer_again(ids[0], &[2.0; DIM], step);
    live.apply_pending_gradients().unwrap();
    let recovered = made_again(&log, Kind::Cold, &config);
    recovered.advance_clock(live.table_time().steps, 0);
    [&live, &recovered].into_iter().for_each(|tables| push(tables, 2));
    assert_equal_content(&config, &live, &recovered);
}

/// A gradient whose row could not be read waits, and is in the log.
#[test]
fn a_gradient_that_waited_is_applied_again() {
    let config = config(Kind::Cold, Optimizer::Sgd { lr: 1.0, momentum: 0.0, l2: 0.0 }, WeightType::F32);
    let cold = cold_store(&config);
    let (log, live) = trained(Kind::Cold, &config, 4, 1, &cold);
    for table in live.iter() {
        let in_memory = (0..table.stripes()).flat_map(|stripe| table.ids_in_memory(stripe)).collect::<BTreeSet<_>>();
        let away: Vec<u64> = (0..3000).filter(|id| !in_memory.contains(id)).take(20).collect();
        for id in &away {
            table.defer_again(*id, &[1.0; DIM], PushStep::from(99));
        }
    }
    let is_pending = |logged: &&LoggedChange| matches!(logged, LoggedChange::Pending(..));
    assert_eq!(log.changes.lock().unwrap().iter().filter(is_pending).count(), 40);
    let early = made_again(&log, Kind::Cold, &config);
    live.apply_pending_gradients().unwrap();
    let recovered = made_again(&log, Kind::Cold, &config);
    assert_equal_content(&config, &live, &recovered);
    // The process ended before the rows could be read: the gradients wait on.
    early.apply_pending_gradients().unwrap();
    assert_equal_content(&config, &live, &early);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    /// Loads, clears and training in any order.
    #[test]
    fn rows_that_were_put_in_or_cleared_are_so_again(
        acts in prop::collection::vec((0..4_u8, 1..500_u64), 1..12),
        kind in prop::sample::select(&KINDS[..]),
    ) {
        prop_assume!(kind != Kind::Dropping);
        let config = config(kind, optimizers()[2], WeightType::F32);
        let (log, live) = trained(kind, &config, 5, 1, &cold_store(&config));
        for (act, seed) in acts {
            let ids: Vec<u64> = (0..50).map(|id| id * seed % 4000).collect::<BTreeSet<_>>().into_iter().collect();
            let table = live.table((seed % 2) as u32).unwrap();
            match act {
                0 => live.clear().unwrap(),
                1 => {
                    let slots = vec![(seed as f32 / 1000.0).to_bits(); ids.len() * table.stride()];
                    table.insert(&RowBatch { ids, slots, access: Vec::new() }, &mut RequestBuffers::new()).unwrap();
                }
                2 => table.insert_frequency_counts(&ids, &vec![1; ids.len()]).unwrap(),
                _ => train(&live, kind, 9, seed, 5),
            }
        }
        assert_equal_content(&config, &live, &made_again(&log, kind, &config));
    }
}

/// Rows of a base come stripe by stripe in the order of the index. Images of a record may name a row twice, and a record whose
/// stripe is wrong would hide its rows.
#[test]
fn restored_rows_are_those_that_an_insert_makes() {
    for kind in [Kind::Plain, Kind::Cold, Kind::Exact] {
        let config = config(kind, optimizers()[2], WeightType::F32);
        let make = || tables(&config, kind, &cold_store(&config));
        let (live, expected, found) = (make(), make(), make());
        train(&live, kind, 1, 5, 60);
        let (from, inserted, restored) = (live.table(0).unwrap(), expected.table(0).unwrap(), found.table(0).unwrap());
        let mut scratch = RequestBuffers::new();
        restored.reserve_rows(from.row_count());
        for stripe in 0..from.stripes() {
            let mut rows = RowBatch::default();
            from.read_rows(stripe, &from.ids_in_memory(stripe), &mut rows);
            let first = rows.ids[0];
            rows.ids.push(first);
            rows.slots.extend(vec![7; from.stride()]);
            if !rows.access.is_empty() {
                rows.access.push(rows.access[0]);
            }
            inserted.insert(&rows, &mut scratch).unwrap();
            let RowBatch { ids, slots, access } = &rows;
            let named = if stripe == 2 { 1 } else { stripe };
            restored.restore_rows(named, &RowSlices { ids, slots, access }, &mut scratch).unwrap();
            let short = RowSlices { ids, slots: &slots[1..], access };
            assert!(restored.restore_rows(stripe, &short, &mut scratch).is_err());
        }
        assert!(restored.row_count() > 50, "{kind:?}: {}", restored.row_count());
        assert_eq!(content(&found), content(&expected), "{kind:?}");
        // Each is found by its id, too.
        let ids: Vec<u64> = (0..restored.stripes()).flat_map(|stripe| restored.ids_in_memory(stripe)).collect();
        let mut out = vec![0.0; ids.len() * DIM];
        let report = found.lookup(&[part(&found, &ids)], LookupMode::Read, &mut out, &mut scratch).unwrap();
        assert_eq!(report.missing, 0);
    }
}
