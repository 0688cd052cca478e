//! One server's part of a batch: its request, and where the answer belongs.

use std::sync::Arc;

use bytes::Bytes;
use zagros_protocol::Generation;
use zagros_protocol::datapath::Encoding;
use zagros_protocol::packed::{PackError, ValueBuffer, ValueBuffers, decode_values, expect_length, value_bytes};
use zagros_zip::ZipEq;

use super::bags::BagShare;

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
