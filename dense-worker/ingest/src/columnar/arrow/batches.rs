//! The record batches of a file. Each is read and decoded once for all parsing threads: it comes as a whole, and its
//! arrays can be read from any row on. Of a message as much of its body is read as the used columns need:
//!
//! ```text
//! block ──► metadata: rows, nodes, where each buffer is ──► body, buffers of all columns one after another
//! ```
//!
//! The body is a zeroed piece of memory into which the used buffers alone are read. The rest of it is hardly touched, so the
//! system gives little memory for it.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ::arrow_array::{Array, ArrayRef};
use ::arrow_buffer::Buffer;
use ::arrow_ipc::reader::{read_dictionary, read_record_batch};
use ::arrow_ipc::{Block, Message, MetadataVersion, RecordBatch, root_as_message};
use ::arrow_schema::{ArrowError, DataType, Field, SchemaRef, UnionMode};
use bytes::Bytes;

use crate::IngestError;
use crate::columnar::{FileFault, FileResult, catch_panics, fail};
use crate::formats::ARROW_STREAM as CONTINUATION;
use crate::source::{RandomAccess, merge_parts};

/// Record batches that are held at least: the one that is read, and its neighbours.
const HELD: usize = 3;
/// More are held while they take no more bytes than this.
const HELD_BYTES: usize = 64 << 20;

/// The arrays of a record batch by their fields; those of unused fields are not there.
pub(crate) type FieldArrays = Arc<HashMap<usize, ArrayRef>>;

type Entries = Arc<HashMap<i64, ArrayRef>>;

pub(crate) struct RecordBatches {
    path: PathBuf,
    file: RandomAccess,
    schema: SchemaRef,
    version: MetadataVersion,
    /// Those of the used columns, in the order of the file: later ones may add to earlier ones.
    dictionaries: Vec<StoredMessage>,
    batches: Vec<StoredMessage>,
    fields: Vec<usize>,
    entries: Mutex<Option<Entries>>,
    held: Mutex<VecDeque<(usize, Arc<HeldBatch>)>>,
}

/// A record batch that one thread decodes, and the others wait for.
#[derive(Default)]
struct HeldBatch(Mutex<Option<FieldArrays>>);

impl fmt::Debug for RecordBatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, batches, fields, .. } = self;
        let mut text = f.debug_struct("RecordBatches");
        text.field("path", path).field("batches", &batches.len()).field("fields", fields).finish_non_exhaustive()
    }
}

impl PartialEq for RecordBatches {
    /// What is held does not count.
    fn eq(&self, other: &Self) -> bool {
        (&self.path, &self.fields, &self.batches) == (&other.path, &other.fields, &other.batches)
    }
}

impl RecordBatches {
    pub(super) fn new(
        path: &Path,
        file: RandomAccess,
        (schema, version): (SchemaRef, MetadataVersion),
        (dictionaries, batches): (Vec<StoredMessage>, Vec<StoredMessage>),
        fields: Vec<usize>,
    ) -> Self {
        let (entries, held) = Default::default();
        Self { path: path.into(), file, schema, version, dictionaries, batches, fields, entries, held }
    }

    /// Decodes a record batch of a store ahead; that of a disk is decoded by the thread that needs it.
    pub(crate) fn prefetch(&self, number: usize) {
        if let RandomAccess::Object(..) = self.file {
            drop(self.batch_arrays(number));
        }
    }

    pub(crate) fn batch_arrays(&self, number: usize) -> Result<FieldArrays, IngestError> {
        let batch = self.hold_batch(number);
        let mut decoded = batch.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(arrays) = &*decoded {
            return Ok(Arc::clone(arrays));
        }
        let arrays = Arc::new(self.decode(number)?);
        *decoded = Some(Arc::clone(&arrays));
        Ok(arrays)
    }

    fn hold_batch(&self, number: usize) -> Arc<HeldBatch> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, batch)) = held.iter().find(|(held, _)| *held == number) {
            return Arc::clone(batch);
        }
        let batch = Arc::new(HeldBatch::default());
        held.push_back((number, Arc::clone(&batch)));
        while held.len() > HELD && held.iter().map(|(_, batch)| batch.bytes()).sum::<usize>() > HELD_BYTES {
            held.pop_front();
        }
        batch
    }

    fn decode(&self, number: usize) -> Result<HashMap<usize, ArrayRef>, IngestError> {
        let dictionaries = self.dictionaries()?;
        let stored = &self.batches[number];
        let damaged = |FileFault(reason)| batch_error(&self.path, number, &reason);
        let batch = stored.parse_message().and_then(|message| match message.header_as_record_batch() {
            Some(batch) => Ok(batch),
            None => fail("it is no record batch"),
        });
        let batch = batch.map_err(damaged)?;
        let used = used_buffers(self.schema.fields(), &self.fields, self.version, batch).map_err(damaged)?;
        let body = stored.read_body(&self.path, &self.file, batch, &used, damaged)?;
        let array = |field: &usize| {
            let decoded = catch_panics(|| {
                let (schema, only) = (Arc::clone(&self.schema), [*field]);
                let decoded =
                    read_record_batch(&body, batch, schema, &dictionaries, Some(only.as_slice()), &self.version);
                Ok(Arc::clone(decoded.map_err(arrow_fault)?.column(0)))
            });
            decoded.map(|array| (*field, array)).map_err(|FileFault(reason)| IngestError::DamagedColumn {
                path: self.path.clone(),
                unit: "record batch",
                number,
                column: self.schema.field(*field).name().clone(),
                reason,
            })
        };
        self.fields.iter().map(array).collect()
    }

    fn dictionaries(&self) -> Result<Entries, IngestError> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entries) = &*entries {
            return Ok(Arc::clone(entries));
        }
        let mut read = HashMap::new();
        self.dictionaries.iter().try_for_each(|stored| self.add_dictionary(stored, &mut read))?;
        let read = Arc::new(read);
        *entries = Some(Arc::clone(&read));
        Ok(read)
    }

    fn add_dictionary(&self, stored: &StoredMessage, entries: &mut HashMap<i64, ArrayRef>) -> Result<(), IngestError> {
        let damaged = |FileFault(reason)| dictionary_error(&self.path, &reason);
        let message = stored.parse_message().map_err(damaged)?;
        let dictionary = message.header_as_dictionary_batch();
        let Some((dictionary, batch)) = dictionary.and_then(|dictionary| Some((dictionary, dictionary.data()?))) else {
            return Err(damaged(FileFault::new("its message is none")));
        };
        // It has one column, of which everything is read.
        let buffers = batch.buffers().map_or(0, |buffers| buffers.len());
        let body = stored.read_body(&self.path, &self.file, batch, &(0..buffers).collect::<Vec<_>>(), damaged)?;
        catch_panics(|| read_dictionary(&body, dictionary, &self.schema, entries, &self.version).map_err(arrow_fault))
            .map_err(damaged)
    }
}

/// What is wrong with a record batch of a file.
pub(super) fn batch_error(path: &Path, number: usize, reason: &str) -> IngestError {
    IngestError::bad_file(path, format!("record batch {number}: {reason}; if the file is damaged, write it again"))
}

/// What is wrong with a dictionary of a file.
pub(super) fn dictionary_error(path: &Path, reason: &str) -> IngestError {
    let reason = format!("a dictionary: {reason}; if the file is damaged, write it again");
    IngestError::bad_file(path, reason)
}

impl HeldBatch {
    fn bytes(&self) -> usize {
        let decoded = self.0.try_lock().ok();
        let arrays = decoded.as_ref().and_then(|decoded| decoded.as_ref());
        arrays.map_or(0, |arrays| arrays.values().map(|array| array.get_buffer_memory_size()).sum())
    }
}

pub(super) fn arrow_fault(error: ArrowError) -> FileFault {
    match error {
        ArrowError::ParseError(text)
        | ArrowError::SchemaError(text)
        | ArrowError::IpcError(text)
        | ArrowError::InvalidArgumentError(text)
        | ArrowError::NotYetImplemented(text) => FileFault(text),
        other => FileFault(other.to_string()),
    }
}

/// Bytes of a message's metadata.
const MOST_METADATA: i32 = 64 << 20;
/// Bytes of the used buffers of a message, decompressed.
const MOST_BODY: u64 = 2 << 30;
/// Rows that cost no bytes: of columns that are null throughout.
const FREE_ROWS: u64 = 1 << 16;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoredMessage {
    pub(super) metadata: Bytes,
    pub(super) body: Range<u64>,
}

impl StoredMessage {
    pub(super) fn read(
        path: &Path,
        file: &RandomAccess,
        bytes: u64,
        block: &Block,
        damaged: impl Fn(FileFault) -> IngestError,
    ) -> Result<Self, IngestError> {
        let (at, body) = Self::block_place(bytes, block).map_err(damaged)?;
        let metadata = file.read(path, at, (body.start - at) as usize)?;
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
    ) -> Result<Vec<FileResult<Self>>, IngestError> {
        let places: Vec<FileResult<(u64, Range<u64>)>> =
            blocks.iter().map(|block| Self::block_place(bytes, block)).collect();
        let wanted: Vec<Range<u64>> = places.iter().flatten().map(|(at, body)| *at..body.start).collect();
        let mut fetched = file.read_all(path, &wanted)?.into_iter();
        let message = |place: FileResult<(u64, Range<u64>)>| {
            let (_, body) = place?;
            Ok(Self { metadata: fetched.next().unwrap_or_default(), body })
        };
        Ok(places.into_iter().map(message).collect())
    }

    /// Where the metadata of a block starts, and where its body is.
    fn block_place(bytes: u64, block: &Block) -> FileResult<(u64, Range<u64>)> {
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

    pub(super) fn parse_message(&self) -> FileResult<Message<'_>> {
        let start = if self.metadata.starts_with(&CONTINUATION) { 8 } else { 4 };
        root_as_message(&self.metadata[start..]).or_else(|error| fail(format!("its metadata makes no sense: {error}")))
    }

    /// The buffers at `used` and nothing of others: a body of which they are decompressed.
    fn read_body(
        &self,
        path: &Path,
        file: &RandomAccess,
        batch: RecordBatch<'_>,
        used: &[usize],
        damaged: impl Fn(FileFault) -> IngestError,
    ) -> Result<Buffer, IngestError> {
        let length = self.body.end - self.body.start;
        let mut body = vec![0; length as usize];
        let mut places = buffer_places(batch, used, length).map_err(&damaged)?;
        places.retain(|place| !place.is_empty());
        places.sort_unstable_by_key(|place| place.start);
        for part in merge_parts(&places).0 {
            let out = &mut body[part.start as usize..part.end as usize];
            file.read_into(path, self.body.start + part.start, out)?;
        }
        check_size(batch, &body, &places).map_err(damaged)?;
        Ok(Buffer::from_vec(body))
    }
}

/// Refuses a message that would take too much memory, or claims more rows than its bytes can have.
fn check_size(batch: RecordBatch<'_>, body: &[u8], places: &[Range<u64>]) -> FileResult<()> {
    let compressed = batch.compression().is_some();
    let mut whole = 0_u64;
    for place in places {
        let start = &body[place.start as usize..place.end as usize];
        whole = whole.saturating_add(if compressed { decompressed_bytes(start)? } else { start.len() as u64 });
    }
    if whole > MOST_BODY {
        return fail(format!(
            "its used columns take {whole} bytes, the most is {MOST_BODY}; write smaller record batches"
        ));
    }
    let rows = batch.length();
    if u64::try_from(rows).is_ok_and(|rows| rows / 8 <= whole + FREE_ROWS / 8) {
        return Ok(());
    }
    fail(format!("it claims {rows} rows in {whole} bytes"))
}

/// Bytes of a buffer as its first eight say.
fn decompressed_bytes(buffer: &[u8]) -> FileResult<u64> {
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
fn buffer_places(batch: RecordBatch<'_>, used: &[usize], length: u64) -> FileResult<Vec<Range<u64>>> {
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

/// The numbers of the buffers of each used field of a record batch.
fn used_buffers(
    fields: &::arrow_schema::Fields,
    used: &[usize],
    version: MetadataVersion,
    batch: RecordBatch<'_>,
) -> FileResult<Vec<usize>> {
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
    fn the_size_of_a_compressed_buffer_is_checked() {
        assert_eq!(decompressed_bytes(&[]), Ok(0));
        assert_eq!(decompressed_bytes(&[&7_i64.to_le_bytes()[..], b"abc"].concat()), Ok(7));
        assert_eq!(decompressed_bytes(&[&(-1_i64).to_le_bytes()[..], b"abc"].concat()), Ok(11));
        assert!(decompressed_bytes(&(-2_i64).to_le_bytes()).is_err());
        assert!(decompressed_bytes(b"short").is_err());
    }
}
