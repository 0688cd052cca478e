//! What is known of an Arrow file before its rows are read: its columns, and where its record batches and dictionaries are. A footer says
//! so. A stream has none, and is read from message to message:
//!
//! ```text
//! ff ff ff ff │ length of metadata │ metadata │ body ──► the next message; length 0 or the end of the file ends the stream
//! ```
//!
//! Bodies are not read here: the metadata says how long each is.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use ::arrow_ipc::convert::try_fb_to_schema;
use ::arrow_ipc::{Block, Footer, MessageHeader, MetadataVersion, Schema, root_as_footer};
use ::arrow_schema::SchemaRef;
use zagros_zip::ZipEq;

use super::batches::{RecordBatches, StoredMessage, arrow_fault, batch_error, dictionary_error};
use super::schema::{ArrowLeaf, collect_dictionaries, schema_leaves};
use crate::IngestError;
use crate::columnar::groups::{ColumnDescription, GroupPlace, RowGroup, RowGroups, UsedColumn};
use crate::columnar::{FileFault, FileResult, catch_panics, fail};
use crate::formats::{self, ARROW as MAGIC, ARROW_STREAM as CONTINUATION};
use crate::source::RandomAccess;

/// The first bytes of a file of Feather's first version.
const OLD_FEATHER: &[u8; 4] = b"FEA1";
/// Bytes behind the footer: its length and the magic.
const TAIL: u64 = 10;
/// Bytes in front of the first message.
const START: u64 = 8;
/// Bytes that are read at once at the end of a file: most footers, and one request to a store.
const END: u64 = 64 << 10;

#[derive(Debug)]
pub(crate) struct ArrowFooter {
    content: FileContent,
    leaves: Vec<Arc<ArrowLeaf>>,
    pub(crate) names: Vec<String>,
    pub(crate) bytes: u64,
    source: RandomAccess,
}

impl ArrowFooter {
    pub(crate) fn open(path: &Path) -> Result<Self, IngestError> {
        let (source, bytes) = RandomAccess::open(path)?;
        let damaged = |FileFault(reason)| IngestError::bad_file(path, reason);
        let start = source.read(path, 0, bytes.min(START) as usize)?;
        let content = if start.starts_with(&CONTINUATION) {
            read_content(path, &source, bytes)?
        } else if start.starts_with(MAGIC) {
            let end = bytes.min(END);
            let last = source.read(path, bytes - end, end as usize)?;
            let length = footer_bytes(&last, bytes).map_err(damaged)?;
            let footer = source.read(path, bytes - TAIL - length, length as usize)?;
            catch_panics(|| parse_footer(&footer)).map_err(damaged)?
        } else {
            return Err(damaged(FileFault(other_format(&start))));
        };
        let leaves: Vec<Arc<ArrowLeaf>> = schema_leaves(&content.schema).into_iter().map(Arc::new).collect();
        let names = leaves.iter().map(|leaf| leaf.name.clone()).collect();
        Ok(Self { content, leaves, names, bytes, source })
    }

    pub(crate) fn row_groups(
        &self,
        path: &Path,
        positions: impl IntoIterator<Item = usize>,
    ) -> Result<RowGroups, IngestError> {
        let used = |position: usize| {
            let leaf = &self.leaves[position];
            let kind = leaf.kind.clone();
            let kind = kind.map_err(|reason| IngestError::UnusableColumn {
                path: path.into(),
                column: leaf.name.clone(),
                reason,
            })?;
            let description = ColumnDescription::Arrow(Arc::clone(leaf));
            Ok(UsedColumn { name: leaf.name.clone(), position, kind, description })
        };
        let columns = positions.into_iter().map(used).collect::<Result<Vec<_>, IngestError>>()?;
        let fields: BTreeSet<usize> = columns.iter().map(|column| self.leaves[column.position].field).collect();
        let dictionaries = self.used_dictionaries(path, &fields)?;
        let (mut groups, mut batches, mut first_row, mut last_middle) = (Vec::new(), Vec::new(), 0_u64, 0);
        let messages = StoredMessage::read_all(path, &self.source, self.bytes, &self.content.batches)?;
        for (number, (block, read)) in self.content.batches.iter().zip_eq(messages).enumerate() {
            let stored = read.and_then(|stored| Ok((batch_rows(&stored)?, stored)));
            let (rows, stored) = stored.map_err(|FileFault(reason)| batch_error(path, number, &reason))?;
            let middle = (block.offset().unsigned_abs() + stored.body.end) / 2;
            last_middle = middle.max(last_middle);
            groups.push(RowGroup { first_row, rows, middle: last_middle, chunks: Vec::new() });
            first_row = first_row.saturating_add(rows);
            batches.push(stored);
        }
        let schema = (Arc::clone(&self.content.schema), self.content.version);
        let fields = fields.into_iter().collect();
        let batches = RecordBatches::new(path, self.source.clone(), schema, (dictionaries, batches), fields);
        Ok(RowGroups { columns, groups, place: GroupPlace::Batches(Arc::new(batches)) })
    }

    fn used_dictionaries(&self, path: &Path, fields: &BTreeSet<usize>) -> Result<Vec<StoredMessage>, IngestError> {
        let named: BTreeSet<i64> = fields.iter().flat_map(|field| self.content.named[*field].iter().copied()).collect();
        if named.is_empty() {
            return Ok(Vec::new());
        }
        let mut used = Vec::new();
        for read in StoredMessage::read_all(path, &self.source, self.bytes, &self.content.dictionaries)? {
            match read.and_then(|stored| Ok((dictionary_id(&stored)?, stored))) {
                Ok((id, stored)) if named.contains(&id) => used.push(stored),
                Ok(_) => {}
                Err(FileFault(reason)) => return Err(dictionary_error(path, &reason)),
            }
        }
        Ok(used)
    }
}

fn parse_footer(footer: &[u8]) -> FileResult<FileContent> {
    let footer: Footer<'_> = root_as_footer(footer)
        .or_else(|error| fail(format!("its footer makes no sense: {error}; if the file is damaged, write it again")))?;
    let Some(schema) = footer.schema() else { return fail("its footer has no schema") };
    let mut content = FileContent::new(schema, footer.version())?;
    content.dictionaries.extend(footer.dictionaries().into_iter().flatten());
    content.batches.extend(footer.recordBatches().into_iter().flatten());
    Ok(content)
}

fn batch_rows(stored: &StoredMessage) -> FileResult<u64> {
    let message = stored.parse_message()?;
    let rows = message.header_as_record_batch().and_then(|batch| u64::try_from(batch.length()).ok());
    rows.ok_or_else(|| FileFault::new("it is no record batch"))
}

fn dictionary_id(stored: &StoredMessage) -> FileResult<i64> {
    let message = stored.parse_message()?;
    let id = message.header_as_dictionary_batch().map(|dictionary| dictionary.id());
    id.ok_or_else(|| FileFault::new("its message is none"))
}

/// Bytes of the footer of a file whose last bytes these are.
fn footer_bytes(last: &[u8], bytes: u64) -> FileResult<u64> {
    let tail = last.last_chunk::<{ TAIL as usize }>().filter(|tail| tail.ends_with(MAGIC));
    let Some(tail) = tail.filter(|_| bytes >= START + TAIL) else {
        return fail("it does not end with ARROW1: it was cut off, or its writer did not finish; write it again");
    };
    let length = i32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]);
    let room = bytes - TAIL - START;
    match u64::try_from(length) {
        Ok(length) if length <= room => Ok(length),
        _ => fail(format!("its footer claims {length} bytes, the file has room for {room}")),
    }
}

/// What a file is that does not start as an Arrow file.
fn other_format(start: &[u8]) -> String {
    let text = if let Some(text) = formats::other_format(start) {
        text
    } else if start.starts_with(OLD_FEATHER) {
        "it is a Feather file of version 1; write it as version 2 (pyarrow.feather.write_feather)"
    } else {
        "it does not start with ARROW1, so it is no Arrow file; check data.format"
    };
    text.into()
}

#[derive(Debug)]
struct FileContent {
    schema: SchemaRef,
    version: MetadataVersion,
    dictionaries: Vec<Block>,
    batches: Vec<Block>,
    /// For each field of the schema, the dictionaries that it names.
    named: Vec<BTreeSet<i64>>,
}

impl FileContent {
    /// The content of a file with these columns, without rows.
    fn new(written: Schema<'_>, version: MetadataVersion) -> FileResult<Self> {
        if !written.endianness().equals_to_target_endianness() {
            return fail(
                "its numbers have their most significant byte first; write it on a machine with the other order",
            );
        }
        let schema = Arc::new(try_fb_to_schema(written).map_err(arrow_fault)?);
        let mut named = vec![BTreeSet::new(); schema.fields().len()];
        for (index, field) in written.fields().into_iter().flatten().enumerate() {
            collect_dictionaries(field, 0, &mut named[index]);
        }
        Ok(Self { schema, version, dictionaries: Vec::new(), batches: Vec::new(), named })
    }
}

/// Bytes in front of the metadata of a message.
const PREFIX: u64 = 8;

fn read_content(path: &Path, source: &RandomAccess, bytes: u64) -> Result<FileContent, IngestError> {
    let (mut content, mut at, mut seen) = (None, 0, BTreeSet::new());
    while let Some(block) = next_block(path, source, bytes, at)? {
        let damaged = |FileFault(reason)| {
            let reason =
                format!("the message at byte {at} of the stream: {reason}; if the file is damaged, write it again");
            IngestError::bad_file(path, reason)
        };
        let stored = StoredMessage::read(path, source, bytes, &block, damaged)?;
        let length = catch_panics(|| add_message(&stored, block, &mut content, &mut seen)).map_err(damaged)?;
        at = stored.body.start.saturating_add(length);
    }
    content
        .ok_or_else(|| IngestError::bad_file(path, "the stream has no schema; if the file is damaged, write it again"))
}

/// The message at a byte, with the length of its metadata and without its body; `None` at the end of the stream.
fn next_block(path: &Path, source: &RandomAccess, bytes: u64, at: u64) -> Result<Option<Block>, IngestError> {
    if at.saturating_add(PREFIX) > bytes {
        return Ok(None);
    }
    let prefix = source.read(path, at, PREFIX as usize)?;
    let length = i32::from_le_bytes([prefix[4], prefix[5], prefix[6], prefix[7]]);
    if length == 0 && prefix.starts_with(&CONTINUATION) {
        return Ok(None);
    }
    // A length that is none is found when the message is read.
    let whole = if prefix.starts_with(&CONTINUATION) { length.saturating_add(PREFIX as i32) } else { -1 };
    Ok(Some(Block::new(i64::try_from(at).unwrap_or(i64::MAX), whole, 0)))
}

/// Adds a message to the content. Returns the length of its body.
fn add_message(
    stored: &StoredMessage,
    block: Block,
    content: &mut Option<FileContent>,
    seen: &mut BTreeSet<i64>,
) -> FileResult<u64> {
    let message = stored.parse_message()?;
    let Ok(length) = u64::try_from(message.bodyLength()) else { return fail("a body of negative length") };
    let block = Block::new(block.offset(), block.metaDataLength(), message.bodyLength());
    match (content, message.header_type()) {
        (content @ None, MessageHeader::Schema) => {
            let Some(schema) = message.header_as_schema() else { return fail("its schema is none") };
            *content = Some(FileContent::new(schema, message.version())?);
        }
        (Some(content), MessageHeader::DictionaryBatch) => {
            let Some(dictionary) = message.header_as_dictionary_batch() else { return fail("its dictionary is none") };
            if !seen.insert(dictionary.id()) && !dictionary.isDelta() {
                return fail(
                    "it replaces a dictionary, which only streams may; write an Arrow file (pyarrow.ipc.new_file)",
                );
            }
            content.dictionaries.push(block);
        }
        (Some(content), MessageHeader::RecordBatch) => content.batches.push(block),
        (_, other) => return fail(format!("a message of the kind {other:?} is not expected")),
    }
    Ok(length)
}
