//! The rows of a move, chunk by chunk: first every row once, then those that have changed since.
//!
//! Which rows have changed is asked before they are read. So a row that changes after it was read is noted again, and is sent
//! again.

use zagros_protocol::Refusal;
use zagros_protocol::control::MoveRowsResponse;
use zagros_table::{RowBatch, Table};

use super::OutgoingMove;
use crate::EmbeddingService;

/// Bytes of rows in one answer, about.
const CHUNK_BYTES: usize = 1 << 20;

/// How far the copy is.
#[derive(Debug, Default)]
pub(super) struct CopyCursor {
    /// Number of the next request.
    number: u64,
    /// The answer to the request before.
    last: Option<MoveRowsResponse>,
    /// Where the scan goes on.
    table: u32,
    stripe: usize,
    /// Moving ids of the stripe before that were not sent yet.
    ids: Vec<u64>,
}

/// Rows of one table.
#[derive(Default)]
struct Chunk {
    rows: RowBatch,
    removed: Vec<u64>,
}

impl CopyCursor {
    /// Answers request `number`.
    ///
    /// # Errors
    /// `Invalid` if it is neither the next request nor the one before.
    pub(super) fn answer(
        &mut self,
        number: u64,
        service: &EmbeddingService,
        outgoing: &OutgoingMove,
    ) -> Result<MoveRowsResponse, Refusal> {
        if let Some(last) = self.last.as_ref().filter(|_| number + 1 == self.number) {
            return Ok(last.clone());
        }
        if number != self.number {
            let plan = &outgoing.plan;
            return Err(Refusal::invalid(format!("request {number} of {plan}, and {} is the next", self.number)));
        }
        let answer = self.next(service, outgoing);
        self.number += 1;
        self.last = Some(answer.clone());
        Ok(answer)
    }

    fn next(&mut self, service: &EmbeddingService, outgoing: &OutgoingMove) -> MoveRowsResponse {
        let tables: Vec<&Table> = service.tables.iter().collect();
        let (mut number, mut chunk) = (self.table, Chunk::default());
        if let Some(table) = tables.get(number as usize) {
            self.scan(table, outgoing, &mut chunk);
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
            scanned: self.table as usize >= tables.len(),
            changed: outgoing.changed.count(),
        }
    }

    /// Reads the next rows of one table.
    fn scan(&mut self, table: &Table, outgoing: &OutgoingMove, chunk: &mut Chunk) {
        let most = most_rows(table);
        while chunk.rows.ids.len() < most {
            if self.ids.is_empty() {
                if self.stripe == table.stripes() {
                    (self.table, self.stripe) = (self.table + 1, 0);
                    return;
                }
                self.ids = table.ids_in_memory(self.stripe);
                self.ids.retain(|id| outgoing.plan.has_row(self.table, *id));
                self.stripe += 1;
            }
            let taken = self.ids.split_off(self.ids.len().saturating_sub(most));
            table.read_rows(self.stripe - 1, &taken, &mut chunk.rows);
        }
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
