//! Divides the ids of a batch, or of one part of it, by the servers that own them.
//!
//! A part is divided again when buckets have moved before its server answered. The division takes the ids of this part alone.
//! So the ids of an answered part are not sent again, and buckets that were together under every map stay in one request
//! (ADR 39, claim 1).

use std::sync::Arc;

use zagros_protocol::packed::{ids_as_bytes, pack_bags};
use zagros_protocol::{BucketMap, Generation, RowKey, Segment, Segments};
use zagros_zip::{ZipEq, number_from};

use super::bags::{BagShare, TableBags};
use super::dedup::{TableIds, UniqueIds};
use super::route_part::{RoutePart, SegmentRoute};

#[derive(Default)]
struct PartDraft {
    ids: Vec<u64>,
    segments: Vec<Segment>,
    /// One per segment.
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
