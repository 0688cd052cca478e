//! The record batches of a file. Each is read and decoded once for all parsing threads: it comes as a whole, and its
//! arrays can be read from any row on.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ::arrow_array::{Array, ArrayRef};
use ::arrow_ipc::MetadataVersion;
use ::arrow_ipc::reader::{read_dictionary, read_record_batch};
use ::arrow_schema::{ArrowError, SchemaRef};

use super::body::{BatchFailure, StoredMessage, used_buffers};
use crate::IngestError;
use crate::columnar::fault::{FileFault, catch_panics, fail};
use crate::source::RandomAccess;

/// Record batches that are held at least: the one that is read, and its neighbours.
const HELD: usize = 3;
/// More are held while they take no more bytes than this.
const HELD_BYTES: usize = 64 << 20;

/// The arrays of a record batch by their fields; those of unused fields are not there.
pub(crate) type FieldArrays = Arc<HashMap<usize, ArrayRef>>;

pub(crate) struct RecordBatches {
    path: PathBuf,
    file: RandomAccess,
    schema: SchemaRef,
    version: MetadataVersion,
    /// Those of the used columns, in the order of the file: later ones may add to earlier ones.
    dictionaries: Vec<StoredMessage>,
    batches: Vec<StoredMessage>,
    fields: Vec<usize>,
    entries: OnceLock<std::result::Result<HashMap<i64, ArrayRef>, String>>,
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

    pub(crate) fn batch_arrays(&self, number: usize) -> std::result::Result<FieldArrays, IngestError> {
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

    fn decode(&self, number: usize) -> std::result::Result<HashMap<usize, ArrayRef>, IngestError> {
        let dictionaries = self.dictionaries()?;
        let stored = &self.batches[number];
        let damaged = |FileFault(reason)| {
            let unit = "record batch";
            IngestError::DamagedGroup { path: self.path.clone(), unit, number, reason }
        };
        let batch = stored.parse_message().and_then(|message| match message.header_as_record_batch() {
            Some(batch) => Ok(batch),
            None => fail("it is no record batch"),
        });
        let batch = batch.map_err(damaged)?;
        let used = used_buffers(self.schema.fields(), &self.fields, self.version, batch).map_err(damaged)?;
        let body = stored.read_body(&self.path, &self.file, batch, &used);
        let body = body.map_err(|failure| failure.explain(damaged))?;
        let array = |field: &usize| {
            let decoded = catch_panics(|| {
                let (schema, only) = (Arc::clone(&self.schema), [*field]);
                let decoded =
                    read_record_batch(&body, batch, schema, dictionaries, Some(only.as_slice()), &self.version);
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

    fn dictionaries(&self) -> std::result::Result<&HashMap<i64, ArrayRef>, IngestError> {
        let mut unreadable = None;
        let entries = self.entries.get_or_init(|| {
            let mut entries = HashMap::new();
            for stored in &self.dictionaries {
                match self.add_dictionary(stored, &mut entries) {
                    Ok(()) => {}
                    Err(BatchFailure::Fault(FileFault(reason))) => return Err(reason),
                    Err(BatchFailure::Unreadable(error)) => {
                        let reason = error.to_string();
                        unreadable = Some(*error);
                        return Err(reason);
                    }
                }
            }
            Ok(entries)
        });
        match (entries, unreadable) {
            (Ok(entries), _) => Ok(entries),
            (Err(_), Some(error)) => Err(error),
            (Err(reason), None) => {
                let reason = format!("a dictionary: {reason}; if the file is damaged, write it again");
                Err(IngestError::DamagedFooter { path: self.path.clone(), reason })
            }
        }
    }

    fn add_dictionary(
        &self,
        stored: &StoredMessage,
        entries: &mut HashMap<i64, ArrayRef>,
    ) -> std::result::Result<(), BatchFailure> {
        let message = stored.parse_message()?;
        let dictionary = message.header_as_dictionary_batch();
        let Some((dictionary, batch)) = dictionary.and_then(|dictionary| Some((dictionary, dictionary.data()?))) else {
            return Err(FileFault::new("its message is none").into());
        };
        // It has one column, of which everything is read.
        let buffers = batch.buffers().map_or(0, |buffers| buffers.len());
        let body = stored.read_body(&self.path, &self.file, batch, &(0..buffers).collect::<Vec<_>>())?;
        catch_panics(|| read_dictionary(&body, dictionary, &self.schema, entries, &self.version).map_err(arrow_fault))?;
        Ok(())
    }
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
