//! Records as values: what a payload holds, and how it is made.

use bytemuck::cast_slice;
use zagros_table::{
    FrequencyCounts, PushOrigin, PushStep, RowBatch, StepRowBatch, StepRowSlices, TableTime, TileUpdate,
};

use crate::log::format::{
    COUNT_BYTES, ORIGIN_BYTES, RecordHead, RecordKind, copy_numbers, count_of, origin_of, u32_at, u64_at,
};
use crate::log::rows_view::{RowsView, WindowGroup};

/// A gradient that was acknowledged and waits for its row.
#[derive(Clone, Debug, PartialEq)]
pub struct LoggedGradient {
    pub origin: PushOrigin,
    pub step: PushStep,
    pub id: u64,
    /// `[dim]`.
    pub gradient: Vec<f32>,
}

/// What a record holds, as values.
#[derive(Clone, Debug, PartialEq)]
pub enum LogRecord {
    /// Rows after a change, and the push that changed them, if one did.
    Rows(Option<PushOrigin>, RowBatch),
    /// Rows before a step that is under way, and the sums of their gradients.
    StepRows(StepRowBatch),
    Removed(Vec<u64>),
    Cleared,
    /// Ids without a row that a lookup named, in order.
    Seen(Vec<u64>),
    CountsAdded(Vec<u64>, Vec<u32>),
    /// The cells that were added to a stripe's sketch.
    SketchAdded(u32, Vec<u32>),
    Pending(LoggedGradient),
    Commit {
        origin: PushOrigin,
        step: u64,
        time: TableTime,
        /// The window groups of the rows that it changed. Empty for group 0 alone.
        groups: Vec<u32>,
    },
    StripeCounts {
        /// All records of the stripe before this lsn are counted.
        lsn: u64,
        counts: FrequencyCounts,
    },
    /// The last record of a part, and how many came before.
    End(u64),
    LoadStarted,
    LoadComplete,
    WindowGroup(WindowGroup),
}

impl LogRecord {
    /// The values of a payload whose CRC was right. What does not fit together, in words.
    pub fn decode(head: &RecordHead, payload: &[u8]) -> Result<Self, String> {
        let wrong = || format!("a record of {} whose lengths disagree", head.kind.name());
        decode(head, payload).ok_or_else(wrong)
    }

    /// The push of the payload of a record that has one: pushed rows, a pending gradient, a commit.
    pub fn push_origin(payload: &[u8]) -> Option<PushOrigin> {
        origin_of(payload).map(|(origin, _)| origin)
    }
}

fn decode(head: &RecordHead, payload: &[u8]) -> Option<LogRecord> {
    Some(match head.kind {
        RecordKind::PushedRows | RecordKind::Rows => {
            let rows = RowsView::from_record(head, payload)?.ok()?;
            LogRecord::Rows(rows.origin, rows.into_rows())
        }
        RecordKind::Removed => LogRecord::Removed(ids_of(payload)?.0),
        RecordKind::Seen => LogRecord::Seen(ids_of(payload)?.0),
        RecordKind::Cleared => LogRecord::Cleared,
        RecordKind::CountsAdded => {
            let (ids, rest) = ids_of(payload)?;
            let counts = words_of(rest);
            (counts.len() == ids.len()).then_some(LogRecord::CountsAdded(ids, counts))?
        }
        RecordKind::SketchAdded => LogRecord::SketchAdded(head.width, words_of(payload)),
        RecordKind::Pending => LogRecord::Pending(gradient_of(payload)?),
        RecordKind::Commit => {
            let (origin, count) = origin_of(payload)?;
            let (rest, groups) = payload.get(ORIGIN_BYTES..)?.split_at_checked(24)?;
            let groups = words_of(groups.get(..count.checked_mul(4)?)?);
            let time = TableTime { steps: u64_at(rest, 8), seconds: u64_at(rest, 16) };
            LogRecord::Commit { origin, step: u64_at(rest, 0), time, groups }
        }
        RecordKind::StripeCounts => stripe_counts_of(payload)?,
        RecordKind::End => LogRecord::End(u64_at(payload.get(..8)?, 0)),
        RecordKind::LoadStarted => LogRecord::LoadStarted,
        RecordKind::LoadComplete => LogRecord::LoadComplete,
        RecordKind::WindowGroup => LogRecord::WindowGroup(window_group_of(payload)?),
        RecordKind::StepRows => LogRecord::StepRows(step_rows_of(head, payload)?),
    })
}

/// Ids, and the bytes behind them.
fn ids_of(payload: &[u8]) -> Option<(Vec<u64>, &[u8])> {
    split_ids(payload.get(COUNT_BYTES..)?, count_of(payload)?)
}

fn split_ids(bytes: &[u8], count: usize) -> Option<(Vec<u64>, &[u8])> {
    let (ids, rest) = bytes.split_at_checked(count.checked_mul(8)?)?;
    Some((copy_numbers(ids), rest))
}

fn words_of(bytes: &[u8]) -> Vec<u32> {
    copy_numbers(bytes)
}

fn gradient_of(payload: &[u8]) -> Option<LoggedGradient> {
    let (origin, count) = origin_of(payload)?;
    let rest = payload.get(ORIGIN_BYTES..)?;
    let gradient: Vec<f32> = words_of(rest.get(24..)?).into_iter().map(f32::from_bits).collect();
    let (share, tiles) = (f32::from_bits(u32_at(rest, 8)), tiles_of(u32_at(rest, 12)));
    let step = PushStep { number: u64_at(rest, 0), share, tiles };
    (gradient.len() == count).then(|| LoggedGradient { origin, step, id: u64_at(rest, 16), gradient })
}

/// The word of a staged gradient. No factor has these bits.
const STAGED: u32 = u32::MAX;

/// A factor above 0 has other bits than 0.
fn tiles_word(tiles: TileUpdate) -> u32 {
    match tiles {
        TileUpdate::AtOnce => 0,
        TileUpdate::Stage => STAGED,
        TileUpdate::Commit { factor } => factor.to_bits(),
    }
}

fn tiles_of(word: u32) -> TileUpdate {
    match word {
        0 => TileUpdate::AtOnce,
        STAGED => TileUpdate::Stage,
        factor => TileUpdate::Commit { factor: f32::from_bits(factor) },
    }
}

fn step_rows_of(head: &RecordHead, payload: &[u8]) -> Option<StepRowBatch> {
    let (start, rest) = payload.split_at_checked(16)?;
    let (ids, rest) = split_ids(rest, u32_at(start, 8) as usize)?;
    let (before, sums) = rest.split_at_checked(ids.len().checked_mul(head.width as usize)?.checked_mul(4)?)?;
    let sums: Vec<f32> = words_of(sums).into_iter().map(f32::from_bits).collect();
    let fits = sums.len().is_multiple_of(ids.len().max(1));
    fits.then(|| StepRowBatch { step: u64_at(start, 0), ids, before: words_of(before), sums })
}

fn stripe_counts_of(payload: &[u8]) -> Option<LogRecord> {
    let head = payload.get(..16)?;
    let (ids, cells) = (u32_at(head, 8) as usize, u32_at(head, 12) as usize);
    let (ids, rest) = split_ids(&payload[16..], ids)?;
    let (counts, rest) = rest.split_at_checked(4 * ids.len())?;
    let counts = FrequencyCounts { ids, counts: words_of(counts), cells: words_of(rest) };
    (counts.cells.len() == cells).then(|| LogRecord::StripeCounts { lsn: u64_at(head, 0), counts })
}

fn window_group_of(payload: &[u8]) -> Option<WindowGroup> {
    let (head, rest) = payload.split_at_checked(16)?;
    let (buckets, words) = (u32_at(head, 4) as usize, u32_at(head, 8) as usize);
    let (words, rest) = split_ids(rest, words)?;
    let windows = WindowGroup::windows_of(&words)?;
    let buckets: Vec<u32> = words_of(rest.get(..buckets.checked_mul(4)?)?);
    Some(WindowGroup { group: u32_at(head, 0), buckets, windows })
}

/// A record in the making: the parts of its payload, and their CRC. All of it is known before its place in the log is.
#[derive(Debug)]
pub(crate) struct RecordDraft<'a> {
    /// Without the place in the log.
    head: RecordHead,
    start: DraftStart,
    parts: [&'a [u8]; 3],
}

/// The first bytes of a payload, which are not of the caller's.
#[derive(Debug)]
struct DraftStart {
    bytes: [u8; 48],
    length: usize,
}

impl DraftStart {
    fn empty() -> Self {
        Self { bytes: [0; 48], length: 0 }
    }

    fn put_u32(mut self, number: u32) -> Self {
        self.bytes[self.length..][..4].copy_from_slice(&number.to_le_bytes());
        self.length += 4;
        self
    }

    fn put_u64(mut self, number: u64) -> Self {
        self.bytes[self.length..][..8].copy_from_slice(&number.to_le_bytes());
        self.length += 8;
        self
    }

    fn count(count: usize) -> Self {
        Self::empty().put_u32(count as u32).put_u32(0)
    }

    fn origin(origin: &PushOrigin, count: usize) -> Self {
        let PushOrigin { writer, seq, incarnation } = *origin;
        Self::empty().put_u64(writer).put_u64(seq).put_u32(incarnation).put_u32(count as u32)
    }
}

impl<'a> RecordDraft<'a> {
    fn new(kind: RecordKind, [table, stripe, width]: [u32; 3], start: DraftStart, parts: [&'a [u8]; 3]) -> Self {
        let length = start.length + parts.iter().map(|part| part.len()).sum::<usize>();
        let first = crc32c::crc32c(&start.bytes[..start.length]);
        let payload_crc = parts.iter().fold(first, |crc, part| crc32c::crc32c_append(crc, part));
        let length = length as u32;
        let head = RecordHead { kind, length, table, stripe, width, lsn: 0, durable: 0, payload_crc };
        Self { head, start, parts }
    }

    /// Rows after a change, `slots` of `width` words each.
    pub(crate) fn rows(
        place: [u32; 2],
        origin: Option<&PushOrigin>,
        ids: &'a [u64],
        slots: &'a [u32],
        access: &'a [u32],
    ) -> Self {
        let width = (slots.len() / ids.len().max(1)) as u32;
        let (kind, start) = match origin {
            Some(origin) => (RecordKind::PushedRows, DraftStart::origin(origin, ids.len())),
            None => (RecordKind::Rows, DraftStart::count(ids.len())),
        };
        let parts = [cast_slice(ids), cast_slice(slots), cast_slice(access)];
        Self::new(kind, [place[0], place[1], width], start, parts)
    }

    /// A list of ids: [`RecordKind::Removed`] or [`RecordKind::Seen`].
    pub(crate) fn ids(kind: RecordKind, place: [u32; 2], ids: &'a [u64]) -> Self {
        Self::new(kind, [place[0], place[1], 0], DraftStart::count(ids.len()), [cast_slice(ids), &[], &[]])
    }

    pub(crate) fn step_rows(place: [u32; 2], rows: &StepRowSlices<'a>) -> Self {
        let StepRowSlices { step, ids, before, sums } = *rows;
        let start = DraftStart::empty().put_u64(step).put_u32(ids.len() as u32).put_u32(0);
        let width = (before.len() / ids.len().max(1)) as u32;
        let parts = [cast_slice(ids), cast_slice(before), cast_slice(sums)];
        Self::new(RecordKind::StepRows, [place[0], place[1], width], start, parts)
    }

    pub(crate) fn counts_added(place: [u32; 2], ids: &'a [u64], counts: &'a [u32]) -> Self {
        let parts = [cast_slice(ids), cast_slice(counts), &[]];
        Self::new(RecordKind::CountsAdded, [place[0], place[1], 0], DraftStart::count(ids.len()), parts)
    }

    /// Where rows have their width, the record has the first word of the sketch.
    pub(crate) fn sketch_added(place: [u32; 2], from: u32, cells: &'a [u32]) -> Self {
        let parts = [cast_slice(cells), &[], &[]];
        Self::new(RecordKind::SketchAdded, [place[0], place[1], from], DraftStart::empty(), parts)
    }

    pub(crate) fn pending(place: [u32; 2], origin: &PushOrigin, step: PushStep, id: u64, gradient: &'a [f32]) -> Self {
        let PushStep { number, share, tiles } = step;
        let start = DraftStart::origin(origin, gradient.len()).put_u64(number);
        let start = start.put_u32(share.to_bits()).put_u32(tiles_word(tiles)).put_u64(id);
        Self::new(RecordKind::Pending, [place[0], place[1], 0], start, [cast_slice(gradient), &[], &[]])
    }

    pub(crate) fn commit(origin: &PushOrigin, step: u64, time: TableTime, groups: &'a [u32]) -> Self {
        let start = DraftStart::origin(origin, groups.len());
        let start = start.put_u64(step).put_u64(time.steps).put_u64(time.seconds);
        Self::new(RecordKind::Commit, [0; 3], start, [cast_slice(groups), &[], &[]])
    }

    /// A window group, and [`WindowGroup::window_words`] of it.
    pub(crate) fn window_group(group: &'a WindowGroup, words: &'a [u64]) -> Self {
        let (buckets, count) = (group.buckets.len() as u32, words.len() as u32);
        let start = DraftStart::empty().put_u32(group.group).put_u32(buckets).put_u32(count).put_u32(0);
        let parts = [cast_slice(words), cast_slice(&group.buckets), &[]];
        Self::new(RecordKind::WindowGroup, [0; 3], start, parts)
    }

    /// A record without a payload: [`RecordKind::Cleared`] and those of a load.
    pub(crate) fn mark(kind: RecordKind) -> Self {
        Self::new(kind, [0; 3], DraftStart::empty(), [&[]; 3])
    }

    pub(crate) fn stripe_counts(place: [u32; 2], lsn: u64, counts: &'a FrequencyCounts) -> Self {
        let (ids, cells) = (counts.ids.len() as u32, counts.cells.len() as u32);
        let start = DraftStart::empty().put_u64(lsn).put_u32(ids).put_u32(cells);
        let parts = [cast_slice(&counts.ids), cast_slice(&counts.counts), cast_slice(&counts.cells)];
        Self::new(RecordKind::StripeCounts, [place[0], place[1], 0], start, parts)
    }

    pub(crate) fn end(records: u64) -> Self {
        Self::new(RecordKind::End, [0; 3], DraftStart::empty().put_u64(records), [&[]; 3])
    }

    pub(crate) fn record_bytes(&self) -> usize {
        self.head.record_bytes() as usize
    }

    /// Appends the record, whose place is known now.
    pub(crate) fn append_to(&self, bytes: &mut Vec<u8>, lsn: u64, durable: u64) {
        bytes.reserve(self.record_bytes());
        let end = bytes.len() + self.record_bytes();
        bytes.extend_from_slice(&RecordHead { lsn, durable, ..self.head }.to_bytes());
        bytes.extend_from_slice(&self.start.bytes[..self.start.length]);
        self.parts.iter().for_each(|part| bytes.extend_from_slice(part));
        bytes.resize(end, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::WindowImage;
    use crate::log::format::HEAD_BYTES;
    use crate::log::format::tests::HEAD;

    const ORIGIN: PushOrigin = PushOrigin { writer: 1 << 40, incarnation: 3, seq: 9 };

    fn read_back(draft: &RecordDraft<'_>) -> (RecordHead, LogRecord) {
        let mut bytes = Vec::new();
        draft.append_to(&mut bytes, 64, 8);
        let head = RecordHead::from_bytes(&bytes).unwrap();
        assert_eq!((head.record_bytes() as usize, head.lsn, head.durable), (bytes.len(), 64, 8));
        let payload = &bytes[HEAD_BYTES..][..head.length as usize];
        assert_eq!(crc32c::crc32c(payload), head.payload_crc);
        (head, LogRecord::decode(&head, payload).unwrap())
    }

    #[test]
    fn every_kind_is_read_as_it_was_written() {
        let rows = RowBatch { ids: vec![5, u64::MAX], slots: vec![1, 2, 3, 4, 5, 6], access: vec![7, 8] };
        for origin in [None, Some(ORIGIN)] {
            let draft = RecordDraft::rows([1, 2], origin.as_ref(), &rows.ids, &rows.slots, &rows.access);
            let (head, record) = read_back(&draft);
            assert_eq!((head.table, head.stripe, head.width), (1, 2, 3));
            assert_eq!(record, LogRecord::Rows(origin, rows.clone()));
        }
        for (draft, expected) in [
            (RecordDraft::ids(RecordKind::Removed, [0, 1], &[1, 2, 3]), LogRecord::Removed(vec![1, 2, 3])),
            (RecordDraft::ids(RecordKind::Seen, [0, 1], &[4, 4]), LogRecord::Seen(vec![4, 4])),
            (RecordDraft::counts_added([0, 1], &[6, 7], &[1, 2]), LogRecord::CountsAdded(vec![6, 7], vec![1, 2])),
            (RecordDraft::sketch_added([0, 1], 7, &[3, 2, 1]), LogRecord::SketchAdded(7, vec![3, 2, 1])),
            (RecordDraft::mark(RecordKind::Cleared), LogRecord::Cleared),
            (RecordDraft::mark(RecordKind::LoadStarted), LogRecord::LoadStarted),
            (RecordDraft::mark(RecordKind::LoadComplete), LogRecord::LoadComplete),
            (RecordDraft::end(77), LogRecord::End(77)),
        ] {
            assert_eq!(read_back(&draft).1, expected);
        }
        for tiles in [TileUpdate::AtOnce, TileUpdate::Stage, TileUpdate::Commit { factor: 0.5 }] {
            assert_eq!(tiles_of(tiles_word(tiles)), tiles);
        }
        let tiles = TileUpdate::Commit { factor: 0.125 };
        let (step, time) = (PushStep { number: 4, share: 0.25, tiles }, TableTime { steps: 5, seconds: 6 });
        let gradient = LoggedGradient { origin: ORIGIN, step, id: 8, gradient: vec![0.5, -1.0, 2.0] };
        let draft = RecordDraft::pending([0, 1], &ORIGIN, step, 8, &gradient.gradient);
        assert_eq!(read_back(&draft).1, LogRecord::Pending(gradient.clone()));
        for groups in [vec![], vec![0, 7]] {
            let draft = RecordDraft::commit(&ORIGIN, 4, time, &groups);
            let commit = LogRecord::Commit { origin: ORIGIN, step: 4, time, groups: groups.clone() };
            assert_eq!(read_back(&draft).1, commit);
        }
        let step_rows = StepRowBatch { step: 7, ids: vec![3, 4], before: vec![1, 2, 3, 4], sums: vec![0.5; 6] };
        let (head, record) = read_back(&RecordDraft::step_rows([1, 2], &step_rows.as_slices()));
        assert_eq!((head.stripe, head.width, record), (2, 2, LogRecord::StepRows(step_rows)));
        let windows = vec![
            WindowImage { writer: 1 << 40, incarnation: 3, applied: vec![[1, 5], [7, 7]] },
            WindowImage { writer: 2, incarnation: 1, applied: vec![] },
        ];
        let group = WindowGroup { group: 4, buckets: vec![9, 11, 12], windows };
        let words = group.window_words();
        assert_eq!(read_back(&RecordDraft::window_group(&group, &words)).1, LogRecord::WindowGroup(group.clone()));
        let counts = FrequencyCounts { ids: vec![9], counts: vec![2], cells: vec![1, 2, 3] };
        let draft = RecordDraft::stripe_counts([0, 1], 99, &counts);
        assert_eq!(read_back(&draft).1, LogRecord::StripeCounts { lsn: 99, counts: counts.clone() });
    }

    #[test]
    fn lengths_that_disagree_are_refused() {
        let head = RecordHead { kind: RecordKind::Rows, length: 24, width: 2, ..HEAD };
        let mut payload = vec![0; 24];
        payload[0] = 200;
        assert!(LogRecord::decode(&head, &payload).unwrap_err().contains("rows whose lengths disagree"));
        for (kind, ..) in RecordKind::ALL {
            let head = RecordHead { kind, ..head };
            // No payload makes it panic.
            for length in 0..24 {
                let _ = LogRecord::decode(&head, &payload[..length]);
            }
        }
    }
}
