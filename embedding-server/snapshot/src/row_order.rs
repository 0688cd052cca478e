//! The order of rows in a file: sorted by (bucket, id), and divided into ranges of a block each.

use std::ops::Range;

use zagros_protocol::{RowKey, TableId, bucket_of};

pub(crate) struct RowOrder {
    places: Vec<(u32, u64, u32)>,
}

/// Consecutive rows in this order, and their buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowRange {
    pub(crate) rows: Range<usize>,
    /// `[first, end)`.
    pub(crate) buckets: Range<u32>,
}

impl RowOrder {
    pub(crate) fn new(number: u32, buckets: u32, ids: &[u64]) -> Self {
        let bucket = |id| bucket_of(RowKey { table: TableId(number), id }, buckets);
        let place = |(position, id): (usize, &u64)| (bucket(*id), *id, position as u32);
        let mut places: Vec<_> = ids.iter().enumerate().map(place).collect();
        places.sort_unstable();
        Self { places }
    }

    pub(crate) fn block_ranges(&self, most: usize) -> impl Iterator<Item = RowRange> {
        let most = most.max(1);
        (0..self.places.len()).step_by(most).map(move |start| {
            let rows = start..(start + most).min(self.places.len());
            // A range has at least one row, so these positions exist.
            let buckets = self.places[rows.start].0..self.places[rows.end - 1].0 + 1;
            RowRange { rows, buckets }
        })
    }

    pub(crate) fn ids(&self, range: &RowRange) -> impl ExactSizeIterator<Item = u64> {
        self.places[range.rows.clone()].iter().map(|place| place.1)
    }

    /// Original positions of a range's rows, in order.
    pub(crate) fn positions(&self, range: &RowRange) -> impl ExactSizeIterator<Item = usize> {
        self.places[range.rows.clone()].iter().map(|place| place.2 as usize)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zagros_zip::ZipEq;

    use super::*;

    proptest! {
        #[test]
        fn ranges_are_consecutive_and_have_each_row_once(ids in prop::collection::vec(any::<u64>(), 0..300), most in 1_usize..40) {
            let order = RowOrder::new(3, 64, &ids);
            let (mut seen, mut last) = (Vec::new(), 0);
            for range in order.block_ranges(most) {
                prop_assert!(range.rows.len() <= most && !range.rows.is_empty());
                prop_assert!(range.buckets.start >= last);
                last = range.buckets.end - 1;
                for (id, position) in order.ids(&range).zip_eq(order.positions(&range)) {
                    prop_assert_eq!(ids[position], id);
                    let bucket = bucket_of(RowKey { table: TableId(3), id }, 64);
                    prop_assert!(range.buckets.contains(&bucket));
                    seen.push(position);
                }
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..ids.len()).collect::<Vec<_>>());
        }
    }
}
