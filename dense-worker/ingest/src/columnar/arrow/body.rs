//! The bytes of a message of an Arrow file: what it says of itself, and as much of its body as the used columns need.
//!
//! ```text
//! block ──► metadata: rows, nodes, where each buffer is ──► body, buffers of all columns one after another
//! ```
//!
//! The body is a zeroed piece of memory into which the used buffers alone are read. The rest of it is never touched, so the
//! system gives no memory for it.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;

use ::arrow_buffer::Buffer;
use ::arrow_ipc::{Block, Message, MetadataVersion, RecordBatch, root_as_message};
use ::arrow_schema::{DataType, Field, UnionMode};
use bytes::Bytes;

use crate::IngestError;
use crate::columnar::ARROW_STREAM as CONTINUATION;
use crate::columnar::fault::{FileFault, Result, fail};
use crate::source::RandomAccess;

/// Bytes of a message's metadata.
const MOST_METADATA: i32 = 64 << 20;
/// Bytes of the used buffers of a message, decompressed.
const MOST_BODY: u64 = 2 << 30;
/// Unused bytes between two buffers of a store that are fetched rather than asked for twice.
const GAP: u64 = 64 << 10;
/// Rows that cost no bytes: of columns that are null throughout.
const FREE_ROWS: u64 = 1 << 16;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoredMessage {
    pub(super) metadata: Bytes,
    pub(super) body: Range<u64>,
}

impl StoredMessage {
    pub(super) fn read(path: &Path, file: &RandomAccess, bytes: u64, block: &Block) -> BodyResult<Self> {
        let (at, body) = Self::block_place(bytes, block)?;
        let metadata = file.read(path, at, (body.start - at) as usize).map_err(Box::new)?;
        Ok(Self { metadata, body })
    }

    /// The messages that blocks of a footer name. Of a store, many are fetched at once.
    ///
    /// # Errors
    /// If the file cannot be read; inside, what is wrong in a block.
    pub(super) fn read_all(
        path: &Path,
        file: &RandomAccess,
        bytes: u64,
        blocks: &[Block],
    ) -> std::result::Result<Vec<Result<Self>>, IngestError> {
        let places: Vec<Result<(u64, Range<u64>)>> =
            blocks.iter().map(|block| Self::block_place(bytes, block)).collect();
        let wanted: Vec<Range<u64>> = places.iter().flatten().map(|(at, body)| *at..body.start).collect();
        let mut fetched = file.read_all(path, &wanted)?.into_iter();
        let message = |place: Result<(u64, Range<u64>)>| {
            let (_, body) = place?;
            Ok(Self { metadata: fetched.next().unwrap_or_default(), body })
        };
        Ok(places.into_iter().map(message).collect())
    }

    /// Where the metadata of a block starts, and where its body is.
    fn block_place(bytes: u64, block: &Block) -> Result<(u64, Range<u64>)> {
        let (at, metadata, body) = (block.offset(), block.metaDataLength(), block.bodyLength());
        let metadata = Some(metadata).filter(|length| (8..=MOST_METADATA).contains(length));
        let place = metadata.and_then(|metadata| {
            let offset = u64::try_from(at).ok()?;
            let start = offset.checked_add(u64::from(metadata.unsigned_abs()))?;
            let end = start.checked_add(u64::try_from(body).ok()?)?;
            (end <= bytes).then_some((offset, start..end))
        });
        place.ok_or_else(|| FileFault::new("it names a place outside of the file"))
    }

    pub(super) fn parse_message(&self) -> Result<Message<'_>> {
        let start = if self.metadata.starts_with(&CONTINUATION) { 8 } else { 4 };
        root_as_message(&self.metadata[start..]).or_else(|error| fail(format!("its metadata makes no sense: {error}")))
    }

    /// The buffers at `used`, decompressed, and nothing of others: a body of which they are read.
    pub(super) fn read_body(
        &self,
        path: &Path,
        file: &RandomAccess,
        batch: RecordBatch<'_>,
        used: &[usize],
    ) -> BodyResult<Buffer> {
        let length = self.body.end - self.body.start;
        let mut body = vec![0; length as usize];
        let places = buffer_places(batch, used, length)?;
        let gap = if matches!(file, RandomAccess::Disk(_)) { 0 } else { GAP };
        for part in merge_places(places.clone(), gap) {
            let out = &mut body[part.start as usize..part.end as usize];
            file.read_into(path, self.body.start + part.start, out).map_err(Box::new)?;
        }
        let compressed = batch.compression().is_some();
        let mut whole = 0_u64;
        for place in places {
            let start = &body[place.start as usize..place.end as usize];
            whole = whole.saturating_add(if compressed { decompressed_bytes(start)? } else { start.len() as u64 });
        }
        if whole > MOST_BODY {
            let text =
                format!("its used columns take {whole} bytes, the most is {MOST_BODY}; write smaller record batches");
            return Err(FileFault::new(text).into());
        }
        let rows = batch.length();
        if u64::try_from(rows).is_ok_and(|rows| rows / 8 <= whole + FREE_ROWS / 8) {
            return Ok(Buffer::from_vec(body));
        }
        Err(FileFault::new(format!("it claims {rows} rows in {whole} bytes")).into())
    }
}

pub(super) type BodyResult<T> = std::result::Result<T, BatchFailure>;

#[derive(Debug)]
pub(crate) enum BatchFailure {
    Fault(FileFault),
    Unreadable(Box<IngestError>),
}

impl BatchFailure {
    pub(super) fn explain(self, damaged: impl FnOnce(FileFault) -> IngestError) -> IngestError {
        match self {
            Self::Fault(fault) => damaged(fault),
            Self::Unreadable(error) => *error,
        }
    }
}

impl From<FileFault> for BatchFailure {
    fn from(fault: FileFault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Box<IngestError>> for BatchFailure {
    fn from(error: Box<IngestError>) -> Self {
        Self::Unreadable(error)
    }
}

/// Bytes of a buffer as its first eight say.
fn decompressed_bytes(buffer: &[u8]) -> Result<u64> {
    if buffer.is_empty() {
        return Ok(0);
    }
    match buffer.first_chunk().map(|first| i64::from_le_bytes(*first)) {
        // As it is.
        Some(-1) => Ok(buffer.len() as u64),
        Some(length) if length >= 0 => Ok(length.unsigned_abs()),
        _ => fail("a compressed buffer without its size"),
    }
}

/// Where the used buffers are in a body of so many bytes.
fn buffer_places(batch: RecordBatch<'_>, used: &[usize], length: u64) -> Result<Vec<Range<u64>>> {
    let Some(buffers) = batch.buffers() else { return fail("it has no list of its buffers") };
    let place = |index: &usize| {
        if *index >= buffers.len() {
            return fail(format!("it has {} buffers, and its schema more", buffers.len()));
        }
        let buffer = buffers.get(*index);
        let start = u64::try_from(buffer.offset()).ok();
        let place = start.and_then(|start| Some(start..start.checked_add(u64::try_from(buffer.length()).ok()?)?));
        place.filter(|place| place.end <= length).map_or_else(|| fail("a buffer outside of its body"), Ok)
    };
    used.iter().map(place).collect()
}

/// Places in order, those with less than a gap between them as one.
fn merge_places(mut places: Vec<Range<u64>>, gap: u64) -> Vec<Range<u64>> {
    places.sort_unstable_by_key(|place| place.start);
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(places.len());
    for place in places.into_iter().filter(|place| !place.is_empty()) {
        match merged.last_mut() {
            Some(last) if place.start <= last.end + gap => last.end = last.end.max(place.end),
            _ => merged.push(place),
        }
    }
    merged
}

/// The numbers of the buffers of each used field of a record batch.
pub(super) fn used_buffers(
    fields: &::arrow_schema::Fields,
    used: &[usize],
    version: MetadataVersion,
    batch: RecordBatch<'_>,
) -> Result<Vec<usize>> {
    let mut variadic: VecDeque<i64> = batch.variadicBufferCounts().into_iter().flatten().collect();
    let most = batch.buffers().map_or(0, |buffers| buffers.len());
    let (mut buffers, mut at) = (Vec::new(), 0_usize);
    for (index, field) in fields.iter().enumerate() {
        let end = at.saturating_add(buffer_count(field, version, &mut variadic));
        if end > most {
            return fail(format!("it has {most} buffers, and its schema more"));
        }
        if used.contains(&index) {
            buffers.extend(at..end);
        }
        at = end;
    }
    Ok(buffers)
}

fn buffer_count(field: &Field, version: MetadataVersion, variadic: &mut VecDeque<i64>) -> usize {
    let mut sum = |fields: &[&Field]| {
        fields.iter().fold(0_usize, |sum, field| sum.saturating_add(buffer_count(field, version, variadic)))
    };
    match field.data_type() {
        DataType::Null => 0,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => 3,
        DataType::Utf8View | DataType::BinaryView => {
            // Those of validity and of views besides.
            let more = variadic.pop_front().and_then(|more| usize::try_from(more).ok()).unwrap_or(usize::MAX);
            more.saturating_add(2)
        }
        DataType::List(item) | DataType::LargeList(item) | DataType::Map(item, _) => sum(&[item]).saturating_add(2),
        DataType::ListView(item) | DataType::LargeListView(item) => sum(&[item]).saturating_add(3),
        DataType::FixedSizeList(item, _) => sum(&[item]).saturating_add(1),
        DataType::Struct(fields) => sum(&fields.iter().map(AsRef::as_ref).collect::<Vec<_>>()).saturating_add(1),
        DataType::RunEndEncoded(ends, values) => sum(&[ends, values]),
        DataType::Union(fields, mode) => {
            let own = usize::from(version < MetadataVersion::V5) + 1 + usize::from(*mode == UnionMode::Dense);
            sum(&fields.iter().map(|(_, field)| field.as_ref()).collect::<Vec<_>>()).saturating_add(own)
        }
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_places_are_read_at_once() {
        assert_eq!(merge_places(vec![70..80, 0..10, 10..20, 25..30, 90..90], 0), [0..20, 25..30, 70..80]);
        assert_eq!(merge_places(vec![70..80, 0..10, 10..20, 25..30, 5..7], 8), [0..30, 70..80]);
        assert_eq!(merge_places(vec![0..100, 20..30, 200..201], 0), [0..100, 200..201]);
    }

    #[test]
    fn the_size_of_a_compressed_buffer_is_checked() {
        assert_eq!(decompressed_bytes(&[]), Ok(0));
        assert_eq!(decompressed_bytes(&[&7_i64.to_le_bytes()[..], b"abc"].concat()), Ok(7));
        assert_eq!(decompressed_bytes(&[&(-1_i64).to_le_bytes()[..], b"abc"].concat()), Ok(11));
        assert!(decompressed_bytes(&(-2_i64).to_le_bytes()).is_err());
        assert!(decompressed_bytes(b"short").is_err());
    }
}
