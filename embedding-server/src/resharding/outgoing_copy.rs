//! The rows of a move, chunk by chunk: first every row once, then those that have changed since.
//!
//! Which rows have changed is asked before they are read. So a row that changes after it was read is noted again, and is sent
//! again.

use zagros_protocol::Refusal;
use zagros_protocol::control::MoveRowsResponse;
use zagros_table::{RowBatch, Table};

use super::moves::{CopyCursor, OutgoingMove};
use crate::EmbeddingService;

/// Bytes of rows in one answer, about.
const CHUNK_BYTES: usize = 1 << 20;

/// Rows of one table.
#[derive(Default)]
struct Chunk {
    rows: RowBatch,
    removed: Vec<u64>,
}

/// Answers request `number`.
///
/// # Errors
/// `Invalid` if it is neither the next request nor the one before.
pub(super) fn answer(
    cursor: &mut CopyCursor,
    number: u64,
    service: &EmbeddingService,
    outgoing: &OutgoingMove,
) -> Result<MoveRowsResponse, Refusal> {
    if let Some(last) = cursor.last.as_ref().filter(|_| number.checked_add(1) == Some(cursor.number)) {
        return Ok(last.clone());
    }
    if number != cursor.number {
        let plan = &outgoing.plan;
        return Err(Refusal::invalid(format!("request {number} of {plan}, and {} is the next", cursor.number)));
    }
    let answer = next(cursor, service, outgoing);
    cursor.number += 1;
    cursor.last = Some(answer.clone());
    Ok(answer)
}

fn next(cursor: &mut CopyCursor, service: &EmbeddingService, outgoing: &OutgoingMove) -> MoveRowsResponse {
    let tables: Vec<&Table> = service.tables.iter().collect();
    let (mut number, mut chunk) = (cursor.table, Chunk::default());
    if let Some(table) = tables.get(number as usize) {
        scan(cursor, table, outgoing, &mut chunk);
    } else {
        number = changed_rows(&tables, outgoing, &mut chunk);
    }
    let now = service.tables.now();
    MoveRowsResponse {
        table: number,
        ids: bytemuck::cast_slice::<u64, u8>(&chunk.rows.ids).to_vec().into(),
        slots: bytemuck::cast_slice::<u32, u8>(&chunk.rows.slots).to_vec().into(),
        access: bytemuck::cast_slice::<u32, u8>(&chunk.rows.access).to_vec().into(),
        removed: bytemuck::cast_slice::<u64, u8>(&chunk.removed).to_vec().into(),
        steps: now.steps,
        seconds: now.seconds,
        scanned: cursor.table as usize >= tables.len(),
        changed: outgoing.changed.count(),
    }
}

/// Reads the next rows of one table.
fn scan(cursor: &mut CopyCursor, table: &Table, outgoing: &OutgoingMove, chunk: &mut Chunk) {
    let most = most_rows(table);
    while chunk.rows.ids.len() < most {
        if cursor.ids.is_empty() {
            if cursor.stripe == table.stripes() {
                (cursor.table, cursor.stripe) = (cursor.table + 1, 0);
                return;
            }
            cursor.ids = table.ids_in_memory(cursor.stripe);
            cursor.ids.retain(|id| outgoing.plan.has_row(cursor.table, *id));
            cursor.stripe += 1;
        }
        let taken = cursor.ids.split_off(cursor.ids.len().saturating_sub(most));
        table.read_rows(cursor.stripe - 1, &taken, &mut chunk.rows);
    }
}

/// Reads changed rows of one table. Answers its number.
fn changed_rows(tables: &[&Table], outgoing: &OutgoingMove, chunk: &mut Chunk) -> u32 {
    let mut of = None;
    loop {
        let most = of.and_then(|number: u32| tables.get(number as usize)).map_or(1, |table| most_rows(table));
        let read = chunk.rows.ids.len() + chunk.removed.len();
        if of.is_some() && read >= most {
            return of.unwrap_or(0);
        }
        let Some((number, stripe, ids)) = outgoing.changed.take(of, most.saturating_sub(read)) else {
            return of.unwrap_or(0);
        };
        of = Some(number);
        let before = chunk.rows.ids.len();
        tables[number as usize].read_rows(stripe as usize, &ids, &mut chunk.rows);
        let found = &chunk.rows.ids[before..];
        chunk.removed.extend(ids.iter().filter(|id| !found.contains(id)));
    }
}

fn most_rows(table: &Table) -> usize {
    (CHUNK_BYTES / (12 + 4 * table.stride())).max(1)
}
