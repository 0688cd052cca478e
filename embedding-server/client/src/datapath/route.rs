//! From the ids of a batch to one request per server, and from the answers back to the batch's order.

use bytes::Bytes;
use zagros_protocol::datapath::Encoding;
use zagros_protocol::packed::{PackError, decode_values, expect_length, ids_as_bytes, value_bytes};
use zagros_protocol::{BucketMap, RowKey, Segment, Segments};

use super::client::Rows;
use super::dedup::{TableIds, UniqueIds};

/// What one server gets of a batch: all tables in one request (invariant DP-2: lengths are explicit).
#[derive(Debug)]
pub(crate) struct Part {
    /// Index of the server.
    pub(crate) server: u32,
    /// As the wire has them.
    pub(crate) segments: Bytes,
    /// As the wire has them, segment after segment.
    pub(crate) ids: Bytes,
    places: Vec<Place>,
}

/// Where the rows of one segment are in the batch.
#[derive(Debug)]
struct Place {
    /// Index into [`UniqueIds::tables`].
    table: usize,
    dim: usize,
    rows: usize,
    /// Ascending indices into the table's ids; `None` when the segment is the whole table.
    positions: Option<Vec<u32>>,
}

/// A part while ids are added.
#[derive(Default)]
struct Draft {
    ids: Vec<u64>,
    segments: Vec<Segment>,
    places: Vec<Place>,
}

/// One part per server that owns any of the ids. `servers` is the number of servers that the map names.
pub(crate) fn split(unique: &UniqueIds, map: &BucketMap, servers: usize) -> Vec<Part> {
    let mut drafts: Vec<Draft> = (0..servers).map(|_| Draft::default()).collect();
    for (index, table) in unique.tables.iter().enumerate() {
        match &mut drafts[..] {
            // One server owns everything: nothing to hash, nothing to scatter.
            [only] => only.add(index, table, table.ids.iter().copied(), None),
            _ => add_by_owner(&mut drafts, index, table, map),
        }
    }
    let parts = drafts.into_iter().enumerate().filter(|(_, draft)| !draft.ids.is_empty());
    parts.map(|(server, draft)| draft.finish(server as u32)).collect()
}

fn add_by_owner(drafts: &mut [Draft], index: usize, table: &TableIds, map: &BucketMap) {
    // An even share and some more; one allocation per server and table in the common case.
    let share = table.ids.len() / drafts.len() * 9 / 8 + 8;
    let mut positions: Vec<Vec<u32>> = (0..drafts.len()).map(|_| Vec::with_capacity(share)).collect();
    for (position, id) in table.ids.iter().enumerate() {
        let owner = map.route(RowKey { table: table.table, id: *id });
        positions[owner.0 as usize].push(position as u32);
    }
    for (draft, positions) in drafts.iter_mut().zip(positions) {
        if !positions.is_empty() {
            let ids: Vec<u64> = positions.iter().map(|position| table.ids[*position as usize]).collect();
            draft.add(index, table, ids.into_iter(), Some(positions));
        }
    }
}

impl Draft {
    fn add(
        &mut self,
        index: usize,
        table: &TableIds,
        ids: impl ExactSizeIterator<Item = u64>,
        positions: Option<Vec<u32>>,
    ) {
        let rows = ids.len();
        self.segments.push(Segment { table: table.table, rows: rows as u32, dim: table.dim });
        self.places.push(Place { table: index, dim: table.dim as usize, rows, positions });
        self.ids.extend(ids);
    }

    fn finish(self, server: u32) -> Part {
        let segments = Segments::new(self.segments).pack().into();
        Part { server, segments, ids: ids_as_bytes(self.ids), places: self.places }
    }
}

impl Part {
    /// Writes a server's answer to where its rows belong in `rows`.
    ///
    /// # Errors
    /// When the payload is longer or shorter than the request implies; `rows` is untouched then.
    pub(crate) fn scatter(&self, payload: &[u8], encoding: Encoding, rows: &mut Rows) -> Result<(), PackError> {
        let width = value_bytes(encoding as i32)?;
        expect_length("rows", self.values().checked_mul(width), payload.len())?;
        let mut rest = payload;
        for place in &self.places {
            let (bytes, after) = rest.split_at(place.rows * place.dim * width);
            place.scatter(bytes, encoding, &mut rows.tables[place.table])?;
            rest = after;
        }
        Ok(())
    }

    /// The gradients of this part's rows, in the order of its ids.
    pub(crate) fn gather(&self, gradients: &Rows) -> Vec<f32> {
        let mut values = Vec::with_capacity(self.values());
        for place in &self.places {
            place.gather(&gradients.tables[place.table], &mut values);
        }
        values
    }

    fn values(&self) -> usize {
        self.places.iter().map(|place| place.rows * place.dim).sum()
    }
}

impl Place {
    fn scatter(&self, bytes: &[u8], encoding: Encoding, table: &mut [f32]) -> Result<(), PackError> {
        let Some(positions) = &self.positions else {
            return decode_values(bytes, encoding as i32, table);
        };
        let row_bytes = bytes.len() / positions.len();
        for (row, position) in bytes.chunks_exact(row_bytes).zip(positions) {
            let start = *position as usize * self.dim;
            decode_values(row, encoding as i32, &mut table[start..start + self.dim])?;
        }
        Ok(())
    }

    fn gather(&self, table: &[f32], values: &mut Vec<f32>) {
        let Some(positions) = &self.positions else {
            return values.extend_from_slice(table);
        };
        for position in positions {
            let start = *position as usize * self.dim;
            values.extend_from_slice(&table[start..start + self.dim]);
        }
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

    fn answer(part: &Part) -> Vec<f32> {
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
                for (table, id) in tables.zip(decode_ids(&part.ids)) {
                    prop_assert_eq!(map.route(RowKey { table, id }).0, part.server);
                    prop_assert!(sent.insert((table, id)), "sent twice");
                }
                let payload = encode_values(&answer(part), Encoding::F32 as i32).unwrap();
                part.scatter(&payload, Encoding::F32, &mut rows).unwrap();
            }
            prop_assert_eq!(sent.len(), unique.rows());
            prop_assert_eq!(&rows, &expected(&unique));
            for part in &parts {
                prop_assert_eq!(part.gather(&rows), answer(part));
            }
        }
    }

    #[test]
    fn an_answer_of_the_wrong_length_changes_nothing() {
        let unique = UniqueIds { tables: vec![TableIds { table: TableId(0), dim: 2, ids: (0..50).collect() }] };
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

    #[test]
    fn no_ids_make_no_requests() {
        let map = BucketMap::even(Generation(1), 64, 3);
        let empty = UniqueIds { tables: vec![TableIds { table: TableId(0), dim: 2, ids: vec![] }] };
        assert!(split(&empty, &map, 3).is_empty());
        assert!(split(&UniqueIds::default(), &map, 1).is_empty());
    }
}
