//! Routing: from the ids of a batch to one request per server, and from the answers back to the order of the batch.
//!
//! ```text
//!  UniqueIds                      BatchRoute: one RoutePart per server that owns some of the ids
//!  table 0: 7 9 4 2   ── map ──►  server 0: table 0: 9 2 (positions 1 3) · table 1: 5 (0)
//!  table 1: 5 8                   server 1: table 0: 7 4 (positions 0 2) · table 1: 8 (1)
//! ```
//!
//! A lookup and its push use the same route. [`RoutedIds`] keeps the route, so each id is hashed once. If buckets move
//! meanwhile, each part that is not answered yet is divided again, by the new map (`split.rs`).

use std::ops::Deref;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use zagros_protocol::{BucketMap, Generation};

use super::dedup::UniqueIds;
use super::route_part::RoutePart;
use super::route_part::{split_by_owner, split_part};

/// The distinct ids of a batch, and their route after the first call has computed it.
#[derive(Debug, Default)]
pub struct RoutedIds {
    unique: UniqueIds,
    route: ArcSwapOption<BatchRoute>,
}

/// The owner of each id of a batch, under one bucket map.
#[derive(Debug)]
pub(crate) struct BatchRoute {
    generation: Generation,
    /// One part for each server that owns some of the ids, in the order of the servers.
    pub(crate) parts: Vec<Arc<RoutePart>>,
}

impl RoutedIds {
    /// The route of these ids under `map`, for `servers` servers. It is computed once for each generation of the map.
    /// If the ids were looked up under an older map, they are routed again (invariant PL-2).
    pub(crate) fn route(&self, map: &BucketMap, servers: usize) -> Arc<BatchRoute> {
        let known = self.route.load_full().filter(|route| route.generation == map.generation());
        known.unwrap_or_else(|| {
            let parts = split_by_owner(&self.unique, map, servers);
            let route = Arc::new(BatchRoute { generation: map.generation(), parts });
            self.route.store(Some(Arc::clone(&route)));
            route
        })
    }

    /// The parts of all servers that `map` gives buckets to, also of those that own no id.
    pub(crate) fn parts_of_all(&self, map: &BucketMap, servers: usize) -> Vec<Arc<RoutePart>> {
        let mut parts = self.route(map, servers).parts.clone();
        if parts.len() < servers {
            let mut others: Vec<u32> =
                (0..map.bucket_count()).filter_map(|bucket| Some(map.bucket_owner(bucket)?.0)).collect();
            others.sort_unstable();
            others.dedup();
            others.retain(|server| parts.iter().all(|part| part.server != *server));
            parts.extend(others.into_iter().map(|server| Arc::new(RoutePart::without_ids(map.generation(), server))));
        }
        parts
    }

    /// The ids of one part by their owners under another map. No other id is in the result.
    pub(crate) fn divide_part(&self, part: &RoutePart, map: &BucketMap, servers: usize) -> Vec<Arc<RoutePart>> {
        split_part(&self.unique, part, map, servers)
    }
}

impl From<UniqueIds> for RoutedIds {
    fn from(unique: UniqueIds) -> Self {
        Self { unique, route: ArcSwapOption::empty() }
    }
}

/// Read access only: the ids must not change once they have a route.
impl Deref for RoutedIds {
    type Target = UniqueIds;

    fn deref(&self) -> &UniqueIds {
        &self.unique
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use zagros_protocol::datapath::Encoding;
    use zagros_protocol::packed::{PackError, ValueBuffers, decode_ids, encode_values};
    use zagros_protocol::{RowKey, Segments, ServerIndex, TableId};
    use zagros_zip::ZipEq;

    use super::*;
    use crate::datapath::{BatchRows, TableIds};
    use crate::testing::unique_ids;

    /// A row whose values identify table, id and column.
    fn row(table: u32, dim: u32, id: u64) -> Vec<f32> {
        (0..dim).map(|column| table as f32 * 1e6 + id as f32 * 8.0 + column as f32).collect()
    }

    fn answer(part: &RoutePart) -> Vec<f32> {
        let ids = decode_ids(&part.ids);
        let segments = Segments::unpack(&part.segments, &part.ids).unwrap();
        let mut ids = ids.iter();
        let mut values = Vec::new();
        for segment in segments.iter() {
            for id in ids.by_ref().take(segment.rows as usize) {
                values.extend(row(segment.table.0, segment.dim, *id));
            }
        }
        values
    }

    fn expected(unique: &UniqueIds) -> BatchRows {
        let rows = |table: &TableIds| table.ids.iter().flat_map(|id| row(table.table.0, table.dim, *id)).collect();
        BatchRows { tables: unique.tables.iter().map(rows).collect() }
    }

    /// Checks that each id is in one part, that of its owner under `map`, and that the answers come back to their places.
    fn answered_rows(parts: &[Arc<RoutePart>], map: &BucketMap, unique: &UniqueIds) -> BatchRows {
        let (mut sent, mut rows) = (BTreeSet::new(), BatchRows::zeros_like(unique));
        for part in parts {
            assert_eq!(part.generation, map.generation());
            let segments = Segments::unpack(&part.segments, &part.ids).unwrap();
            let tables: Vec<_> = segments.iter().flat_map(|s| std::iter::repeat_n(s.table, s.rows as usize)).collect();
            for (table, id) in tables.into_iter().zip_eq(decode_ids(&part.ids)) {
                assert_eq!(map.row_owner(RowKey { table, id }).0, part.server);
                assert!(sent.insert((table, id)), "sent twice");
            }
            let payload = encode_values(&answer(part), Encoding::F32 as i32).unwrap();
            part.scatter(&payload, Encoding::F32, &mut rows.table_slices_mut()).unwrap();
        }
        assert_eq!((sent.len(), &rows), (unique.id_count(), &expected(unique)));
        rows
    }

    proptest! {
        #[test]
        fn every_id_goes_to_its_owner_once_and_comes_back_to_its_place(unique in unique_ids(), servers in 1_u32..7) {
            let map = BucketMap::split_evenly(Generation(1), 64, servers);
            let parts = split_by_owner(&unique, &map, servers as usize);
            let rows = answered_rows(&parts, &map, &unique);
            let buffers = Arc::new(ValueBuffers::default());
            for part in &parts {
                prop_assert_eq!(&part.gather(&rows.table_slices(), &buffers)[..], &answer(part)[..]);
            }
        }

        /// Of a part that is divided again, and again, each id has one owner, and comes back to its place.
        #[test]
        fn a_divided_part_has_each_of_its_ids_once(
            unique in unique_ids(),
            moves in prop::collection::vec((prop::collection::vec(0_u32..64, 1..64), 0_u32..5), 1..4),
        ) {
            let ids = RoutedIds::from(unique);
            let mut map = BucketMap::split_evenly(Generation(1), 64, 3);
            let mut parts = ids.route(&map, 3).parts.clone();
            for (buckets, owner) in moves {
                map = map.with_moved(&buckets, ServerIndex(owner));
                parts = parts.iter().flat_map(|part| ids.divide_part(part, &map, 5)).collect();
            }
            answered_rows(&parts, &map, &ids);
        }
    }

    #[test]
    fn an_answer_of_the_wrong_length_changes_nothing() {
        let unique = UniqueIds { tables: vec![TableIds::new(TableId(0), 2, (0..50).collect())] };
        let map = BucketMap::split_evenly(Generation(1), 64, 2);
        let parts = split_by_owner(&unique, &map, 2);
        assert_eq!(parts.len(), 2);
        let payload = encode_values(&answer(&parts[0]), Encoding::F32 as i32).unwrap();
        let mut rows = BatchRows::zeros_like(&unique);
        for wrong in [&payload[..payload.len() - 4], &payload[..payload.len() - 1], &[]] {
            let refused = parts[0].scatter(wrong, Encoding::F32, &mut rows.table_slices_mut()).unwrap_err();
            assert_eq!(refused, PackError::Length { what: "rows", expected: payload.len(), found: wrong.len() });
        }
        assert!(parts[0].scatter(&payload, Encoding::F16, &mut rows.table_slices_mut()).is_err());
        assert_eq!(rows, BatchRows::zeros_like(&unique));
    }

    /// Invariant PL-2.
    #[test]
    fn ids_are_routed_once_for_each_generation() {
        let ids = RoutedIds::from(UniqueIds { tables: vec![TableIds::new(TableId(0), 2, (0..50).collect())] });
        let map = BucketMap::split_evenly(Generation(1), 64, 2);
        let first = ids.route(&map, 2);
        assert!(Arc::ptr_eq(&first, &ids.route(&map, 2)), "the second call computes it again");
        let next = ids.route(&map.at_generation(Generation(2)), 2);
        assert_eq!((first.generation, next.generation), (Generation(1), Generation(2)));
        let other = ids.route(&BucketMap::split_evenly(Generation(3), 64, 3), 3);
        assert_eq!((next.parts.len(), other.parts.len()), (2, 3));
    }

    #[test]
    fn a_push_to_all_servers_has_a_whole_part_for_each_owner_of_buckets_and_no_other_server() {
        let one = RoutedIds::from(UniqueIds { tables: vec![TableIds::new(TableId(0), 2, vec![5])] });
        let map = BucketMap::split_evenly(Generation(1), 64, 3);
        let parts = one.parts_of_all(&map, 3);
        assert_eq!(parts.iter().map(|part| part.server).collect::<BTreeSet<_>>(), BTreeSet::from([0, 1, 2]));
        assert!(parts.iter().all(|part| part.is_whole) && parts[1].ids.is_empty() && parts[1].value_count() == 0);
        let ids = RoutedIds::from(UniqueIds { tables: vec![TableIds::new(TableId(0), 2, (0..50).collect())] });
        let buckets: Vec<u32> = (0..64).filter(|bucket| map.bucket_owner(*bucket) == Some(ServerIndex(1))).collect();
        let moved = map.with_moved(&buckets, ServerIndex(2));
        assert_eq!(ids.parts_of_all(&moved, 3).iter().map(|part| part.server).collect::<Vec<_>>(), [0, 2]);
        let divided = ids.divide_part(&ids.route(&map, 3).parts[1], &moved, 3);
        assert!(!divided.is_empty() && divided.iter().all(|part| !part.is_whole), "the others' ids are in other parts");
    }

    #[test]
    fn no_ids_make_no_requests() {
        let map = BucketMap::split_evenly(Generation(1), 64, 3);
        let empty = UniqueIds { tables: vec![TableIds::new(TableId(0), 2, vec![])] };
        assert!(split_by_owner(&empty, &map, 3).is_empty());
        assert!(split_by_owner(&UniqueIds::default(), &map, 1).is_empty());
    }
}
