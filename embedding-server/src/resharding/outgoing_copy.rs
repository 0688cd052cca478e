//! The rows of a move, chunk by chunk: first every row once, then those that have changed since.
//!
//! Which rows have changed is asked before they are read. So a row that changes after it was read is noted again, and is sent
//! again. An id without a row that was counted is a change, too: its count is sent.

use std::collections::HashSet;

use zagros_protocol::control::MoveRowsResponse;
use zagros_protocol::{Refusal, RefusalKind};
use zagros_table::{ColdError, Table};

use super::chunk::{RowChunk, most_rows};
use super::moves::{CopyCursor, OutgoingMove};
use super::outgoing_scan::TableScan;
use crate::EmbeddingService;

/// Refused as `Invalid` if it is neither the next request nor the one before, as `Storage` once rows of the cold tier could not
/// be read.
pub(super) fn answer_request(
    cursor: &mut CopyCursor,
    number: u64,
    service: &EmbeddingService,
    outgoing: &OutgoingMove,
) -> Result<MoveRowsResponse, Refusal> {
    let plan = &outgoing.plan;
    if let Some(last) = cursor.last.as_ref().filter(|_| number.checked_add(1) == Some(cursor.number)) {
        return Ok(last.clone());
    }
    if number != cursor.number {
        return Err(Refusal::invalid(format!("request {number} of {plan}, and {} is the next", cursor.number)));
    }
    if cursor.failure.is_none() {
        match next_chunk(cursor, service, outgoing) {
            Ok(answer) => {
                cursor.number += 1;
                cursor.last = Some(answer.clone());
                return Ok(answer);
            }
            // Rows that were to be sent next are forgotten. The target begins again with another move.
            Err(error) => cursor.failure = Some(error),
        }
    }
    let why = cursor.failure.as_ref().map(ToString::to_string).unwrap_or_default();
    Err(Refusal::new(RefusalKind::Storage, format!("embedding server {} ends {plan}: {why}", service.index)))
}

fn next_chunk(
    cursor: &mut CopyCursor,
    service: &EmbeddingService,
    outgoing: &OutgoingMove,
) -> Result<MoveRowsResponse, ColdError> {
    let tables: Vec<&Table> = service.tables.iter().collect();
    let (mut number, mut chunk) = (cursor.table, RowChunk::default());
    if let Some(table) = tables.get(number as usize) {
        if cursor.scan.read_chunk(number, table, &outgoing.plan, &mut chunk)? {
            (cursor.table, cursor.scan) = (cursor.table + 1, TableScan::default());
        }
    } else {
        let is_frozen = service.placement().is_ok_and(|placement| placement.frozen_move().is_some());
        number = changed_rows(&tables, outgoing, service.keeps_steps && is_frozen, &mut chunk)?;
    }
    let now = service.tables.table_time();
    Ok(MoveRowsResponse {
        table: number,
        ids: bytemuck::cast_slice::<u64, u8>(&chunk.rows.ids).to_vec().into(),
        slots: bytemuck::cast_slice::<u32, u8>(&chunk.rows.slots).to_vec().into(),
        access: bytemuck::cast_slice::<u32, u8>(&chunk.rows.access).to_vec().into(),
        removed: bytemuck::cast_slice::<u64, u8>(&chunk.removed).to_vec().into(),
        steps: now.steps,
        seconds: now.seconds,
        scanned: cursor.table as usize >= tables.len(),
        changed: outgoing.changed.row_count(),
        counted: bytemuck::cast_slice::<u64, u8>(&chunk.counted).to_vec().into(),
        counts: bytemuck::cast_slice::<u32, u8>(&chunk.counts).to_vec().into(),
        sketch: bytemuck::cast_slice::<u32, u8>(&chunk.sketch).to_vec().into(),
        sketch_stripe: chunk.sketch_stripe,
        sketch_from: chunk.sketch_from,
        step: chunk.step_rows.step,
        step_ids: bytemuck::cast_slice::<u64, u8>(&chunk.step_rows.ids).to_vec().into(),
        step_before: bytemuck::cast_slice::<u32, u8>(&chunk.step_rows.before).to_vec().into(),
        step_sums: bytemuck::cast_slice::<f32, u8>(&chunk.step_rows.sums).to_vec().into(),
    })
}

/// Reads changed rows of one table, and what the stripes keep of them until the step is over. Answers its number.
fn changed_rows(
    tables: &[&Table],
    outgoing: &OutgoingMove,
    with_step: bool,
    chunk: &mut RowChunk,
) -> Result<u32, ColdError> {
    let mut table_number = None;
    loop {
        let most = table_number.and_then(|number: u32| tables.get(number as usize)).map_or(1, |table| most_rows(table));
        if table_number.is_some() && chunk.len() >= most {
            return Ok(table_number.unwrap_or(0));
        }
        let Some((number, stripe, ids)) = outgoing.changed.take_ids(table_number, most.saturating_sub(chunk.len()))
        else {
            return Ok(table_number.unwrap_or(0));
        };
        table_number = Some(number);
        let (table, stripe) = (tables[number as usize], stripe as usize);
        let old_len = chunk.rows.ids.len();
        table.read_rows_anywhere(stripe, &ids, &mut chunk.rows)?;
        let found: HashSet<u64> = chunk.rows.ids[old_len..].iter().copied().collect();
        chunk.removed.extend(ids.iter().filter(|id| !found.contains(id)));
        chunk.add_counts(table, stripe, &ids);
        if with_step {
            table.read_step_rows(stripe, &ids, &mut chunk.step_rows);
        }
    }
}
