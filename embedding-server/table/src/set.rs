//! All tables of a model on one server, and requests that touch several of them: checked whole, then done.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::RwLock;

use crate::tier::managed::PreparedPush;
use crate::tier::shared_memory::SharedMemory;
use crate::{
    Capacity, ColdError, LookupMode, LookupReport, PushReport, PushStep, Scratch, Table, TableConfig, TableError,
    TableTime,
};

/// The tables of a model; a table's number is its position.
#[derive(Debug)]
pub struct TableSet {
    tables: Vec<Table>,
    shared: Arc<SharedMemory>,
    /// Locked shared by requests, exclusively for the instant of a snapshot.
    gate: RwLock<()>,
    /// Whether there is a snapshot.
    has_snapshot: AtomicBool,
    turn: AtomicUsize,
}

/// The part of a request that concerns one table. Its values follow those of the part before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestPart<'a> {
    /// The table.
    pub table: u32,
    /// Weights per row, according to the sender.
    pub dim: u32,
    /// The rows.
    pub ids: &'a [u64],
}

impl TableSet {
    /// Empty tables. Rows start from `seed`; together they keep within `capacity`.
    ///
    /// # Errors
    /// When a setting is out of range, or rows are to go to a cold tier that is not there.
    pub fn new(seed: u64, configs: &[TableConfig], capacity: Capacity) -> Result<Self, TableError> {
        let shared = Arc::new(SharedMemory::new(capacity));
        let make = |(number, config)| Table::within(seed, number as u32, config, &shared);
        let tables = configs.iter().enumerate().map(make).collect::<Result<_, _>>()?;
        Ok(Self {
            tables,
            shared,
            gate: RwLock::default(),
            has_snapshot: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
        })
    }

    /// Moves the time on by which rows grow old: to the newest step of training, and to seconds since the tables were
    /// made. Times before the present one are ignored. Seconds should come from a clock that nobody sets: a wall clock
    /// that is put forward by an hour would make every row an hour older.
    pub fn tick(&self, steps: u64, seconds: u64) {
        self.shared.clock.advance(TableTime { steps, seconds });
    }

    /// Why the last write to the cold tier failed. `None` if it did not.
    #[must_use]
    pub fn last_write_error(&self) -> Option<ColdError> {
        self.shared.failure()
    }

    /// Bytes in memory that the budget counts, and the budget.
    #[must_use]
    pub fn budget(&self) -> Option<(usize, usize)> {
        self.shared.capacity.budget.map(|_| self.shared.budget.used())
    }

    /// The tables in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Table> {
        self.tables.iter()
    }

    /// One table.
    ///
    /// # Errors
    /// When there is none of this number.
    pub fn table(&self, table: u32) -> Result<&Table, TableError> {
        let unknown = TableError::UnknownTable { table, tables: self.tables.len() };
        self.tables.get(table as usize).ok_or(unknown)
    }

    /// Checks that each part names a table of its own with that table's dim; answers the number of values, Σ rows·dim.
    ///
    /// # Errors
    /// When one does not.
    pub fn check(&self, parts: &[RequestPart<'_>]) -> Result<usize, TableError> {
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
    ///
    /// # Errors
    /// When a part names no table, a table twice or a wrong dim, or `out` has another length; nothing is created then.
    /// When rows of the cold tier cannot be read, or there is no room for new ones.
    pub fn lookup(
        &self,
        parts: &[RequestPart<'_>],
        access: LookupMode,
        out: &mut [f32],
        scratch: &mut Scratch,
    ) -> Result<LookupReport, TableError> {
        self.enter().lookup(parts, access, out, scratch)
    }

    /// Applies the gradients of all parts, part after part, each row-major `[ids.len(), dim]`. `step` is that of the
    /// push, counted by its writer: schedules and rounding follow its number, penalties on weights its share. Each of
    /// several writers is at a step of its own.
    ///
    /// # Errors
    /// As [`Self::lookup`], and when a gradient is not finite and its table refuses such; nothing of any part is
    /// applied then.
    pub fn push(
        &self,
        parts: &[RequestPart<'_>],
        gradients: &[f32],
        step: impl Into<PushStep>,
        scratch: &mut Scratch,
    ) -> Result<PushReport, TableError> {
        self.enter().push(parts, gradients, step, scratch)
    }

    pub(crate) fn lookup_inside(
        &self,
        parts: &[RequestPart<'_>],
        access: LookupMode,
        out: &mut [f32],
        scratch: &mut Scratch,
    ) -> Result<LookupReport, TableError> {
        self.check_values("rows", parts, out.len())?;
        for (part, values) in self.divide(parts) {
            self.table(part.table)?.check_rows("rows", part.ids, part.dim as usize, values.len())?;
        }
        let mut total = LookupReport::default();
        for (part, values) in self.divide(parts) {
            total += self.table(part.table)?.lookup_checked(part.ids, access, &mut out[values], scratch)?;
        }
        Ok(total)
    }

    pub(crate) fn push_inside(
        &self,
        parts: &[RequestPart<'_>],
        gradients: &[f32],
        step: PushStep,
        scratch: &mut Scratch,
    ) -> Result<PushReport, TableError> {
        self.check_values("gradients", parts, gradients.len())?;
        for (part, values) in self.divide(parts) {
            self.table(part.table)?.check_gradients(part.ids, &gradients[values])?;
        }
        let mut total = PushReport::default();
        if self.tables.iter().any(Table::is_managed) {
            return self.push_managed(parts, gradients, step, scratch);
        }
        for (part, values) in self.divide(parts) {
            total += self.table(part.table)?.push_checked(part.ids, &gradients[values], step, scratch);
        }
        Ok(total)
    }

    /// Does everything that can fail for all parts before it changes any of them.
    fn push_managed(
        &self,
        parts: &[RequestPart<'_>],
        gradients: &[f32],
        step: PushStep,
        scratch: &mut Scratch,
    ) -> Result<PushReport, TableError> {
        let mut prepared = Vec::with_capacity(parts.len());
        for (part, values) in self.divide(parts) {
            let (table, gradients) = (self.table(part.table)?, &gradients[values]);
            let managed =
                if table.is_managed() { Some(table.prepare_push(part.ids, gradients, scratch)?) } else { None };
            prepared.push((table, part.ids, gradients, managed));
        }
        let bytes = |managed: &Option<PreparedPush<'_>>, table: &Table| {
            managed.as_ref().map_or(0, |prepared| table.bytes_of_copies(prepared))
        };
        let copies = prepared.iter().map(|(table, _, _, managed)| bytes(managed, table)).sum();
        let _held = self.shared.acquire_copies(copies, scratch.deadline)?;
        for (table, _, _, managed) in &mut prepared {
            managed.iter_mut().try_for_each(|prepared| table.read_copies(prepared))?;
        }
        let mut total = PushReport::default();
        for (table, ids, gradients, managed) in prepared {
            total += match managed {
                Some(prepared) => table.apply_push(prepared, step, scratch),
                None => table.push_checked(ids, gradients, step, scratch),
            };
        }
        Ok(total)
    }

    pub(crate) fn gate(&self) -> &RwLock<()> {
        &self.gate
    }

    pub(crate) fn shared(&self) -> &SharedMemory {
        &self.shared
    }

    pub(crate) fn has_snapshot(&self) -> &AtomicBool {
        &self.has_snapshot
    }

    /// Counts the calls of maintenance; each goes on where the one before ended.
    pub(crate) fn next_turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    fn check_values(&self, what: &'static str, parts: &[RequestPart<'_>], found: usize) -> Result<(), TableError> {
        let expected = self.check(parts)?;
        if expected == found { Ok(()) } else { Err(TableError::Length { what, expected, found }) }
    }

    /// Each part with the range of its values; the parts were checked.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Initializer, Limits, Optimizer};

    fn tables() -> TableSet {
        let optimizer = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
        let (init, limits) = (Initializer::Uniform { bound: 1.0 }, Limits::default());
        let config = |dim| TableConfig { dim, init, optimizer, limits, stripes: 2, ..TableConfig::default() };
        TableSet::new(1, &[config(2), config(3)], Capacity::default()).unwrap()
    }

    fn part(table: u32, dim: u32, ids: &[u64]) -> RequestPart<'_> {
        RequestPart { table, dim, ids }
    }

    fn held(tables: &TableSet) -> Vec<usize> {
        tables.iter().map(Table::rows).collect()
    }

    #[test]
    fn each_part_reaches_its_own_table() {
        let tables = tables();
        let parts = [part(1, 3, &[8]), part(0, 2, &[8, 9])];
        let mut scratch = Scratch::new();
        let mut first = [0.0; 7];
        let report = tables.lookup(&parts, LookupMode::Train, &mut first, &mut scratch).unwrap();
        assert_eq!((report.created, held(&tables)), (3, vec![2, 1]));
        let pushed = tables.push(&parts, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 0, &mut scratch).unwrap();
        assert_eq!(pushed, PushReport { updated: 3, ..PushReport::default() });
        let mut after = [0.0; 7];
        tables.lookup(&parts, LookupMode::Read, &mut after, &mut scratch).unwrap();
        for index in 0..7 {
            assert_eq!(after[index], first[index] - (index + 1) as f32);
        }
    }

    #[test]
    fn the_same_id_has_other_first_values_in_another_table() {
        let tables = tables();
        let mut out = [0.0; 5];
        let parts = [part(0, 2, &[8]), part(1, 3, &[8])];
        tables.lookup(&parts, LookupMode::Read, &mut out, &mut Scratch::new()).unwrap();
        assert_ne!(out[..2], out[2..4]);
    }

    #[test]
    fn one_bad_part_refuses_the_whole_request() {
        let tables = tables();
        let mut scratch = Scratch::new();
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
        let (nan, _) = refused(&[good, part(1, 3, &[6])], &[1.0, 1.0, 1.0, f32::NAN, 1.0]);
        assert!(matches!(nan, TableError::NotFinite { table: 1, id: 6, position: 1, .. }), "{nan}");
    }

    #[test]
    fn a_refused_push_applies_no_part() {
        let tables = tables();
        let parts = [part(0, 2, &[1]), part(1, 3, &[6])];
        assert!(tables.push(&parts, &[1.0, 1.0, 1.0, f32::NAN, 1.0], 0, &mut Scratch::new()).is_err());
        assert_eq!(held(&tables), [0, 0]);
    }
}
