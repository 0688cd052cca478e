//! Counters of a table since its creation.

use std::iter::Sum;
use std::ops::AddAssign;

use bytemuck::{Pod, Zeroable};
use zagros_zip::ZipEq;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct TableCounts {
    /// Ids in lookups whose row was in memory.
    pub hits: u64,
    /// Ids in lookups whose row was not in memory.
    pub misses: u64,
    pub created: u64,
    /// Created rows whose id passed an admission filter.
    pub admitted: u64,
    /// Ids that the admission filter refused, in training lookups and in pushes. Each occurrence counts.
    pub refused: u64,
    /// Rows evicted to the cold tier.
    pub evicted: u64,
    /// Rows dropped because memory was short or their norm was small.
    pub dropped: u64,
    /// Rows removed because they were past their time to live.
    pub expired: u64,
    /// Rows read from the cold tier.
    pub cold_reads: u64,
    /// Rows paged in from the cold tier.
    pub promoted: u64,
    /// Ids in hints of later batches.
    pub hinted: u64,
    /// Rows that hints brought from the cold tier before their lookup.
    pub ready: u64,
    /// Rows that a lookup for training had to read from the cold tier itself.
    pub late: u64,
    /// Gradients of rows that came after two later steps had begun, and were updates of their own.
    pub late_gradients: u64,
    /// How often a thread found the lock of a stripe taken.
    pub contended: u64,
    /// Nanoseconds that threads waited for those locks. 0 without a clock.
    pub waited_nanos: u64,
}

impl AddAssign for TableCounts {
    fn add_assign(&mut self, other: Self) {
        add_fields(self, &other);
    }
}

impl Sum for TableCounts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |mut sum, counts| {
            sum += counts;
            sum
        })
    }
}

/// Adds each field to the one of the same place. All fields of a report are `u64`.
pub(crate) fn add_fields<T: Pod>(report: &mut T, more: &T) {
    let fields: &mut [u64] = bytemuck::cast_slice_mut(std::slice::from_mut(report));
    let addends: &[u64] = bytemuck::cast_slice(std::slice::from_ref(more));
    fields.iter_mut().zip_eq(addends).for_each(|(field, addend)| *field += addend);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_count_is_summed_with_its_own_kind() {
        let one: TableCounts = bytemuck::cast(std::array::from_fn::<u64, 16, _>(|place| place as u64 + 1));
        let mut twice = one;
        twice += one;
        assert_eq!([one, one].into_iter().sum::<TableCounts>(), twice);
        let shown = format!("{twice:?}");
        let numbers = shown.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse::<u64>().ok());
        assert!(numbers.eq((1..=16).map(|number| 2 * number)), "{shown}");
    }
}
