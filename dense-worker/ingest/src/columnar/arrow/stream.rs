//! The messages of an Arrow stream: the schema, then dictionaries and record batches one after another.
//!
//! ```text
//! ff ff ff ff │ length of metadata │ metadata │ body ──► the next message; length 0 or the end of the file ends the stream
//! ```
//!
//! Bodies are not read here: the metadata says how long each is.

use std::collections::BTreeSet;
use std::path::Path;

use ::arrow_ipc::{Block, MessageHeader};

use super::body::{BatchFailure, StoredMessage};
use super::content::FileContent;
use crate::IngestError;
use crate::columnar::fault::{FileFault, Result, catch_panics, fail};
use crate::columnar::magic::ARROW_STREAM as CONTINUATION;
use crate::source::RandomAccess;

/// Bytes in front of the metadata of a message.
const PREFIX: u64 = 8;

pub(super) fn read_content(
    path: &Path,
    source: &RandomAccess,
    bytes: u64,
) -> std::result::Result<FileContent, IngestError> {
    let (mut content, mut at, mut seen) = (None, 0, BTreeSet::new());
    while let Some(block) = next_block(path, source, bytes, at)? {
        let damaged = |FileFault(reason)| {
            let reason =
                format!("the message at byte {at} of the stream: {reason}; if the file is damaged, write it again");
            IngestError::DamagedFooter { path: path.into(), reason }
        };
        let stored = match StoredMessage::read(path, source, bytes, &block) {
            Ok(stored) => stored,
            Err(BatchFailure::Fault(fault)) => return Err(damaged(fault)),
            Err(BatchFailure::Unreadable(error)) => return Err(*error),
        };
        let length = catch_panics(|| add_message(&stored, block, &mut content, &mut seen)).map_err(damaged)?;
        at = stored.body.start.saturating_add(length);
    }
    content.ok_or_else(|| {
        let reason = "the stream has no schema; if the file is damaged, write it again".to_owned();
        IngestError::DamagedFooter { path: path.into(), reason }
    })
}

/// The message at a byte, with the length of its metadata and without its body; `None` at the end of the stream.
fn next_block(
    path: &Path,
    source: &RandomAccess,
    bytes: u64,
    at: u64,
) -> std::result::Result<Option<Block>, IngestError> {
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
) -> Result<u64> {
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
