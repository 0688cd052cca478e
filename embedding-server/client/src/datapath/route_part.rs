//! One server's part of a batch: its request, and where the answer belongs.
//!
//! Divides the ids of a batch, or of one part of it, by the servers that own them.
//!
//! A part is divided again when buckets have moved before its server answered. The division takes the ids of this part alone.
//! So the ids of an answered part are not sent again, and buckets that were together under every map stay in one request
//! (ADR 39, claim 1).

use std::sync::Arc;

use bytes::Bytes;
use zagros_protocol::datapath::Encoding;
use zagros_protocol::packed::{
    PackError, ValueBuffer, ValueBuffers, decode_values, expect_length, ids_as_bytes, pack_bags, value_bytes,
};
use zagros_protocol::{BucketMap, Generation, RowKey, Segment, Segments};
use zagros_zip::{ZipEq, number_from};

use super::bags::{BagShare, TableBags};
use super::dedup::{TableIds, UniqueIds};

/// All tables are in one request (invariant DP-2: lengths are explicit).
#[derive(Debug)]
pub(crate) struct RoutePart {
    /// Generation of the map that names this server.
    pub(crate) generation: Generation,
    pub(crate) server: u32,
    /// It has all ids of the batch that the map gives to the server. A part of a divided part may not.
    pub(crate) is_whole: bool,
    /// In the form of the wire, as are the ids (segment after segment) and the bags (empty without bags).
    pub(crate) segments: Bytes,
    pub(crate) ids: Bytes,
    pub(crate) bags: Bytes,
    pub(super) routes: Vec<SegmentRoute>,
}

/// Where the answer to one segment belongs in the batch. Rows come first, then sums.
#[derive(Debug)]
pub(super) struct SegmentRoute {
    /// Index into [`super::UniqueIds::tables`].
    pub(super) table: usize,
    pub(super) dim: usize,
    /// How many rows the server returns: those of the first ids. The other ids are only in sums.
    pub(super) rows: usize,
    /// Positions of the ids in the table's ids, in ascending order. `None` if they are all ids of the table.
    pub(super) positions: Option<Vec<u32>>,
    /// For each sum, the row of the batch's result that it is added to.
    pub(super) sums: Vec<u32>,
}

impl RoutePart {
    /// The part of a server that owns no id of the batch.
    pub(super) fn without_ids(generation: Generation, server: u32) -> Self {
        let (segments, ids, bags) = Default::default();
        Self { generation, server, is_whole: true, segments, ids, bags, routes: Vec::new() }
    }

    /// Writes the rows of a server's answer to their places in the batch's tables, and adds its sums to the sums of other servers.
    /// A payload of another length than the request implies changes no table.
    pub(crate) fn scatter(
        &self,
        payload: &[u8],
        encoding: Encoding,
        tables: &mut [&mut [f32]],
    ) -> Result<(), PackError> {
        let width = value_bytes(encoding as i32)?;
        expect_length("rows", self.value_count().checked_mul(width), payload.len())?;
        let mut rest = payload;
        for route in &self.routes {
            let (bytes, after) = rest.split_at(route.value_count() * width);
            route.scatter(bytes, encoding, tables[route.table])?;
            rest = after;
        }
        Ok(())
    }

    /// The gradients of this part's rows and sums, in the order of the server's answer.
    pub(crate) fn gather(&self, gradients: &[&[f32]], buffers: &Arc<ValueBuffers>) -> ValueBuffer {
        let mut values = buffers.take_buffer(self.value_count());
        values.clear();
        for route in &self.routes {
            route.gather(gradients[route.table], &mut values);
        }
        values
    }

    pub(crate) fn sum_count(&self) -> usize {
        self.routes.iter().map(|route| route.sums.len()).sum()
    }

    pub(crate) fn value_count(&self) -> usize {
        self.routes.iter().map(SegmentRoute::value_count).sum()
    }
}

impl SegmentRoute {
    pub(super) fn replace_with_sums(&mut self, share: BagShare) {
        (self.rows, self.sums) = share.into_rows();
    }

    fn value_count(&self) -> usize {
        (self.rows + self.sums.len()) * self.dim
    }

    fn scatter(&self, bytes: &[u8], encoding: Encoding, table: &mut [f32]) -> Result<(), PackError> {
        let row_bytes = self.dim * value_bytes(encoding as i32)?;
        let (rows, sums) = bytes.split_at(self.rows * row_bytes);
        match &self.positions {
            None => decode_values(rows, encoding as i32, &mut table[..self.rows * self.dim])?,
            Some(positions) => {
                for (row, position) in rows.chunks_exact(row_bytes).zip_eq(&positions[..self.rows]) {
                    decode_values(row, encoding as i32, self.row_mut(table, *position))?;
                }
            }
        }
        let mut sum = vec![0.0; self.dim];
        for (bytes, row) in sums.chunks_exact(row_bytes).zip_eq(&self.sums) {
            decode_values(bytes, encoding as i32, &mut sum)?;
            add_row(self.row_mut(table, *row), &sum);
        }
        Ok(())
    }

    fn gather(&self, table: &[f32], values: &mut Vec<f32>) {
        match &self.positions {
            None => values.extend_from_slice(&table[..self.rows * self.dim]),
            Some(positions) => {
                positions[..self.rows].iter().for_each(|row| values.extend_from_slice(self.row(table, *row)));
            }
        }
        self.sums.iter().for_each(|row| values.extend_from_slice(self.row(table, *row)));
    }

    fn row_mut<'a>(&self, table: &'a mut [f32], row: u32) -> &'a mut [f32] {
        &mut table[row as usize * self.dim..][..self.dim]
    }

    fn row<'a>(&self, table: &'a [f32], row: u32) -> &'a [f32] {
        &table[row as usize * self.dim..][..self.dim]
    }
}

fn add_row(into: &mut [f32], values: &[f32]) {
    for (sum, value) in into.iter_mut().zip_eq(values) {
        *sum += value;
    }
}

#[derive(Default)]
struct PartDraft {
    ids: Vec<u64>,
    segments: Vec<Segment>,
    shares: Vec<Option<BagShare>>,
    routes: Vec<SegmentRoute>,
}

/// One part for each server that owns some of the ids. `servers` is the number of servers in the map.
pub(super) fn split_by_owner(unique: &UniqueIds, map: &BucketMap, servers: usize) -> Vec<Arc<RoutePart>> {
    let mut drafts = empty_drafts(unique.id_count(), servers);
    for (index, table) in unique.tables.iter().enumerate() {
        match &mut drafts[..] {
            // One server owns everything, so no id is hashed.
            [only] => {
                let share = table.bags.as_ref().map(TableBags::whole_share);
                only.add_segment(index, table, table.ids.iter().copied(), None, share);
            }
            _ => add_by_owner(&mut drafts, index, table, all_positions(table), map),
        }
    }
    finish_parts(drafts, map.generation(), true)
}

/// As [`split_by_owner`], of the ids of one part.
pub(super) fn split_part(unique: &UniqueIds, part: &RoutePart, map: &BucketMap, servers: usize) -> Vec<Arc<RoutePart>> {
    let mut drafts = empty_drafts(unique.id_count(), servers);
    for route in &part.routes {
        let (index, table) = (route.table, &unique.tables[route.table]);
        match &route.positions {
            None => add_by_owner(&mut drafts, index, table, all_positions(table), map),
            Some(positions) => add_by_owner(&mut drafts, index, table, positions.iter().copied(), map),
        }
    }
    finish_parts(drafts, map.generation(), false)
}

/// One draft per server. One allocation is enough if the ids are spread about evenly.
fn empty_drafts(ids: usize, servers: usize) -> Vec<PartDraft> {
    let ids = ids / servers.max(1) * 9 / 8 + 8;
    let draft = || PartDraft { ids: Vec::with_capacity(ids), ..PartDraft::default() };
    std::iter::repeat_with(draft).take(servers).collect()
}

fn all_positions(table: &TableIds) -> std::ops::Range<u32> {
    0..table.ids.len() as u32
}

fn add_by_owner(
    drafts: &mut [PartDraft],
    index: usize,
    table: &TableIds,
    selected: impl Iterator<Item = u32>,
    map: &BucketMap,
) {
    // One allocation per server and table is enough if the ids are spread about evenly.
    let share = table.ids.len() / drafts.len() * 9 / 8 + 8;
    let mut positions: Vec<Vec<u32>> = (0..drafts.len()).map(|_| Vec::with_capacity(share)).collect();
    for position in selected {
        let owner = map.row_owner(RowKey { table: table.table, id: table.ids[position as usize] });
        positions[owner.0 as usize].push(position);
    }
    let bags = table.bags.as_ref();
    let mut shares = bags.map(|bags| bags.split_by_owner(&positions, table.ids.len())).unwrap_or_default().into_iter();
    for (draft, positions) in drafts.iter_mut().zip_eq(positions) {
        let share = shares.next();
        if !positions.is_empty() {
            let ids: Vec<u64> = positions.iter().map(|position| table.ids[*position as usize]).collect();
            draft.add_segment(index, table, ids.into_iter(), Some(positions), share);
        }
    }
}

fn finish_parts(drafts: Vec<PartDraft>, generation: Generation, is_whole: bool) -> Vec<Arc<RoutePart>> {
    let parts = number_from(0, drafts).filter(|(_, draft)| !draft.ids.is_empty());
    parts.map(|(server, draft)| Arc::new(RoutePart { is_whole, ..draft.finish(generation, server) })).collect()
}

impl PartDraft {
    fn add_segment(
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

    fn finish(mut self, generation: Generation, server: u32) -> RoutePart {
        let shares = self.shares.iter().enumerate();
        let bags: Vec<_> = shares
            .filter_map(|(segment, share)| share.as_ref().map(|share| share.segment_bags(segment as u32)))
            .collect();
        let bags = pack_bags(&bags);
        for (route, share) in self.routes.iter_mut().zip_eq(self.shares) {
            if let Some(share) = share {
                route.replace_with_sums(share);
            }
        }
        let segments = Segments::new(self.segments).pack().into();
        let (ids, routes) = (ids_as_bytes(self.ids), self.routes);
        RoutePart { segments, ids, bags, routes, ..RoutePart::without_ids(generation, server) }
    }
}
