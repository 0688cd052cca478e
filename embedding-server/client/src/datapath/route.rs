//! From the ids of a batch to one request per server, and from the answers back to the batch's order.
//!
//! ```text
//!  UniqueIds                      Route: one RoutePart per server that owns some of the ids
//!  table 0: 7 9 4 2   ── map ──►  server 0: table 0: 9 2 (positions 1 3) · table 1: 5 (0)
//!  table 1: 5 8                   server 1: table 0: 7 4 (positions 0 2) · table 1: 8 (1)
//! ```
//!
//! A batch is looked up and pushed along the same route. [`RoutedIds`] keeps it: each id is hashed once.

use std::ops::Deref;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use zagros_protocol::datapath::Encoding;
use zagros_protocol::packed::{
    Buffer, Buffers, PackError, decode_values, expect_length, ids_as_bytes, pack_bags, value_bytes,
};
use zagros_protocol::{BucketMap, Generation, RowKey, Segment, Segments};
use zagros_zip::ZipEq;

use super::bags::{BagShare, Bags};
use super::dedup::{TableIds, UniqueIds};
use super::rows::Rows;

/// The distinct ids of a batch, and their route once one call has computed it.
#[derive(Debug, Default)]
pub struct RoutedIds {
    unique: UniqueIds,
    route: ArcSwapOption<Route>,
}

/// Where each id of a batch is served, under one bucket map.
#[derive(Debug)]
pub(crate) struct Route {
    /// Of the map.
    generation: Generation,
    /// One per server that owns any of the ids, in the order of the servers.
    pub(crate) parts: Vec<RoutePart>,
}

/// What one server gets of a batch: all tables in one request (invariant DP-2: lengths are explicit).
#[derive(Debug)]
pub(crate) struct RoutePart {
    /// Index of the server.
    pub(crate) server: u32,
    /// As the wire has them.
    pub(crate) segments: Bytes,
    /// As the wire has them, segment after segment.
    pub(crate) ids: Bytes,
    /// As the wire has them; empty without bags.
    pub(crate) bags: Bytes,
    /// One per segment.
    routes: Vec<SegmentRoute>,
}

/// Where the answer to one segment belongs in the batch: rows first, then sums.
#[derive(Debug)]
struct SegmentRoute {
    /// Index into [`UniqueIds::tables`].
    table: usize,
    dim: usize,
    /// Rows that are answered themselves.
    rows: usize,
    /// Ascending indices into the table's ids, of those rows; `None` when they are the first ones.
    positions: Option<Vec<u32>>,
    /// The row of the batch that each sum is a part of.
    sums: Vec<u32>,
}

/// A part while ids are added.
#[derive(Default)]
struct PartDraft {
    ids: Vec<u64>,
    segments: Vec<Segment>,
    /// One per segment.
    shares: Vec<Option<BagShare>>,
    /// One per segment.
    routes: Vec<SegmentRoute>,
}

impl RoutedIds {
    /// The route of these ids under `map`, which names `servers` servers. It is computed once for each generation of the map:
    /// ids of a batch that was looked up under an older map are routed again (invariant PL-2).
    pub(crate) fn route(&self, map: &BucketMap, servers: usize) -> Arc<Route> {
        let known = self.route.load_full().filter(|route| route.generation == map.generation());
        known.unwrap_or_else(|| {
            let route = Arc::new(Route { generation: map.generation(), parts: split(&self.unique, map, servers) });
            self.route.store(Some(Arc::clone(&route)));
            route
        })
    }
}

impl From<UniqueIds> for RoutedIds {
    fn from(unique: UniqueIds) -> Self {
        Self { unique, route: ArcSwapOption::empty() }
    }
}

/// The ids never change once they may have a route.
impl Deref for RoutedIds {
    type Target = UniqueIds;

    fn deref(&self) -> &UniqueIds {
        &self.unique
    }
}

/// One part per server that owns any of the ids. `servers` is the number of servers that the map names.
fn split(unique: &UniqueIds, map: &BucketMap, servers: usize) -> Vec<RoutePart> {
    // An even share and some more: one allocation in the common case.
    let ids = unique.rows() / servers.max(1) * 9 / 8 + 8;
    let draft = || PartDraft { ids: Vec::with_capacity(ids), ..PartDraft::default() };
    let mut drafts: Vec<PartDraft> = std::iter::repeat_with(draft).take(servers).collect();
    for (index, table) in unique.tables.iter().enumerate() {
        match &mut drafts[..] {
            // One server owns everything: nothing to hash, nothing to scatter.
            [only] => only.add(index, table, table.ids.iter().copied(), None, table.bags.as_ref().map(Bags::whole)),
            _ => add_by_owner(&mut drafts, index, table, map),
        }
    }
    let parts = drafts.into_iter().enumerate().filter(|(_, draft)| !draft.ids.is_empty());
    parts.map(|(server, draft)| draft.finish(server as u32)).collect()
}

fn add_by_owner(drafts: &mut [PartDraft], index: usize, table: &TableIds, map: &BucketMap) {
    // An even share and some more; one allocation per server and table in the common case.
    let share = table.ids.len() / drafts.len() * 9 / 8 + 8;
    let mut positions: Vec<Vec<u32>> = (0..drafts.len()).map(|_| Vec::with_capacity(share)).collect();
    for (position, id) in table.ids.iter().enumerate() {
        let owner = map.route(RowKey { table: table.table, id: *id });
        positions[owner.0 as usize].push(position as u32);
    }
    let mut shares = table.bags.as_ref().map(|bags| bags.split(&positions)).unwrap_or_default().into_iter();
    for (draft, positions) in drafts.iter_mut().zip_eq(positions) {
        let share = shares.next();
        if !positions.is_empty() {
            let ids: Vec<u64> = positions.iter().map(|position| table.ids[*position as usize]).collect();
            draft.add(index, table, ids.into_iter(), Some(positions), share);
        }
    }
}

impl PartDraft {
    fn add(
        &mut self,
        index: usize,
        table: &TableIds,
        ids: impl ExactSizeIterator<Item = u64>,
        positions: Option<Vec<u32>>,
        share: Option<BagShare>,
    ) {
        let rows = ids.len();
        self.segments.push(Segment { table: table.table, rows: rows as u32, dim: table.dim });
        self.shares.push(share);
        self.routes.push(SegmentRoute { table: index, dim: table.dim as usize, rows, positions, sums: Vec::new() });
        self.ids.extend(ids);
    }

    fn finish(mut self, server: u32) -> RoutePart {
        let shares = self.shares.iter().enumerate();
        let bags: Vec<_> =
            shares.filter_map(|(segment, share)| share.as_ref().map(|share| share.of(segment as u32))).collect();
        let bags = pack_bags(&bags);
        for (route, share) in self.routes.iter_mut().zip_eq(self.shares) {
            if let Some(share) = share {
                route.sum(share);
            }
        }
        let segments = Segments::new(self.segments).pack().into();
        RoutePart { server, segments, ids: ids_as_bytes(self.ids), bags, routes: self.routes }
    }
}

impl RoutePart {
    /// Writes a server's answer to where its rows belong in `rows`; sums are added to what other servers answered.
    ///
    /// # Errors
    /// When the payload is longer or shorter than the request implies; `rows` is untouched then.
    pub(crate) fn scatter(&self, payload: &[u8], encoding: Encoding, rows: &mut Rows) -> Result<(), PackError> {
        let width = value_bytes(encoding as i32)?;
        expect_length("rows", self.values().checked_mul(width), payload.len())?;
        let mut rest = payload;
        for route in &self.routes {
            let (bytes, after) = rest.split_at(route.values() * width);
            route.scatter(bytes, encoding, &mut rows.tables[route.table])?;
            rest = after;
        }
        Ok(())
    }

    /// The gradients of this part's rows and sums, in the order of its answer.
    pub(crate) fn gather(&self, gradients: &Rows, buffers: &Arc<Buffers>) -> Buffer {
        let mut values = buffers.take(self.values());
        values.clear();
        for route in &self.routes {
            route.gather(&gradients.tables[route.table], &mut values);
        }
        values
    }

    /// Sums that the server makes.
    pub(crate) fn sums(&self) -> usize {
        self.routes.iter().map(|route| route.sums.len()).sum()
    }

    /// Values of the answer.
    pub(crate) fn values(&self) -> usize {
        self.routes.iter().map(SegmentRoute::values).sum()
    }
}

impl SegmentRoute {
    /// Of its rows, some are wanted themselves and the others only in sums.
    fn sum(&mut self, share: BagShare) {
        (self.rows, self.sums) = share.into_rows();
        if let Some(positions) = &mut self.positions {
            positions.truncate(self.rows);
        }
    }

    fn values(&self) -> usize {
        (self.rows + self.sums.len()) * self.dim
    }

    fn scatter(&self, bytes: &[u8], encoding: Encoding, table: &mut [f32]) -> Result<(), PackError> {
        let row_bytes = self.dim * value_bytes(encoding as i32)?;
        let (rows, sums) = bytes.split_at(self.rows * row_bytes);
        match &self.positions {
            None => decode_values(rows, encoding as i32, &mut table[..self.rows * self.dim])?,
            Some(positions) => {
                for (row, position) in rows.chunks_exact(row_bytes).zip_eq(positions) {
                    decode_values(row, encoding as i32, self.row(table, *position))?;
                }
            }
        }
        let mut sum = vec![0.0; self.dim];
        for (bytes, row) in sums.chunks_exact(row_bytes).zip_eq(&self.sums) {
            decode_values(bytes, encoding as i32, &mut sum)?;
            add(self.row(table, *row), &sum);
        }
        Ok(())
    }

    fn gather(&self, table: &[f32], values: &mut Vec<f32>) {
        match &self.positions {
            None => values.extend_from_slice(&table[..self.rows * self.dim]),
            Some(positions) => positions.iter().for_each(|row| values.extend_from_slice(self.row_of(table, *row))),
        }
        self.sums.iter().for_each(|row| values.extend_from_slice(self.row_of(table, *row)));
    }

    fn row<'a>(&self, table: &'a mut [f32], row: u32) -> &'a mut [f32] {
        &mut table[row as usize * self.dim..][..self.dim]
    }

    fn row_of<'a>(&self, table: &'a [f32], row: u32) -> &'a [f32] {
        &table[row as usize * self.dim..][..self.dim]
    }
}

/// Adds a row's values element-wise.
fn add(into: &mut [f32], values: &[f32]) {
    for (sum, value) in into.iter_mut().zip_eq(values) {
        *sum += value;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use zagros_protocol::packed::{decode_ids, encode_values};
    use zagros_protocol::{Generation, TableId};

    use super::*;
    use crate::testing::unique_ids;

    /// A row whose every value tells table, id and column.
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

    fn expected(unique: &UniqueIds) -> Rows {
        let rows = |table: &TableIds| table.ids.iter().flat_map(|id| row(table.table.0, table.dim, *id)).collect();
        Rows { tables: unique.tables.iter().map(rows).collect() }
    }

    proptest! {
        #[test]
        fn every_id_goes_to_its_owner_once_and_comes_back_to_its_place(unique in unique_ids(), servers in 1_u32..7) {
            let map = BucketMap::even(Generation(1), 64, servers);
            let parts = split(&unique, &map, servers as usize);
            let mut sent = BTreeSet::new();
            let mut rows = Rows::zeroed(&unique);
            for part in &parts {
                let segments = Segments::unpack(&part.segments, &part.ids).unwrap();
                let tables = segments.iter().flat_map(|s| std::iter::repeat_n(s.table, s.rows as usize));
                for (table, id) in tables.collect::<Vec<_>>().into_iter().zip_eq(decode_ids(&part.ids)) {
                    prop_assert_eq!(map.route(RowKey { table, id }).0, part.server);
                    prop_assert!(sent.insert((table, id)), "sent twice");
                }
                let payload = encode_values(&answer(part), Encoding::F32 as i32).unwrap();
                part.scatter(&payload, Encoding::F32, &mut rows).unwrap();
            }
            prop_assert_eq!(sent.len(), unique.rows());
            prop_assert_eq!(&rows, &expected(&unique));
            let buffers = Arc::new(Buffers::default());
            for part in &parts {
                prop_assert_eq!(&part.gather(&rows, &buffers)[..], &answer(part)[..]);
            }
        }
    }

    #[test]
    fn an_answer_of_the_wrong_length_changes_nothing() {
        let unique = UniqueIds { tables: vec![TableIds::rows(TableId(0), 2, (0..50).collect())] };
        let map = BucketMap::even(Generation(1), 64, 2);
        let parts = split(&unique, &map, 2);
        assert_eq!(parts.len(), 2);
        let payload = encode_values(&answer(&parts[0]), Encoding::F32 as i32).unwrap();
        let mut rows = Rows::zeroed(&unique);
        for wrong in [&payload[..payload.len() - 4], &payload[..payload.len() - 1], &[]] {
            let refused = parts[0].scatter(wrong, Encoding::F32, &mut rows).unwrap_err();
            assert_eq!(refused, PackError::Length { what: "rows", expected: payload.len(), found: wrong.len() });
        }
        assert!(parts[0].scatter(&payload, Encoding::F16, &mut rows).is_err());
        assert_eq!(rows, Rows::zeroed(&unique));
    }

    /// Invariant PL-2.
    #[test]
    fn ids_are_routed_once_for_each_generation() {
        let ids = RoutedIds::from(UniqueIds { tables: vec![TableIds::rows(TableId(0), 2, (0..50).collect())] });
        let map = BucketMap::even(Generation(1), 64, 2);
        let first = ids.route(&map, 2);
        assert!(Arc::ptr_eq(&first, &ids.route(&map, 2)), "the second call computes it again");
        let next = ids.route(&map.at(Generation(2)), 2);
        assert_eq!((first.generation, next.generation), (Generation(1), Generation(2)));
        let other = ids.route(&BucketMap::even(Generation(3), 64, 3), 3);
        assert_eq!((next.parts.len(), other.parts.len()), (2, 3));
    }

    #[test]
    fn no_ids_make_no_requests() {
        let map = BucketMap::even(Generation(1), 64, 3);
        let empty = UniqueIds { tables: vec![TableIds::rows(TableId(0), 2, vec![])] };
        assert!(split(&empty, &map, 3).is_empty());
        assert!(split(&UniqueIds::default(), &map, 1).is_empty());
    }
}
