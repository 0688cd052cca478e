//! The source of a move: it sends rows, freezes, and waits for the decision.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tracing::info;
use zagros_protocol::control::{BeginMoveResponse, FreezeMoveResponse, MoveRowsResponse, MovedWindow, MovedWindows};
use zagros_protocol::{Refusal, RefusalKind};
use zagros_table::{ChangeWatcher, ColdError, Table};

use super::PlannedMove;
use super::bucket_set::ChangedRows;
use super::moves::{CopyCursor, MoveActivity, OutgoingMove, RowChunk, TableScan, most_rows};
use crate::EmbeddingService;

/// The longest wait for a moment without requests. Requests that come meanwhile wait as well.
const QUIET: Duration = Duration::from_secs(1);

/// Starts the copy of an announced move, from its first row. Notes from now on which rows change.
/// Refused as `Unavailable` if the coordinator has not announced the move yet or something else is under way, as `Invalid` if
/// the move is not this server's, or the server is frozen for it.
pub(crate) fn begin_copy(service: &EmbeddingService, id: u64) -> Result<BeginMoveResponse, Refusal> {
    let plan = service.moves.announced.lock().clone().filter(|plan| plan.id == id);
    let Some(plan) = plan else {
        service.moves.request_placement();
        return Err(unavailable(service, &format!("has not heard of move {id} yet")));
    };
    if plan.source != service.index.0 {
        return Err(Refusal::invalid(format!("embedding server {} is not the source of {plan}", service.index)));
    }
    let mut activity = service.moves.activity.lock();
    match &*activity {
        MoveActivity::None => {}
        MoveActivity::Outgoing(earlier) if earlier.plan.id == id => {
            if service.placement()?.frozen_move.is_some() {
                return Err(Refusal::invalid(format!("embedding server {} is frozen for {plan}", service.index)));
            }
        }
        other => return Err(unavailable(service, &other.describe_work().unwrap_or_default())),
    }
    let changed = Arc::new(ChangedRows::new(Arc::clone(&plan)));
    let watched = service.tables.while_quiet(QUIET, || service.tables.set_watcher(Arc::clone(&changed) as _));
    watched.ok_or_else(|| unavailable(service, "has a request that does not end"))?;
    info!(server = service.index.0, %plan, "copying begins");
    *activity = MoveActivity::Outgoing(Arc::new(OutgoingMove { plan, changed, cursor: CopyCursor::default().into() }));
    Ok(BeginMoveResponse {})
}

/// The next rows. The request before may be repeated.
///
/// The rows of a move, chunk by chunk: first every row once, then those that have changed since.
///
/// Which rows have changed is asked before they are read. So a row that changes after it was read is noted again, and is sent
/// again. An id without a row that was counted is a change, too: its count is sent.
///
/// Refused as `Invalid` if it is neither the next request nor the one before, as `Storage` once rows of the cold tier could not
/// be read.
pub(crate) fn next_rows(service: &EmbeddingService, id: u64, number: u64) -> Result<MoveRowsResponse, Refusal> {
    let outgoing = outgoing_move(service, id)?;
    let mut cursor = outgoing.cursor.lock();
    let plan = &outgoing.plan;
    if let Some(last) = cursor.last.as_ref().filter(|_| number.checked_add(1) == Some(cursor.number)) {
        return Ok(last.clone());
    }
    if number != cursor.number {
        return Err(Refusal::invalid(format!("request {number} of {plan}, and {} is the next", cursor.number)));
    }
    if cursor.failure.is_none() {
        match next_chunk(&mut cursor, service, &outgoing) {
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

/// Stops serving between two requests (invariant PL-3), until a placement says what became of the move. A repeated call gets the same answer.
/// Refused as `Unavailable` while requests do not end, gradients wait for rows that cannot be read, or a push waits for its
/// retry that died half-way with an earlier process.
pub(crate) fn freeze_source(service: &EmbeddingService, id: u64) -> Result<FreezeMoveResponse, Refusal> {
    let outgoing = outgoing_move(service, id)?;
    if let Some(push) = service.log.as_ref().and_then(|log| log.partial_push(&service.writers)) {
        return Err(unavailable(service, &format!("waits for {push}, of which an earlier process applied a part")));
    }
    let waiting = |_| unavailable(service, "has gradients that wait for rows of the cold tier");
    service.tables.apply_pending_gradients().map_err(waiting)?;
    // Held, so that no placement is adopted meanwhile.
    let activity = service.moves.activity.lock();
    if !matches!(&*activity, MoveActivity::Outgoing(now) if Arc::ptr_eq(now, &outgoing)) {
        return Err(no_such(service, id));
    }
    let placement = service.placement()?;
    if placement.frozen_move != Some(id) {
        let frozen = service.tables.while_quiet(QUIET, || {
            // Their rows would be sent without them.
            let is_whole = !service.tables.has_pending_gradients();
            is_whole.then(|| service.serve_buckets(placement.freeze(id)))
        });
        let frozen = frozen.ok_or_else(|| unavailable(service, "has a request that does not end"))?;
        frozen.ok_or_else(|| unavailable(service, "has gradients that wait for rows of the cold tier"))?;
        if service.keeps_steps {
            note_step_rows(service, &outgoing.changed);
        }
        info!(server = service.index.0, plan = %outgoing.plan, "frozen until the coordinator has decided");
    }
    service.moves.request_placement();
    Ok(FreezeMoveResponse { changed: outgoing.changed.row_count(), groups: moved_windows(service, &outgoing.plan) })
}

/// The rows that the step under way has changed are sent once more, with what the stripes keep of them.
fn note_step_rows(service: &EmbeddingService, changed: &ChangedRows) {
    for (number, table) in service.tables.iter().enumerate() {
        for stripe in 0..table.stripes() {
            changed.changed(number as u32, stripe as u32, &table.step_ids(stripe));
        }
    }
}

fn moved_windows(service: &EmbeddingService, plan: &PlannedMove) -> Vec<MovedWindows> {
    let mut groups = std::collections::BTreeMap::<u32, Vec<u32>>::new();
    for bucket in &plan.buckets {
        groups.entry(service.windows.groups.of_bucket(*bucket)).or_default().push(*bucket);
    }
    let window = |image: zagros_rows::log::WindowImage| MovedWindow {
        writer: image.writer,
        incarnation: image.incarnation,
        applied: image.applied.iter().flatten().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>().into(),
    };
    let group = |(group, buckets): (u32, Vec<u32>)| MovedWindows {
        buckets: buckets.iter().flat_map(|bucket| bucket.to_le_bytes()).collect::<Vec<u8>>().into(),
        windows: service.windows.images_of(group).into_iter().map(window).collect(),
    };
    groups.into_iter().map(group).collect()
}

fn outgoing_move(service: &EmbeddingService, id: u64) -> Result<Arc<OutgoingMove>, Refusal> {
    match &*service.moves.activity.lock() {
        MoveActivity::Outgoing(outgoing) if outgoing.plan.id == id => Ok(Arc::clone(outgoing)),
        _ => Err(no_such(service, id)),
    }
}

fn no_such(service: &EmbeddingService, id: u64) -> Refusal {
    Refusal::invalid(format!(
        "embedding server {} does not copy rows of move {id}: the copy has not begun here, or the move is over",
        service.index
    ))
}

fn unavailable(service: &EmbeddingService, why: &str) -> Refusal {
    Refusal::new(RefusalKind::Unavailable, format!("embedding server {} {why}; try again", service.index))
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
        let is_frozen = service.placement().is_ok_and(|placement| placement.frozen_move.is_some());
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
