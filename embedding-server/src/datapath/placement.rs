//! What this server owns under the map it was given.

use std::sync::Arc;

use zagros_protocol::{BucketMap, Refusal, RefusalKind, RowKey, ServerIndex, TableId, bucket_of};
use zagros_table::Part;

/// A bucket map as one server sees it.
#[derive(Debug)]
pub(crate) struct Owned {
    map: Arc<BucketMap>,
    server: ServerIndex,
    /// Per bucket, whether it is ours.
    buckets: Box<[bool]>,
    /// Every bucket is ours: nothing to hash.
    all: bool,
}

impl Owned {
    pub(crate) fn new(map: Arc<BucketMap>, server: ServerIndex) -> Self {
        let buckets: Box<[bool]> = (0..map.buckets()).map(|bucket| map.owner(bucket) == Some(server)).collect();
        Self { server, all: buckets.iter().all(|ours| *ours), buckets, map }
    }

    /// Whether a row is this server's.
    #[inline]
    pub(crate) fn owns(&self, table: u32, id: u64) -> bool {
        self.all || self.buckets[bucket_of(RowKey { table: TableId(table), id }, self.map.buckets()) as usize]
    }

    /// Refuses a sender that routed by another map (invariant PL-2).
    pub(crate) fn check_generation(&self, generation: u64) -> Result<(), Refusal> {
        let ours = self.map.generation();
        if generation == ours.0 {
            return Ok(());
        }
        Err(self.moved(format!("the request was routed by generation {generation}, this server has {ours}")))
    }

    /// Refuses rows that belong to another server. The hash costs a few nanoseconds per id; a row that is created on
    /// the wrong server would be trained there and never found again.
    pub(crate) fn check_rows(&self, parts: &[Part<'_>]) -> Result<(), Refusal> {
        if self.all {
            return Ok(());
        }
        for part in parts {
            if let Some(id) = part.ids.iter().find(|id| !self.owns(part.table, **id)) {
                let owner = self.map.route(RowKey { table: TableId(part.table), id: *id });
                let generation = self.map.generation();
                let row = format!("id {id} of table {} belongs to server {owner}", part.table);
                return Err(self.moved(format!("{row} at generation {generation}")));
            }
        }
        Ok(())
    }

    fn moved(&self, why: String) -> Refusal {
        Refusal::new(RefusalKind::Moved, format!("embedding server {}: {why}; fetch the placement again", self.server))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zagros_protocol::Generation;

    use super::*;

    fn owned(servers: u32, server: u32) -> Owned {
        Owned::new(Arc::new(BucketMap::even(Generation(3), 64, servers)), ServerIndex(server))
    }

    proptest! {
        /// Invariant PL-1.
        #[test]
        fn each_row_is_owned_by_the_server_that_the_map_routes_it_to(servers in 1_u32..6, table: u32, id: u64) {
            let owners: Vec<u32> = (0..servers).filter(|server| owned(servers, *server).owns(table, id)).collect();
            let map = BucketMap::even(Generation(3), 64, servers);
            prop_assert_eq!(owners, vec![map.route(RowKey { table: TableId(table), id }).0]);
        }
    }

    #[test]
    fn a_refusal_names_both_generations() {
        let refusal = owned(2, 1).check_generation(2).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Moved);
        assert!(refusal.message.contains("generation 2, this server has 3"), "{refusal}");
        assert_eq!(owned(2, 1).check_generation(3), Ok(()));
    }

    #[test]
    fn a_row_of_another_server_is_named_with_its_owner() {
        let ids: Vec<u64> = (0..100).collect();
        let stray = ids.iter().find(|id| owned(2, 0).owns(7, **id)).unwrap();
        let refusal = owned(2, 1).check_rows(&[Part { table: 7, dim: 1, ids: &ids }]).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Moved);
        assert!(refusal.message.contains(&format!("id {stray} of table 7 belongs to server 0")), "{refusal}");
        assert_eq!(owned(1, 0).check_rows(&[Part { table: 7, dim: 1, ids: &ids }]), Ok(()));
    }
}
