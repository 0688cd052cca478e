//! The calls on a table whose rows come and go: a pass over what is in memory, one read of the cold tier for all the
//! rest, a pass over that.

use crate::machine::wide::wide;
use crate::request::batch::Distinct;
use crate::request::group::{Scratch, id_of};
use crate::request::hot::{row, row_mut};
use crate::request::update::Update;
use crate::tier::visit::Visit;
use crate::{Access, LookupReport, PushReport, Rows, Step, Table, TableError};

/// Ids of a lookup that are looked for together: what the cold tier has of them is in memory at once.
const LOOKED_UP: usize = 4096;

impl Table {
    pub(crate) fn lookup_managed(
        &self,
        ids: &[u64],
        access: Access,
        out: &mut [f32],
        scratch: &mut Scratch,
    ) -> Result<LookupReport, TableError> {
        let mut total = LookupReport::default();
        for (ids, out) in std::iter::zip(ids.chunks(LOOKED_UP), out.chunks_mut(LOOKED_UP * self.dim())) {
            total += self.lookup_some(ids, access, out, scratch)?;
        }
        Ok(total)
    }

    fn lookup_some(
        &self,
        ids: &[u64],
        access: Access,
        out: &mut [f32],
        scratch: &mut Scratch,
    ) -> Result<LookupReport, TableError> {
        let mut visit = scratch.visits.pop().unwrap_or_default();
        visit.clear();
        self.copy_hot(ids, access, out, scratch, &mut visit);
        if access == Access::Read && !visit.todo.is_empty() && self.is_indebted() {
            self.pay_all()?;
            visit.clear();
            self.copy_hot(ids, access, out, scratch, &mut visit);
        }
        let done = match access {
            _ if visit.todo.is_empty() => Ok(LookupReport::default()),
            Access::Train => self.copy_brought(&mut visit, out),
            Access::Read => self.copy_cold(&mut visit, out),
        };
        scratch.keep(visit);
        done
    }

    /// Copies the rows that are in memory; the others are left to do.
    fn copy_hot(&self, ids: &[u64], access: Access, out: &mut [f32], scratch: &mut Scratch, visit: &mut Visit) {
        let (layout, tick) = (*self.layout(), self.tick());
        scratch.group(ids, self.stripes());
        self.for_each_group(scratch, |stripe, group| {
            let before = visit.todo.len();
            group.keys.iter().for_each(|key| stripe.prefetch_entry(*key));
            for index in 0..group.keys.len() {
                let (key, position) = (group.keys[index], group.positions[index]);
                let found = stripe.find(key).filter(|slot| !self.marks().expired(stripe.mark(*slot), tick));
                let Some(slot) = found else {
                    visit.add(key, position, stripe.departures, true);
                    continue;
                };
                if access == Access::Train {
                    *stripe.mark_mut(slot) = self.marks().used(stripe.mark(slot), tick);
                }
                layout.read(stripe.slot(slot), row_mut(out, position, layout.dim));
            }
            stripe.count_lookups(group.keys.len(), visit.todo.len() - before);
        });
    }

    /// For training: brings the rows to do to memory, or makes them, and copies them.
    fn copy_brought(&self, visit: &mut Visit, out: &mut [f32]) -> Result<LookupReport, TableError> {
        self.check_room(visit)?;
        visit.read(self).map_err(|source| self.unreadable(source))?;
        visit.sighting = true;
        let (layout, mut refused) = (*self.layout(), 0);
        self.settle(visit, &mut |stripe, todo, slot| {
            let weights = row_mut(out, todo.position, layout.dim);
            match slot {
                Some(slot) => layout.read(stripe.slot(slot), weights),
                None => weights.fill(0.0),
            }
            refused += u64::from(slot.is_none());
        })?;
        Ok(LookupReport { created: visit.created, refused, ..LookupReport::default() })
    }

    /// For reading: copies what the cold tier has of the rows to do, and leaves all where it is.
    fn copy_cold(&self, visit: &mut Visit, out: &mut [f32]) -> Result<LookupReport, TableError> {
        visit.read(self).map_err(|source| self.unreadable(source))?;
        let (layout, tick, mut report) = (*self.layout(), self.tick(), LookupReport::default());
        for todo in &visit.todo {
            let weights = row_mut(out, todo.position, layout.dim);
            if let Some(row) = visit.cold_copy(todo, self, tick) {
                layout.read(row, weights);
                continue;
            }
            if self.is_selective() {
                weights.fill(0.0);
            } else {
                layout.fill_weights(id_of(todo.key), weights);
            }
            report.missing += 1;
        }
        Ok(report)
    }

    /// What a push does before any part of any table is changed: sums what is repeated and looks which rows are not in
    /// memory. Their cold copies are to be read next ([`Self::read_copies`]).
    ///
    /// # Errors
    /// When memory is full.
    pub(crate) fn prepare_push<'a>(
        &self,
        ids: &'a [u64],
        gradients: &'a [f32],
        scratch: &mut Scratch,
    ) -> Result<Prepared<'a>, TableError> {
        let distinct = self.distinct(ids, gradients, scratch);
        let mut visit = scratch.visits.pop().unwrap_or_default();
        visit.clear();
        self.for_each_group(scratch, |stripe, group| {
            group.keys.iter().for_each(|key| stripe.prefetch_entry(*key));
            for (key, position) in std::iter::zip(group.keys, group.positions) {
                visit.add(*key, *position, stripe.departures, stripe.find(*key).is_none());
            }
        });
        self.check_room(&visit)?;
        Ok(Prepared { distinct, visit })
    }

    /// Reads the cold copies of the rows of a push that are not in memory.
    ///
    /// # Errors
    /// When the cold tier cannot be read.
    pub(crate) fn read_copies(&self, prepared: &mut Prepared<'_>) -> Result<(), TableError> {
        prepared.visit.read(self).map_err(|source| self.unreadable(source))
    }

    /// Bytes of the cold copies that a push needs at most.
    pub(crate) fn bytes_of_copies(&self, prepared: &Prepared<'_>) -> usize {
        let rows =
            if self.is_tiered() { prepared.visit.todo.iter().filter(|todo| todo.is_missing()).count() } else { 0 };
        rows * (self.stride() + 1) * size_of::<u32>()
    }

    /// Applies what was prepared. Nothing can go wrong any more: the gradient of a row that left memory meanwhile and
    /// cannot be read back is kept until it can.
    pub(crate) fn apply_push(&self, prepared: Prepared<'_>, step: Step, scratch: &mut Scratch) -> PushReport {
        let Prepared { distinct, mut visit } = prepared;
        let mut report = PushReport { skipped: distinct.skipped, repeated: distinct.repeated, ..PushReport::default() };
        let mut update = Update::new(*self.layout(), step, &mut scratch.weights);
        let settled = self.settle(&mut visit, &mut |stripe, todo, slot| {
            let Some(slot) = slot else {
                report.refused += 1;
                return;
            };
            stripe.keep(todo.key, slot);
            let gradient = row(&distinct.gradients, todo.position, self.dim());
            wide(
                #[inline(always)]
                || update.apply(stripe.slot_mut(slot), todo.key, gradient),
            );
            report.updated += 1;
        });
        if settled.is_err() {
            report.updated += visit.todo.len() as u64;
            self.owe(&visit.todo, &distinct.gradients, step);
        }
        report.created = visit.created;
        scratch.keep(visit);
        report
    }

    /// Puts whole rows in, some at a time, with room made for each lot.
    pub(crate) fn insert_managed(&self, rows: &Rows, scratch: &mut Scratch) -> Result<u64, TableError> {
        self.pay_all()?;
        let (tick, mut new, mut visit) = (self.tick(), 0, scratch.visits.pop().unwrap_or_default());
        scratch.group(&rows.ids, self.stripes());
        visit.clear();
        self.for_each_group(scratch, |_, group| {
            std::iter::zip(group.keys, group.positions).for_each(|(key, position)| visit.add(*key, *position, 0, true));
        });
        self.check_room(&visit)?;
        self.for_each_lot(&mut visit.todo, &mut |stripe, todo| {
            new += u64::from(stripe.find(todo.key).is_none());
            let slot = stripe.put(todo.key, row(&rows.slots, todo.position, self.stride()));
            let mark = rows.marks.get(todo.position as usize).copied();
            *stripe.mark_mut(slot) = mark.unwrap_or_else(|| self.marks().first(tick));
        });
        scratch.keep(visit);
        Ok(new)
    }

    /// Refuses rows that would have to come to memory when it is full beyond measure and none can leave it.
    fn check_room(&self, visit: &Visit) -> Result<(), TableError> {
        let shared = self.shared();
        let hopeless = || self.is_tiered() && shared.budget.is_exhausted() && shared.failure().is_some();
        let Some(first) = visit.missing().filter(|_| hopeless()) else {
            return Ok(());
        };
        let mut stripe = self.lock(self.stripe_of(first.key));
        let (used, limit) = shared.budget.used();
        match self.evict(&mut stripe, &mut [], 0, 1) {
            Ok(_) => Ok(()),
            Err(source) => Err(TableError::Full { table: self.number(), used, limit, source }),
        }
    }
}

/// A push to one table that cannot fail any more.
pub(crate) struct Prepared<'a> {
    distinct: Distinct<'a>,
    visit: Visit,
}
