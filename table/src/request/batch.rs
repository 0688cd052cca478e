//! The batched calls on a table: lookup, push, insert. A request takes each stripe's lock once, and holds it for memory
//! work only.

use std::borrow::Cow;

use zagros_zip::ZipEq;

use crate::machine::run_wide;
use crate::request::group::RequestBuffers;
use crate::request::repeated_ids;
use crate::request::row_loops::row;
use crate::{LookupMode, LookupReport, NonFinitePolicy, PushReport, PushStep, RowBatch, Table, TableError};

impl Table {
    /// Writes the weights of `ids` into `out`, row-major `[ids.len(), dim]`, in the order of `ids`.
    pub fn lookup(
        &self,
        ids: &[u64],
        access: LookupMode,
        out: &mut [f32],
        scratch: &mut RequestBuffers,
    ) -> Result<LookupReport, TableError> {
        self.check_rows("rows", ids, self.dim(), out.len())?;
        self.lookup_checked(ids, access, out, scratch)
    }

    /// Applies one gradient per id, row-major `[ids.len(), dim]`. Gradients of equal ids are summed first. A missing
    /// row is created, then updated. `step` decides three things: the learning rate under a schedule, the rounding of
    /// narrow weights, and the weight of penalties.
    /// On an error nothing is applied.
    pub fn push(
        &self,
        ids: &[u64],
        gradients: &[f32],
        step: impl Into<PushStep>,
        scratch: &mut RequestBuffers,
    ) -> Result<PushReport, TableError> {
        let step = step.into();
        self.check_gradients(ids, gradients)?;
        if !self.is_managed {
            return Ok(self.push_checked(ids, gradients, step, scratch));
        }
        let mut prepared = self.prepare_push(ids, gradients, scratch)?;
        let _held = self.shared.acquire_copies(self.bytes_of_copies(&prepared), scratch.deadline)?;
        self.read_copies(&mut prepared, scratch.deadline)?;
        Ok(self.apply_push(prepared, step, scratch))
    }

    /// Inserts whole rows and replaces rows that exist. Of equal ids the last one stays. Returns the number of new
    /// rows. Rows without access metadata count as used now.
    /// On an error nothing changes.
    pub fn insert(&self, rows: &RowBatch, scratch: &mut RequestBuffers) -> Result<u64, TableError> {
        let RowBatch { ids, slots, access } = rows;
        self.check_rows("slots", ids, self.stride(), slots.len())?;
        self.check_rows("access metadata", ids, usize::from(!access.is_empty()), access.len())?;
        if self.is_managed {
            return self.insert_managed(rows, scratch);
        }
        let mut new = 0;
        scratch.group_ids(ids, self.stripes());
        let (mut changes, is_logged) = (std::mem::take(&mut scratch.changes), self.is_logged());
        self.for_each_group(scratch, |stripe, group| {
            let old_rows = stripe.row_count();
            for (key, position) in group.keys.iter().zip_eq(group.positions) {
                let words = row(slots, *position, self.stride());
                stripe.put(*key, words);
                if is_logged {
                    changes.note_row(*key, words, None);
                }
            }
            self.append_changes(stripe.number, &mut changes);
            new += (stripe.row_count() - old_rows) as u64;
        });
        scratch.changes = changes;
        Ok(new)
    }

    pub(crate) fn lookup_checked(
        &self,
        ids: &[u64],
        access: LookupMode,
        out: &mut [f32],
        scratch: &mut RequestBuffers,
    ) -> Result<LookupReport, TableError> {
        if self.is_managed {
            return self.lookup_managed(ids, access, out, scratch);
        }
        // The loop is compiled for several vector widths. This call chooses the width once per request.
        Ok(run_wide(
            #[inline(always)]
            || match access {
                LookupMode::Train => {
                    LookupReport { created: self.lookup_for_training(ids, out, scratch), ..LookupReport::default() }
                }
                LookupMode::Read => {
                    LookupReport { missing: self.lookup_for_reading(ids, out, scratch), ..LookupReport::default() }
                }
            },
        ))
    }

    pub(crate) fn push_checked(
        &self,
        ids: &[u64],
        gradients: &[f32],
        step: PushStep,
        scratch: &mut RequestBuffers,
    ) -> PushReport {
        let DistinctGradients { gradients, skipped, repeated, .. } = self.distinct_gradients(ids, gradients, scratch);
        let pushed = run_wide(
            #[inline(always)]
            || self.update_groups(&gradients, step, scratch),
        );
        PushReport { skipped, repeated, ..pushed }
    }

    /// Sums the gradients of each row and skips unsafe gradients. `scratch` groups the rows afterwards.
    pub(crate) fn distinct_gradients<'a>(
        &self,
        ids: &'a [u64],
        gradients: &'a [f32],
        scratch: &mut RequestBuffers,
    ) -> DistinctGradients<'a> {
        let mut rows = DistinctGradients { gradients: Cow::Borrowed(gradients), skipped: 0, repeated: 0 };
        let (mut kept, largest) = (Cow::Borrowed(ids), self.layout.limits.largest_gradient());
        if self.layout.non_finite == NonFinitePolicy::Skip && !all_within(gradients, largest) {
            let (safe_ids, safe) = rows_within(ids, gradients, self.dim(), largest);
            (kept, rows.gradients) = (Cow::Owned(safe_ids), Cow::Owned(safe));
            rows.skipped = (ids.len() - kept.len()) as u64;
        }
        scratch.group_ids(&kept, self.stripes());
        if scratch.has_repeats() {
            let (unique, sums) = repeated_ids::sum_repeated(&kept, &rows.gradients, self.dim(), largest);
            scratch.group_ids(&unique, self.stripes());
            rows.repeated = (kept.len() - unique.len()) as u64;
            rows.gradients = Cow::Owned(sums);
        }
        rows
    }

    /// Checks the lengths of a push, and the size of its values if the table refuses large ones.
    pub(crate) fn check_gradients(&self, ids: &[u64], gradients: &[f32]) -> Result<(), TableError> {
        self.check_rows("gradients", ids, self.dim(), gradients.len())?;
        let largest = self.layout.limits.largest_gradient();
        if self.layout.non_finite == NonFinitePolicy::Skip || all_within(gradients, largest) {
            return Ok(());
        }
        let worst = gradients.iter().position(|value| !is_within(*value, largest)).unwrap_or(0);
        let (id, position) = (ids[worst / self.dim()], worst % self.dim());
        let (table, value) = (self.number, gradients[worst]);
        Err(if value.is_finite() {
            TableError::TooLarge { table, id, position, value }
        } else {
            TableError::NotFinite { table, id, position, value }
        })
    }

    /// Checks that `found` values are `width` values per id.
    pub(crate) fn check_rows(
        &self,
        what: &'static str,
        ids: &[u64],
        width: usize,
        found: usize,
    ) -> Result<(), TableError> {
        if ids.len() > u32::MAX as usize {
            return Err(TableError::TooManyRows { table: self.number, rows: ids.len() });
        }
        match ids.len().checked_mul(width) {
            Some(expected) if expected == found => Ok(()),
            expected => Err(TableError::Length { what, expected: expected.unwrap_or(usize::MAX), found }),
        }
    }
}

/// The gradients of a push, one per row. A [`RequestBuffers`] groups the rows.
pub(crate) struct DistinctGradients<'a> {
    pub(crate) gradients: Cow<'a, [f32]>,
    /// Gradients that were skipped because they were not finite or too large.
    pub(crate) skipped: u64,
    /// Gradients that were added to another gradient of the same id.
    pub(crate) repeated: u64,
}

/// The rows whose gradients are within `largest`, with these gradients.
fn rows_within(ids: &[u64], gradients: &[f32], dim: usize, largest: f32) -> (Vec<u64>, Vec<f32>) {
    let (mut kept, mut safe) = (Vec::with_capacity(ids.len()), Vec::with_capacity(gradients.len()));
    for (position, id) in ids.iter().enumerate() {
        let gradient = row(gradients, position as u32, dim);
        if all_within(gradient, largest) {
            kept.push(*id);
            safe.extend_from_slice(gradient);
        }
    }
    (kept, safe)
}

/// Has no branch per value, so the compiler vectorises it.
fn all_within(values: &[f32], largest: f32) -> bool {
    values.iter().fold(true, |good, value| good & is_within(*value, largest))
}

/// Compares magnitudes as integers: their bits have the same order, and infinity and NaN are above all others.
#[inline(always)]
fn is_within(value: f32, largest: f32) -> bool {
    const MAGNITUDE: u32 = 0x7fff_ffff;
    (value.to_bits() & MAGNITUDE) as i32 <= largest.to_bits() as i32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::optimizer::LARGEST;
    use crate::{Initializer, Optimizer, TableConfig, UpdateLimits};

    const UNIFORM: Initializer = Initializer::Uniform { bound: 1.0 };
    const SGD: Optimizer = Optimizer::Sgd { lr: 1.0, momentum: 0.0, l2: 0.0 };

    fn table(optimizer: Optimizer) -> Table {
        Table::new(5, 2, &TableConfig { dim: 2, init: UNIFORM, optimizer, stripes: 4, ..TableConfig::default() })
            .unwrap()
    }

    fn read(table: &Table, ids: &[u64]) -> Vec<f32> {
        let mut out = vec![f32::NAN; ids.len() * table.dim()];
        table.lookup(ids, LookupMode::Read, &mut out, &mut RequestBuffers::new()).unwrap();
        out
    }

    #[test]
    fn a_refused_request_changes_nothing() {
        let table = table(SGD);
        let mut scratch = RequestBuffers::new();
        let bad = table.push(&[1, 2], &[1.0, 1.0, f32::NEG_INFINITY, 1.0], 0, &mut scratch).unwrap_err();
        assert_eq!(bad, TableError::NotFinite { table: 2, id: 2, position: 0, value: f32::NEG_INFINITY });
        let short = table.push(&[1, 2], &[1.0; 3], 0, &mut scratch).unwrap_err();
        assert_eq!(short, TableError::Length { what: "gradients", expected: 4, found: 3 });
        assert!(table.lookup(&[1], LookupMode::Train, &mut [0.0; 3], &mut scratch).is_err());
        let rows = RowBatch { ids: vec![1], slots: vec![0; 3], access: Vec::new() };
        assert!(table.insert(&rows, &mut scratch).is_err());
        let rows = RowBatch { slots: vec![0; 2], access: vec![0; 2], ..rows };
        assert!(table.insert(&rows, &mut scratch).is_err());
        assert_eq!(table.row_count(), 0);
    }

    #[test]
    fn a_table_may_skip_gradients_that_are_not_finite() {
        let config =
            TableConfig { dim: 2, optimizer: SGD, non_finite: NonFinitePolicy::Skip, ..TableConfig::default() };
        let table = Table::new(5, 2, &config).unwrap();
        let gradients = [1.0, 2.0, f32::NAN, 1.0, 4.0, 8.0, 1.0, f32::INFINITY, 16.0, 32.0];
        let report = table.push(&[1, 2, 3, 1, 1], &gradients, 0, &mut RequestBuffers::new()).unwrap();
        assert_eq!(report, PushReport { updated: 2, created: 2, repeated: 1, skipped: 2, refused: 0 });
        assert_eq!(read(&table, &[1, 2, 3]), [-17.0, -34.0, 0.0, 0.0, -4.0, -8.0]);
        let short = table.push(&[1, 2], &[f32::NAN; 3], 0, &mut RequestBuffers::new()).unwrap_err();
        assert_eq!(short, TableError::Length { what: "gradients", expected: 4, found: 3 });
    }

    /// Gradient values of every size, most of them at the ends of the range.
    fn extreme() -> impl Strategy<Value = f32> {
        let ends = [0.0, 1.0, LARGEST, LARGEST * 1.001, 1e19, 3e38, f32::MAX, f32::INFINITY, f32::NAN];
        (prop::sample::select(ends.to_vec()), any::<bool>()).prop_map(|(value, sign)| if sign { value } else { -value })
    }

    fn all_optimizers(lr: f32, l2: f32) -> [Optimizer; 7] {
        let (epsilon, initial_accumulator) = (1e-30, 0.0);
        let adam = Optimizer::Adam { lr, beta1: 0.9, beta2: 0.999, epsilon, l2 };
        [
            Optimizer::Sgd { lr, momentum: 0.0, l2 },
            Optimizer::Sgd { lr, momentum: 0.9999, l2 },
            Optimizer::Adagrad { lr, epsilon, initial_accumulator, l2 },
            Optimizer::RowAdagrad { lr, epsilon, initial_accumulator, l2 },
            adam,
            Optimizer::AdamW { lr, beta1: 0.0, beta2: 0.999_999, epsilon, weight_decay: l2 },
            Optimizer::Ftrl { lr, beta: 0.0, l1: 0.0, l2 },
        ]
    }

    /// Before LARGEST, two pushes of 3e38 made an SGD row infinite, and stopped other rows from learning: a number
    /// divided by an infinite sum is 0.
    #[test]
    fn a_gradient_that_would_drive_a_row_out_of_range_is_refused_or_skipped() {
        for optimizer in all_optimizers(1.0, 0.0) {
            let new_table = |non_finite, limits| {
                let config = TableConfig { dim: 2, optimizer, non_finite, limits, ..TableConfig::default() };
                Table::new(5, 2, &config).unwrap()
            };
            let push =
                |table: &Table, value: f32| table.push(&[1, 2], &[0.5, value, 0.5, 0.5], 0, &mut RequestBuffers::new());
            let refusing = new_table(NonFinitePolicy::Refuse, UpdateLimits::default());
            let refused = push(&refusing, -3e38).unwrap_err();
            assert_eq!(refused, TableError::TooLarge { table: 2, id: 1, position: 1, value: -3e38 });
            assert!(refused.to_string().contains("beyond 1.0995116e12"), "{refused}");
            assert_eq!(refusing.row_count(), 0);
            let skipping = new_table(NonFinitePolicy::Skip, UpdateLimits::default());
            for _ in 0..2 {
                let report = push(&skipping, 3e38).unwrap();
                assert_eq!((report.updated, report.skipped), (1, 1), "{optimizer:?}");
            }
            let old_rows = read(&skipping, &[1]);
            push(&skipping, 0.5).unwrap();
            assert_ne!(read(&skipping, &[1]), old_rows, "{optimizer:?}: it learns as before");
            // A clipped gradient may have any size.
            let clipping =
                new_table(NonFinitePolicy::Refuse, UpdateLimits { clip_norm: 1.0, ..UpdateLimits::default() });
            assert_eq!(push(&clipping, 3e38).unwrap().updated, 2);
        }
    }

    proptest! {
        #[test]
        fn size_is_that_of_the_standard_library(values: Vec<u32>, largest in prop_oneof![Just(f32::MAX), Just(LARGEST)]) {
            let values: Vec<f32> = values.into_iter().map(f32::from_bits).collect();
            prop_assert_eq!(all_within(&values, largest), values.iter().all(|value| value.abs() <= largest));
        }

        /// Rows stay finite whatever gradients a table accepts, at the widest settings that a job file allows. A row
        /// also accepts the next gradient.
        #[test]
        fn rows_stay_finite_whatever_is_pushed(
            pushes in prop::collection::vec(prop::collection::vec(extreme(), 3), 1..40),
            l2 in prop_oneof![Just(0.0_f32), Just(1.0)],
            lr in prop_oneof![Just(1e-12_f32), Just(0.1), Just(1000.0)],
            clip_norm in prop_oneof![3 => Just(f32::INFINITY), 1 => Just(1.0_f32)],
        ) {
            for optimizer in all_optimizers(lr, l2) {
                let limits = UpdateLimits { clip_norm, ..UpdateLimits::default() };
                let config = TableConfig {
                    dim: 3, init: UNIFORM, optimizer, limits, non_finite: NonFinitePolicy::Skip, ..TableConfig::default()
                };
                let table = Table::new(5, 2, &config).unwrap();
                table.lookup(&[7], LookupMode::Train, &mut [0.0; 3], &mut RequestBuffers::new()).unwrap();
                for gradient in &pushes {
                    table.push(&[7, 7], &gradient.repeat(2), 0, &mut RequestBuffers::new()).unwrap();
                }
                let mut rows = RowBatch::default();
                (0..table.stripes())
                    .for_each(|stripe| table.read_rows(stripe, &table.ids_in_memory(stripe), &mut rows));
                let slot: &[f32] = bytemuck::cast_slice(&rows.slots);
                prop_assert!(slot.iter().all(|value| value.is_finite()), "{:?}: {:?}", optimizer, slot);
            }
        }
    }
}
