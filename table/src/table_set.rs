//! All tables of a model on one server, and requests that name several tables. A request is checked whole before it
//! changes anything.
//!
//! The guard of a request. A snapshot contains everything that a request does under one guard, or nothing of it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};

use crate::tier::managed::{PreparedPush, lookup_all, read_copies};
use crate::tier::shared_memory::SharedMemory;
use crate::{
    ColdError, LookupMode, LookupReport, PushOrigin, PushReport, PushStep, RequestBuffers, RequestDeadline, Table,
    TableConfig, TableError, TableResources, TableTime, TileUpdate,
};

/// The tables of a model. The number of a table is its position.
#[derive(Debug)]
pub struct TableSet {
    tables: Vec<Table>,
    pub(crate) shared: Arc<SharedMemory>,
    /// Requests lock it shared. A snapshot locks it exclusively for its instant.
    pub(crate) gate: RwLock<()>,
    pub(crate) has_snapshot: AtomicBool,
    turn: AtomicUsize,
}

/// The part of a request for one table. The values of all parts follow each other in the order of the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestPart<'a> {
    pub table: u32,
    /// Weights per row, as the sender says.
    pub dim: u32,
    pub ids: &'a [u64],
}

impl TableSet {
    /// Makes empty tables. `seed` decides the first weights of rows. All tables together stay within `capacity`.
    pub fn new(seed: u64, configs: &[TableConfig], capacity: TableResources) -> Result<Self, TableError> {
        let shared = Arc::new(SharedMemory::new(capacity));
        let make = |(number, config)| Table::with_shared_memory(seed, number as u32, config, &shared);
        let tables = configs.iter().enumerate().map(make).collect::<Result<_, _>>()?;
        Ok(Self {
            tables,
            shared,
            gate: RwLock::default(),
            has_snapshot: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
        })
    }

    /// Advances the time by which rows age: to the newest training step, and to the seconds since the tables were made.
    /// Times before the present time are ignored. Take the seconds from a monotonic clock. A wall clock that someone
    /// sets forward by an hour would age every row by an hour.
    pub fn advance_clock(&self, steps: u64, seconds: u64) {
        self.shared.clock.advance(TableTime { steps, seconds });
    }

    /// Why the last write to the cold tier failed. `None` if it succeeded.
    pub fn last_write_error(&self) -> Option<ColdError> {
        self.shared.last_cold_failure()
    }

    /// Bytes in memory that the budget counts, and the budget.
    pub fn memory_budget(&self) -> Option<(usize, usize)> {
        self.shared.capacity.budget.map(|_| self.shared.budget.used_and_limit())
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Table> {
        self.tables.iter()
    }

    pub fn table(&self, table: u32) -> Result<&Table, TableError> {
        let unknown = TableError::UnknownTable { table, tables: self.tables.len() };
        self.tables.get(table as usize).ok_or(unknown)
    }

    /// Checks that each part names another table and the dim of that table. Returns the number of values, Σ rows·dim.
    pub fn check_parts(&self, parts: &[RequestPart<'_>]) -> Result<usize, TableError> {
        let mut values = 0_usize;
        for (index, part) in parts.iter().enumerate() {
            let table = self.table(part.table)?;
            if table.dim() != part.dim as usize {
                return Err(TableError::Dim { table: part.table, expected: table.dim(), found: part.dim as usize });
            }
            if parts[..index].iter().any(|earlier| earlier.table == part.table) {
                return Err(TableError::RepeatedTable { table: part.table });
            }
            values = values.saturating_add(part.ids.len().saturating_mul(table.dim()));
        }
        Ok(values)
    }

    /// Writes the weights of all parts into `out`, part after part, each row-major `[ids.len(), dim]`.
    /// If the request itself is wrong, no row is created.
    pub fn lookup(
        &self,
        parts: &[RequestPart<'_>],
        access: LookupMode,
        out: &mut [f32],
        scratch: &mut RequestBuffers,
    ) -> Result<LookupReport, TableError> {
        self.enter().lookup(parts, access, out, scratch)
    }

    /// Applies the gradients of all parts, part after part, each row-major `[ids.len(), dim]`. `step` is the step of
    /// the writer: its number decides schedule and rounding, its share scales the penalties on weights. Several writers
    /// may be at different steps.
    /// On an error nothing of any part is applied.
    pub fn push(
        &self,
        parts: &[RequestPart<'_>],
        gradients: &[f32],
        step: impl Into<PushStep>,
        scratch: &mut RequestBuffers,
    ) -> Result<PushReport, TableError> {
        self.enter().push(parts, gradients, step, scratch)
    }

    pub(crate) fn lookup_inside(
        &self,
        parts: &[RequestPart<'_>],
        access: LookupMode,
        out: &mut [f32],
        scratch: &mut RequestBuffers,
    ) -> Result<LookupReport, TableError> {
        self.check_values("rows", parts, out.len())?;
        for (part, values) in self.divide(parts) {
            self.table(part.table)?.check_rows("rows", part.ids, part.dim as usize, values.len())?;
        }
        let (mut total, mut managed, mut rest) = (LookupReport::default(), Vec::new(), out);
        for (part, values) in self.divide(parts) {
            let table = self.table(part.table)?;
            let rows;
            (rows, rest) = rest.split_at_mut(values.len());
            if table.is_managed {
                managed.push((table, part.ids, rows));
            } else {
                total += table.lookup_checked(part.ids, access, rows, scratch)?;
            }
        }
        total += lookup_all(managed.into_iter(), access, scratch)?;
        Ok(total)
    }

    pub(crate) fn push_inside(
        &self,
        parts: &[RequestPart<'_>],
        gradients: &[f32],
        step: PushStep,
        origin: Option<PushOrigin>,
        scratch: &mut RequestBuffers,
    ) -> Result<PushReport, TableError> {
        self.check_values("gradients", parts, gradients.len())?;
        scratch.origin = origin;
        for (part, values) in self.divide(parts) {
            let table = self.table(part.table)?;
            if step.tiles != TileUpdate::AtOnce && !table.stages_gradients() {
                return Err(TableError::Unstaged { table: part.table });
            }
            if !matches!(step.tiles, TileUpdate::Commit { .. }) {
                table.check_gradients(part.ids, &gradients[values])?;
            }
        }
        let mut total = PushReport::default();
        if self.tables.iter().any(|table| table.is_managed) {
            return self.push_managed(parts, gradients, step, scratch);
        }
        for (part, values) in self.divide(parts) {
            total += self.table(part.table)?.push_checked(part.ids, &gradients[values], step, scratch);
        }
        Ok(total)
    }

    /// Does everything that can fail, for all parts, before it changes a table.
    fn push_managed(
        &self,
        parts: &[RequestPart<'_>],
        gradients: &[f32],
        step: PushStep,
        scratch: &mut RequestBuffers,
    ) -> Result<PushReport, TableError> {
        let mut prepared = Vec::with_capacity(parts.len());
        for (part, values) in self.divide(parts) {
            let (table, gradients) = (self.table(part.table)?, &gradients[values]);
            let managed = if table.is_managed { Some(table.prepare_push(part.ids, gradients, scratch)?) } else { None };
            prepared.push((table, part.ids, gradients, managed));
        }
        let bytes = |managed: &Option<PreparedPush<'_>>, table: &Table| {
            managed.as_ref().map_or(0, |prepared| table.bytes_of_copies(prepared))
        };
        let copies = prepared.iter().map(|(table, _, _, managed)| bytes(managed, table)).sum();
        let _held = self.shared.acquire_copies(copies, scratch.deadline)?;
        let managed = prepared.iter_mut().filter_map(|(table, _, _, managed)| Some((*table, managed.as_mut()?)));
        read_copies(managed, &self.shared, scratch.deadline)?;
        let mut total = PushReport::default();
        for (table, ids, gradients, managed) in prepared {
            total += match managed {
                Some(prepared) => table.apply_push(prepared, step, scratch),
                None => table.push_checked(ids, gradients, step, scratch),
            };
        }
        Ok(total)
    }

    /// Counts the calls of maintenance. Each call continues where the last one ended.
    pub(crate) fn next_turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    fn check_values(&self, what: &'static str, parts: &[RequestPart<'_>], found: usize) -> Result<(), TableError> {
        let expected = self.check_parts(parts)?;
        if expected == found { Ok(()) } else { Err(TableError::Length { what, expected, found }) }
    }

    /// Each part with its range of values. The parts are already checked.
    fn divide<'a, 'b>(
        &self,
        parts: &'a [RequestPart<'b>],
    ) -> impl Iterator<Item = (&'a RequestPart<'b>, Range<usize>)> {
        parts.iter().scan(0, |start, part| {
            let range = *start..*start + part.ids.len() * part.dim as usize;
            *start = range.end;
            Some((part, range))
        })
    }
}

/// Permission to look up and push, on one thread or several. A [`crate::TableSnapshot`] contains everything that is
/// done under one guard, or nothing of it.
///
/// One thread must not hold two guards. The second would wait for a snapshot that waits for the first.
#[derive(Debug)]
pub struct RequestGuard<'a> {
    pub(crate) set: &'a TableSet,
    pub(crate) deadline: RequestDeadline,
    _gate: RwLockReadGuard<'a, ()>,
}

/// What a request may have waited for before it starts, in the words of [`TableError::Late`].
const ITS_TURN: &str = "a thread of the server";
const SNAPSHOT: &str = "a snapshot of the tables, which waits for earlier requests to end";
const CLEAR: &str = "the removal of all rows of the tables";

impl TableSet {
    /// Starts a request without a deadline. Waits while a snapshot is being taken or the tables are being cleared. Both
    /// wait for the requests that started before.
    #[must_use]
    pub fn enter(&self) -> RequestGuard<'_> {
        RequestGuard { set: self, deadline: RequestDeadline::NONE, _gate: self.gate.read() }
    }

    /// As [`Self::enter`], for a request whose sender gives up at `deadline`. What is done under the guard waits no longer
    /// either.
    pub fn enter_before(&self, deadline: RequestDeadline) -> Result<RequestGuard<'_>, TableError> {
        self.shared.check_deadline(deadline, ITS_TURN)?;
        let gate = match (self.gate.try_read(), self.shared.time_left(deadline)) {
            (Some(gate), _) => Some(gate),
            (None, Some(left)) => self.gate.try_read_for(left),
            (None, None) => Some(self.gate.read()),
        };
        let gate = gate.ok_or_else(|| {
            let has_snapshot = self.has_snapshot.load(Ordering::Relaxed);
            TableError::Late { whom: if has_snapshot { SNAPSHOT } else { CLEAR } }
        })?;
        Ok(RequestGuard { set: self, deadline, _gate: gate })
    }
}

impl RequestGuard<'_> {
    pub fn lookup(
        &self,
        parts: &[RequestPart<'_>],
        access: LookupMode,
        out: &mut [f32],
        scratch: &mut RequestBuffers,
    ) -> Result<LookupReport, TableError> {
        scratch.deadline = self.deadline;
        if access == LookupMode::Train && self.set.iter().any(|table| table.is_managed) {
            self.await_copies()?;
        }
        self.set.lookup_inside(parts, access, out, scratch)
    }

    pub fn push(
        &self,
        parts: &[RequestPart<'_>],
        gradients: &[f32],
        step: impl Into<PushStep>,
        scratch: &mut RequestBuffers,
    ) -> Result<PushReport, TableError> {
        scratch.deadline = self.deadline;
        self.await_copies()?;
        self.set.push_inside(parts, gradients, step.into(), None, scratch)
    }

    /// As [`TableSet::push`], of a push that the log names.
    pub fn push_from(
        &self,
        origin: PushOrigin,
        parts: &[RequestPart<'_>],
        gradients: &[f32],
        step: PushStep,
        scratch: &mut RequestBuffers,
    ) -> Result<PushReport, TableError> {
        scratch.deadline = self.deadline;
        self.await_copies()?;
        self.set.push_inside(parts, gradients, step, Some(origin), scratch)
    }

    /// Waits for room for the copies that the request makes for a snapshot, before it changes anything. A snapshot that stands
    /// still is given up: training does not wait for a disk.
    #[inline]
    fn await_copies(&self) -> Result<(), TableError> {
        let shared = &self.set.shared;
        if shared.captures.is_full() && shared.await_copies(self.deadline)? {
            self.set.give_up_snapshot();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Initializer, Optimizer};

    fn tables() -> TableSet {
        let (init, optimizer) =
            (Initializer::Uniform { bound: 1.0 }, Optimizer::Sgd { lr: 1.0, momentum: 0.0, l2: 0.0 });
        let config = |dim| TableConfig { dim, init, optimizer, stripes: 2, ..TableConfig::default() };
        TableSet::new(1, &[config(2), config(3)], TableResources::default()).unwrap()
    }

    fn part(table: u32, dim: u32, ids: &[u64]) -> RequestPart<'_> {
        RequestPart { table, dim, ids }
    }

    fn held(tables: &TableSet) -> Vec<usize> {
        tables.iter().map(Table::row_count).collect()
    }

    #[test]
    fn each_part_reaches_its_own_table() {
        let tables = tables();
        let parts = [part(1, 3, &[8]), part(0, 2, &[8, 9])];
        let mut scratch = RequestBuffers::new();
        let mut first = [0.0; 7];
        let report = tables.lookup(&parts, LookupMode::Train, &mut first, &mut scratch).unwrap();
        assert_eq!((report.created, held(&tables)), (3, vec![2, 1]));
        let pushed = tables.push(&parts, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 0, &mut scratch).unwrap();
        assert_eq!(pushed, PushReport { updated: 3, ..PushReport::default() });
        let mut updated = [0.0; 7];
        tables.lookup(&parts, LookupMode::Read, &mut updated, &mut scratch).unwrap();
        for index in 0..7 {
            assert_eq!(updated[index], first[index] - (index + 1) as f32);
        }
    }

    #[test]
    fn the_same_id_has_other_first_values_in_another_table() {
        let tables = tables();
        let mut out = [0.0; 5];
        let parts = [part(0, 2, &[8]), part(1, 3, &[8])];
        tables.lookup(&parts, LookupMode::Read, &mut out, &mut RequestBuffers::new()).unwrap();
        assert_ne!(out[..2], out[2..4]);
    }

    #[test]
    fn one_bad_part_refuses_the_whole_request() {
        let tables = tables();
        let mut scratch = RequestBuffers::new();
        let good = part(0, 2, &[1]);
        let mut refused = |parts: &[RequestPart<'_>], gradients: &[f32]| {
            let pushed = tables.push(parts, gradients, 0, &mut scratch).unwrap_err();
            let looked_up = tables.lookup(parts, LookupMode::Train, &mut vec![0.0; gradients.len()], &mut scratch);
            (pushed, looked_up.err())
        };
        let unknown = TableError::UnknownTable { table: 2, tables: 2 };
        assert_eq!(refused(&[good, part(2, 2, &[1])], &[1.0; 4]), (unknown.clone(), Some(unknown)));
        let dim = TableError::Dim { table: 1, expected: 3, found: 2 };
        assert_eq!(refused(&[good, part(1, 2, &[1])], &[1.0; 4]), (dim.clone(), Some(dim)));
        let repeated = TableError::RepeatedTable { table: 0 };
        assert_eq!(refused(&[good, good], &[1.0; 4]), (repeated.clone(), Some(repeated)));
        let length = TableError::Length { what: "gradients", expected: 5, found: 4 };
        assert_eq!(refused(&[good, part(1, 3, &[1])], &[1.0; 4]).0, length);
        let gradients = [1.0, 1.0, 1.0, f32::NAN, 1.0];
        let nan = tables.push(&[good, part(1, 3, &[6])], &gradients, 0, &mut RequestBuffers::new()).unwrap_err();
        assert!(matches!(nan, TableError::NotFinite { table: 1, id: 6, position: 1, .. }), "{nan}");
        assert_eq!(held(&tables), [0, 0]);
    }
}
