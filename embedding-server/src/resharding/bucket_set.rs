//! The buckets of a move.

use std::fmt;

use zagros_protocol::control::BucketMove;
use zagros_protocol::{PackError, RowKey, TableId, bucket_of};

/// A move as the coordinator announces it.
#[derive(Debug)]
pub(crate) struct PlannedMove {
    pub(crate) id: u64,
    pub(crate) source: u32,
    pub(crate) target: u32,
    /// In ascending order.
    pub(crate) buckets: Vec<u32>,
    moves: Box<[bool]>,
}

impl PlannedMove {
    /// Reads an announced move of a model with `total` buckets.
    pub(crate) fn new(announced: &BucketMove, total: u32) -> Result<Self, PackError> {
        let (words, rest) = announced.buckets.as_chunks::<4>();
        let buckets: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        if !rest.is_empty() || buckets.iter().any(|bucket| *bucket >= total) {
            let (expected, found) = (4 * total as usize, announced.buckets.len());
            return Err(PackError::Length { what: "buckets of a move", expected, found });
        }
        let mut moves = vec![false; total as usize].into_boxed_slice();
        buckets.iter().for_each(|bucket| moves[*bucket as usize] = true);
        let BucketMove { id, source, target, .. } = *announced;
        Ok(Self { id, source, target, buckets, moves })
    }

    #[inline]
    pub(crate) fn has_row(&self, table: u32, id: u64) -> bool {
        self.moves[bucket_of(RowKey { table: TableId(table), id }, self.moves.len() as u32) as usize]
    }

    pub(crate) fn has_bucket(&self, bucket: u32) -> bool {
        self.moves.get(bucket as usize).copied().unwrap_or(false)
    }
}

impl fmt::Display for PlannedMove {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, source, target, buckets, .. } = self;
        write!(to, "move {id} of {} buckets from embedding server {source} to {target}", buckets.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announced_move_is_read_and_a_bucket_that_is_none_is_refused() {
        let announced = |buckets: &[u32]| {
            let buckets: Vec<u8> = buckets.iter().flat_map(|bucket| bucket.to_le_bytes()).collect();
            BucketMove { id: 3, source: 0, target: 2, buckets: buckets.into() }
        };
        let plan = PlannedMove::new(&announced(&[1, 6]), 8).unwrap();
        assert_eq!((0..9).filter(|bucket| plan.has_bucket(*bucket)).collect::<Vec<_>>(), [1, 6]);
        for id in 0..100 {
            assert_eq!(plan.has_row(2, id), plan.has_bucket(bucket_of(RowKey { table: TableId(2), id }, 8)));
        }
        assert_eq!(plan.to_string(), "move 3 of 2 buckets from embedding server 0 to 2");
        assert!(PlannedMove::new(&announced(&[8]), 8).is_err());
        assert!(PlannedMove::new(&BucketMove { buckets: vec![1, 0, 0].into(), ..announced(&[]) }, 8).is_err());
    }
}
