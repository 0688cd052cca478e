//! The buckets that this server owns.

use std::ops::Range;
use std::sync::Arc;

use zagros_protocol::{BucketMap, Generation, Refusal, RefusalKind, RowKey, ServerIndex, TableId, bucket_of};
use zagros_table::{RequestPart, RowBatch};

/// A bucket map, as one server uses it.
#[derive(Clone, Debug)]
pub(crate) struct OwnedBuckets {
    map: Arc<BucketMap>,
    server: ServerIndex,
    buckets: Box<[bool]>,
    /// This server owns all buckets, so no id is hashed.
    all: bool,
    /// The move of which this server is the source, while it waits for the decision and serves nothing.
    pub(crate) frozen_move: Option<u64>,
}

impl OwnedBuckets {
    pub(crate) fn new(map: Arc<BucketMap>, server: ServerIndex) -> Self {
        let buckets: Box<[bool]> =
            (0..map.bucket_count()).map(|bucket| map.bucket_owner(bucket) == Some(server)).collect();
        Self { server, all: buckets.iter().all(|ours| *ours), buckets, map, frozen_move: None }
    }

    /// The same map at a server that serves nothing until this move is decided.
    pub(crate) fn freeze(&self, bucket_move: u64) -> Self {
        Self { frozen_move: Some(bucket_move), ..self.clone() }
    }

    /// The number of servers up to the last one with a bucket.
    pub(crate) fn server_count(&self) -> u32 {
        self.map.server_count()
    }

    pub(crate) fn has_bucket(&self, bucket: u32) -> bool {
        self.buckets.get(bucket as usize).copied().unwrap_or(false)
    }

    /// Whether this server owned buckets that it does not own under `next`.
    pub(crate) fn has_more_than(&self, next: &Self) -> bool {
        (0..self.bucket_count()).any(|bucket| self.has_bucket(bucket) && !next.has_bucket(bucket))
    }

    #[inline]
    pub(crate) fn owns_row(&self, table: u32, id: u64) -> bool {
        self.all || self.buckets[bucket_of(RowKey { table: TableId(table), id }, self.map.bucket_count()) as usize]
    }

    pub(crate) fn owns_any(&self, buckets: Range<u32>) -> bool {
        let end = (buckets.end as usize).min(self.buckets.len());
        self.buckets.get(buckets.start as usize..end).is_some_and(|range| range.contains(&true))
    }

    pub(crate) fn generation(&self) -> Generation {
        self.map.generation()
    }

    pub(crate) fn bucket_count(&self) -> u32 {
        self.map.bucket_count()
    }

    /// The buckets of this server, as ranges `[first, end)`.
    pub(crate) fn owned_ranges(&self) -> Vec<[u32; 2]> {
        let mut ranges: Vec<[u32; 2]> = Vec::new();
        for bucket in (0..self.bucket_count()).filter(|bucket| self.buckets[*bucket as usize]) {
            match ranges.last_mut() {
                Some(range) if range[1] == bucket => range[1] += 1,
                _ => ranges.push([bucket, bucket + 1]),
            }
        }
        ranges
    }

    pub(crate) fn keep_owned(&self, table: u32, rows: &mut RowBatch) {
        if self.all || rows.ids.is_empty() {
            return;
        }
        rows.retain(rows.slots.len() / rows.ids.len(), |id| self.owns_row(table, id));
    }

    /// Refuses a request that was routed by another map (invariant PL-2), and every request while the server is frozen.
    pub(crate) fn check_request(&self, generation: u64) -> Result<(), Refusal> {
        self.check_generation(generation)?;
        let Some(bucket_move) = self.frozen_move else { return Ok(()) };
        let message = format!(
            "embedding server {} hands buckets over (move {bucket_move}) and waits for the coordinator's decision; try again",
            self.server
        );
        Err(Refusal::new(RefusalKind::Unavailable, message))
    }

    /// Refuses a request that was routed by another map (invariant PL-2).
    pub(crate) fn check_generation(&self, generation: u64) -> Result<(), Refusal> {
        let ours = self.map.generation();
        if generation == ours.0 {
            return Ok(());
        }
        Err(self.moved_refusal(format!(
            "the request was routed by bucket map generation {generation}, but this server has {ours}"
        )))
    }

    /// Refuses rows that another server owns. A row created on the wrong server would be trained there and never found
    /// again. The hash costs a few nanoseconds per id.
    pub(crate) fn check_rows(&self, parts: &[RequestPart<'_>]) -> Result<(), Refusal> {
        if self.all {
            return Ok(());
        }
        for part in parts {
            if let Some(id) = part.ids.iter().find(|id| !self.owns_row(part.table, **id)) {
                let owner = self.map.row_owner(RowKey { table: TableId(part.table), id: *id });
                let generation = self.map.generation();
                let row = format!("id {id} of table {} belongs to server {owner}", part.table);
                return Err(self.moved_refusal(format!("{row} at generation {generation}")));
            }
        }
        Ok(())
    }

    fn moved_refusal(&self, why: String) -> Refusal {
        Refusal::new(RefusalKind::Moved, format!("embedding server {}: {why}; fetch the placement again", self.server))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn owned(servers: u32, server: u32) -> OwnedBuckets {
        OwnedBuckets::new(Arc::new(BucketMap::split_evenly(Generation(3), 64, servers)), ServerIndex(server))
    }

    proptest! {
        /// Invariant PL-1.
        #[test]
        fn each_row_is_owned_by_the_server_that_the_map_routes_it_to(servers in 1_u32..6, table: u32, id: u64) {
            let owners: Vec<u32> = (0..servers).filter(|server| owned(servers, *server).owns_row(table, id)).collect();
            let map = BucketMap::split_evenly(Generation(3), 64, servers);
            prop_assert_eq!(owners, vec![map.row_owner(RowKey { table: TableId(table), id }).0]);
        }
    }

    #[test]
    fn buckets_are_reported_as_ranges() {
        let owners = [0, 1, 1, 0, 1].map(zagros_protocol::ServerIndex);
        let packed: Vec<u8> = owners.iter().flat_map(|owner| owner.0.to_le_bytes()).collect();
        let map = Arc::new(BucketMap::unpack_owners(Generation(1), &packed).unwrap());
        let owned = OwnedBuckets::new(map, ServerIndex(1));
        assert_eq!((owned.bucket_count(), owned.owned_ranges()), (5, vec![[1, 3], [4, 5]]));
        for (range, expected) in [(0..1, false), (0..2, true), (3..4, false), (3..99, true), (7..9, false)] {
            assert_eq!(owned.owns_any(range.clone()), expected, "{range:?}");
        }
    }

    #[test]
    fn a_row_of_another_server_is_named_with_its_owner() {
        let ids: Vec<u64> = (0..100).collect();
        let stray = ids.iter().find(|id| owned(2, 0).owns_row(7, **id)).unwrap();
        let refusal = owned(2, 1).check_rows(&[RequestPart { table: 7, dim: 1, ids: &ids }]).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Moved);
        assert!(refusal.message.contains(&format!("id {stray} of table 7 belongs to server 0")), "{refusal}");
        assert_eq!(owned(1, 0).check_rows(&[RequestPart { table: 7, dim: 1, ids: &ids }]), Ok(()));
    }
}
