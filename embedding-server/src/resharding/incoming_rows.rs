//! Rows, counts and windows that a source sends: they are checked whole, and then put in.
//!
//! A source is a member of the run, and may be damaged or forged all the same. What it sends is refused before anything is changed or
//! room is made for it: lengths that disagree, rows of buckets that do not move, cells outside of the sketch, a clock that no training can
//! have reached, windows of more pushes than a window has.

use zagros_protocol::control::{MoveRowsResponse, MovedWindow, MovedWindows};
use zagros_protocol::packed::ids_of;
use zagros_protocol::{PUSH_WINDOW, Refusal, RefusalKind};
use zagros_rows::log::{WindowGroup, WindowImage};
use zagros_table::{RequestBuffers, RowBatch, StepClock, StepRowBatch, Table, TableTime};

use super::PlannedMove;
use super::moves::RowChunk;
use crate::EmbeddingService;

/// Windows that one source may send. A run has one for each worker and each group of buckets that moved together.
const MOST_WINDOWS: usize = 1 << 16;

/// Some buckets, and the windows of all of them.
type SentWindows = (Vec<u32>, Vec<WindowImage>);

impl RowChunk {
    /// What a source sent, with lengths that agree and of buckets that move.
    fn checked(plan: &PlannedMove, table: &Table, sent: &MoveRowsResponse) -> Result<Self, Refusal> {
        let refused =
            |why: String| Err(Refusal::invalid(format!("the source of {plan} sent {why}; nothing of it is put in")));
        let words = [(8, &sent.ids), (8, &sent.removed), (8, &sent.counted), (4, &sent.slots), (4, &sent.access)];
        let words = words.into_iter().chain([(4, &sent.counts), (4, &sent.sketch)]);
        let words = words.chain([(8, &sent.step_ids), (4, &sent.step_before), (4, &sent.step_sums)]);
        if let Some((width, bytes)) = words.clone().find(|(width, bytes)| bytes.len() % width != 0) {
            return refused(format!("{} bytes of numbers of {width} bytes", bytes.len()));
        }
        let (rows, width) = (sent.ids.len() / 8, table.stride());
        if rows.checked_mul(width) != Some(sent.slots.len() / 4) {
            return refused(format!("{} words of {rows} rows of {width} words", sent.slots.len() / 4));
        }
        if sent.access.len() / 4 != if table.access_layout().is_some() { rows } else { 0 } {
            return refused(format!("access metadata of {} rows with {rows} rows", sent.access.len() / 4));
        }
        if sent.counted.len() / 8 != sent.counts.len() / 4 {
            return refused(format!("{} counts of {} ids", sent.counts.len() / 4, sent.counted.len() / 8));
        }
        let of_step = sent.step_ids.len() / 8;
        let expected = [width, table.dim()].map(|words| of_step.checked_mul(words));
        if expected != [&sent.step_before, &sent.step_sums].map(|words| Some(words.len() / 4)) {
            return refused(format!("{of_step} rows of a step whose words disagree"));
        }
        if table.counter_layout().is_none() && !(sent.counted.is_empty() && sent.sketch.is_empty()) {
            return refused("counts of a table that counts nothing".to_owned());
        }
        let [ids, removed, counted] = [&sent.ids, &sent.removed, &sent.counted].map(|bytes| ids_of(bytes));
        let step_ids = ids_of(&sent.step_ids);
        if let Some(stray) =
            ids.iter().chain(&*removed).chain(&*counted).chain(&*step_ids).find(|id| !plan.has_row(sent.table, **id))
        {
            return refused(format!("row {stray}, which does not move"));
        }
        Ok(Self {
            rows: RowBatch { ids: ids.into_owned(), slots: words_of(&sent.slots), access: words_of(&sent.access) },
            removed: removed.into_owned(),
            counted: counted.into_owned(),
            counts: words_of(&sent.counts),
            sketch: words_of(&sent.sketch),
            sketch_stripe: sent.sketch_stripe,
            sketch_from: sent.sketch_from,
            step_rows: StepRowBatch {
                step: sent.step,
                ids: step_ids.into_owned(),
                before: words_of(&sent.step_before),
                sums: words_of(&sent.step_sums).into_iter().map(f32::from_bits).collect(),
            },
        })
    }
}

/// The same again changes nothing. Refused as `Invalid` if they do not fit: then nothing is put in. `Unavailable` while the
/// source's clock is ahead of all that this server knows, there is no room, or the log takes nothing.
pub(super) fn put_chunk(
    service: &EmbeddingService,
    plan: &PlannedMove,
    sent: &MoveRowsResponse,
) -> Result<(), Refusal> {
    let refuse = |error| service.table_refusal(&error);
    let table = service.tables.table(sent.table).map_err(refuse)?;
    let mut chunk = RowChunk::checked(plan, table, sent)?;
    let step = sent.steps.max(sent.step);
    if !service.writers.admit_step(step) {
        let why = format!("the source of {plan} is at step {step}, and no worker can be");
        return Err(Refusal::new(RefusalKind::Unavailable, why));
    }
    table.raise_sketch(chunk.sketch_stripe as usize, chunk.sketch_from as usize, &chunk.sketch).map_err(refuse)?;
    service.tables.advance_clock(sent.steps, 0);
    table.rebase_access(&mut chunk.rows, TableTime { steps: sent.steps, seconds: sent.seconds }, StepClock::GoesOn);
    let cold = |source| service.table_refusal(&zagros_table::TableError::Cold { table: sent.table, source });
    table.remove_ids(&chunk.removed).map_err(cold)?;
    table.forget_counts(&chunk.rows.ids);
    if !chunk.rows.ids.is_empty() {
        table.insert(&chunk.rows, &mut RequestBuffers::new()).map_err(refuse)?;
    }
    table.put_step_rows(&chunk.step_rows.as_slices()).map_err(refuse)?;
    table.take_counts(&chunk.counted, &chunk.counts).map_err(refuse)?;
    // Chunk by chunk, so that the log holds no more than one of them in memory.
    service.log.as_ref().map_or(Ok(()), |log| log.flush())
}

/// Puts the windows of the buckets in, and waits until windows and rows are as durable as pushes are.
/// If they do not fit, nothing is put in.
pub(super) fn put_windows(
    service: &EmbeddingService,
    plan: &PlannedMove,
    sent: &[MovedWindows],
) -> Result<(), Refusal> {
    for (buckets, windows) in checked_windows(plan, sent)? {
        let group = WindowGroup { group: service.windows.groups.next_group(), buckets, windows };
        // A base that is begun has both or neither: the record and the windows.
        let _entered = service.tables.enter();
        if let Some(log) = &service.log {
            log.writer.append_window_group(&group);
        }
        service.windows.restore_group(&group);
    }
    service.log.as_ref().map_or(Ok(()), |log| log.flush())
}

/// The buckets and windows of each group: every bucket of the move once, and in each window no more pushes than it can have.
fn checked_windows(plan: &PlannedMove, sent: &[MovedWindows]) -> Result<Vec<SentWindows>, Refusal> {
    let refused = |why: String| Refusal::invalid(format!("the source of {plan} sent {why}; nothing of it is put in"));
    let bytes: usize = sent.iter().map(|moved| moved.buckets.len()).sum();
    let mut buckets: Vec<u32> = sent.iter().flat_map(|moved| words_of(&moved.buckets)).collect();
    buckets.sort_unstable();
    if 4 * buckets.len() != bytes || buckets != plan.buckets {
        return Err(refused(format!("windows of {} buckets", buckets.len())));
    }
    let windows: usize = sent.iter().map(|moved| moved.windows.len()).sum();
    if windows > MOST_WINDOWS || sent.iter().any(|moved| moved.buckets.is_empty()) {
        return Err(refused(format!("{windows} windows in {} groups", sent.len())));
    }
    if let Some(bad) = sent.iter().flat_map(|moved| &moved.windows).find(|window| !is_a_window(window)) {
        return Err(refused(format!("pushes of writer {} that are no window", bad.writer)));
    }
    let group = |moved: &MovedWindows| (words_of(&moved.buckets), moved.windows.iter().map(read_window).collect());
    Ok(sent.iter().map(group).collect())
}

/// Whether these are ranges of numbers in ascending order, the last ones of a window.
fn is_a_window(moved: &MovedWindow) -> bool {
    let numbers = ids_of(&moved.applied);
    let newest = numbers.last().copied().unwrap_or(0);
    let (ranges, rest) = numbers.as_chunks::<2>();
    let is_ascending = ranges.iter().all(|[first, last]| first <= last) && ranges.is_sorted_by(|a, b| a[1] < b[0]);
    let is_short =
        numbers.first().is_none_or(|oldest| newest.checked_sub(*oldest).is_some_and(|span| span < PUSH_WINDOW));
    moved.applied.len().is_multiple_of(8) && rest.is_empty() && is_ascending && is_short
}

fn read_window(moved: &MovedWindow) -> WindowImage {
    let numbers = ids_of(&moved.applied);
    let applied = numbers.as_chunks::<2>().0.to_vec();
    WindowImage { writer: moved.writer, incarnation: moved.incarnation, applied }
}

fn words_of(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}
