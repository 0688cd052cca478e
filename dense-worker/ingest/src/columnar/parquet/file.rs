//! What is known of a Parquet file before its rows are read.
//!
//! A split `[start, end)` owns the row groups whose middle is in it: neighbours agree on the border, so each row group has
//! one owner, whatever the borders are.

use std::path::Path;
use std::sync::Arc;

use ::parquet::basic::CompressionCodec;
use ::parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader, ParquetStatisticsPolicy,
    RowGroupMetaData,
};
use ::parquet::schema::types::ColumnDescPtr;
use zagros_store::StoreError;

use super::pages::ChunkPlace;
use super::schema;
use super::stored::{GroupRanges, StoredGroups};
use crate::IngestError;
use crate::columnar::fault::{Fault, Result, caught, fail};
use crate::columnar::kind::Kind;
use crate::source::RandomAccess;

/// The first and the last bytes of every file.
pub(crate) const MAGIC: &[u8; 4] = b"PAR1";
/// The last bytes of a file whose footer is encrypted.
const ENCRYPTED: &[u8; 4] = b"PARE";
/// Bytes behind the footer: its length and the magic.
const TAIL: u64 = 8;
/// Bytes that are read at once at the end of a file: most footers, and one request to a store.
const END: u64 = 64 << 10;

/// The columns and row groups of a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RowGroups {
    /// The columns that are read, in the order in which they were asked for.
    pub(crate) columns: Vec<UsedColumn>,
    /// The row groups, in order.
    pub(crate) groups: Vec<RowGroup>,
    /// Where they are, unless they are on a disk.
    stored: Option<Arc<StoredGroups>>,
}

/// A column that is read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UsedColumn {
    /// Its name.
    pub(crate) name: String,
    /// Its place among the columns of the file, from 0.
    pub(crate) position: usize,
    pub(crate) kind: Kind,
    /// As the file describes it.
    pub(crate) column: ColumnDescPtr,
}

/// A row group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowGroup {
    /// Its first row in the file, from 0.
    pub(crate) first_row: u64,
    /// Its rows.
    pub(crate) rows: u64,
    /// The byte that decides which split owns it.
    middle: u64,
    /// The pages of each used column.
    pub(crate) chunks: Vec<ChunkPlace>,
}

/// Some rows of a row group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowSlice {
    /// The row group, from 0.
    pub(crate) group: usize,
    /// The first row, from 0 in the row group.
    pub(crate) start: u64,
    /// How many.
    pub(crate) rows: usize,
}

/// An opened file.
#[derive(Debug)]
pub(crate) struct ParquetFooter {
    metadata: ParquetMetaData,
    names: Vec<String>,
    /// Size of the file.
    pub(crate) bytes: u64,
    source: RandomAccess,
}

impl UsedColumn {
    /// Whether a row can have several values.
    pub(crate) fn is_list(&self) -> bool {
        self.column.max_rep_level() > 0
    }
}

impl RowGroups {
    /// The row groups that the split `[start, end)` owns.
    pub(crate) fn owned(&self, start: u64, end: u64) -> std::ops::Range<usize> {
        let before = |byte: u64| self.groups.partition_point(|group| group.middle < byte);
        before(start)..before(end)
    }

    /// The columns of a row group in a store; `None` for a file on a disk.
    pub(crate) fn ranges(&self, group: usize) -> std::result::Result<Option<GroupRanges>, StoreError> {
        self.stored.as_ref().map(|stored| stored.group(group, &self.groups[group].chunks)).transpose()
    }

    /// Requests the first pages of a row group in a store.
    pub(crate) fn prefetch(&self, group: usize) {
        if group < self.groups.len() {
            // A failure comes again when the pages are read.
            drop(self.ranges(group));
        }
    }
}

impl ParquetFooter {
    /// Reads the footer of a file.
    pub(crate) fn open(path: &Path) -> std::result::Result<Self, IngestError> {
        let (source, bytes) = RandomAccess::open(path)?;
        let damaged = |Fault(reason)| IngestError::DamagedFooter { path: path.into(), reason };
        let read = |at: u64, length: u64| source.read(path, at, length as usize);
        let end = bytes.min(END);
        let last = read(bytes - end, end)?;
        // The start shows what a file is, unless the end does.
        let ends_as_parquet = bytes >= MAGIC.len() as u64 + TAIL && last.ends_with(MAGIC);
        if !ends_as_parquet && (bytes < MAGIC.len() as u64 + TAIL || read(0, MAGIC.len() as u64)?[..] != MAGIC[..]) {
            let fault = Fault::new("it does not start with PAR1, so it is no Parquet file; check data.format");
            return Err(damaged(fault));
        }
        let length = footer_bytes(&last, bytes).map_err(damaged)?;
        let (behind, whole) = (TAIL as usize, length as usize + TAIL as usize);
        let footer = match last.len().checked_sub(whole) {
            Some(start) => last.slice(start..last.len() - behind),
            None => read(bytes - whole as u64, length)?,
        };
        let metadata = caught(|| {
            let metadata = ParquetMetaDataReader::decode_metadata_with_options(&footer, Some(&without_statistics()))?;
            let names = schema::names(metadata.file_metadata().schema())?;
            Ok((metadata, names))
        });
        let (metadata, names) = metadata.map_err(damaged)?;
        Ok(Self { metadata, names, bytes, source })
    }

    /// The names of the columns, in their order.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// The row groups with the columns at `positions`.
    pub(crate) fn row_groups(
        &self,
        path: &Path,
        positions: impl IntoIterator<Item = usize>,
    ) -> std::result::Result<RowGroups, IngestError> {
        let columns: Vec<UsedColumn> =
            positions.into_iter().map(|position| self.used(path, position)).collect::<std::result::Result<_, _>>()?;
        let (mut groups, mut first_row, mut last_middle) = (Vec::new(), 0_u64, 0);
        for (number, group) in self.metadata.row_groups().iter().enumerate() {
            let chunks = columns.iter().map(|column| {
                self.place(group, column).map_err(|Fault(reason)| IngestError::DamagedColumn {
                    path: path.into(),
                    row_group: number,
                    column: column.name.clone(),
                    reason,
                })
            });
            let chunks = chunks.collect::<std::result::Result<_, _>>()?;
            // Never before an earlier one, also where a writer sorted them otherwise: owners are found by bisection.
            last_middle = self.middle(group).max(last_middle);
            let rows = group.num_rows().max(0).cast_unsigned();
            groups.push(RowGroup { first_row, rows, middle: last_middle, chunks });
            first_row = first_row.saturating_add(rows);
        }
        let stored = match &self.source {
            RandomAccess::Disk(_) => None,
            RandomAccess::Object(objects, object) => Some(Arc::new(StoredGroups::new(objects.clone(), object.clone()))),
        };
        Ok(RowGroups { columns, groups, stored })
    }

    fn used(&self, path: &Path, position: usize) -> std::result::Result<UsedColumn, IngestError> {
        let (name, column) =
            (self.names[position].clone(), self.metadata.file_metadata().schema_descr().column(position));
        match caught(|| schema::kind(&column)) {
            Ok(kind) => Ok(UsedColumn { name, position, kind, column }),
            Err(Fault(reason)) => Err(IngestError::UnusableColumn { path: path.into(), column: name, reason }),
        }
    }

    fn place(&self, group: &RowGroupMetaData, column: &UsedColumn) -> Result<ChunkPlace> {
        let Some(chunk) = group.columns().get(column.position) else {
            let (found, expected) = (group.num_columns(), self.names.len());
            return fail(format!("the row group has {found} columns, the schema has {expected}"));
        };
        if chunk.file_path().is_some() {
            return fail("its pages are in another file; write the file in one piece");
        }
        let end = start(chunk).and_then(|start| Some((start, start.checked_add(unsigned(chunk.compressed_size())?)?)));
        let Some((start, end)) = end.filter(|(start, end)| *start >= MAGIC.len() as u64 && *end <= self.bytes - TAIL)
        else {
            let (start, size) = (chunk.data_page_offset(), chunk.compressed_size());
            return fail(format!("its {size} bytes of pages are said to be at byte {start} of {}", self.bytes));
        };
        if !column.is_list() && chunk.num_values() != group.num_rows() {
            let (values, rows) = (chunk.num_values(), group.num_rows());
            return fail(format!("it has {values} values in a row group of {rows} rows"));
        }
        let codec = chunk.compression_codec();
        if matches!(codec, CompressionCodec::LZO | CompressionCodec::BROTLI) {
            return fail(format!(
                "it is compressed with {codec}, which is not supported; write the file with snappy, zstd, gzip or lz4"
            ));
        }
        Ok(ChunkPlace { start, end, codec })
    }

    /// The middle of all pages of a row group, inside the file.
    fn middle(&self, group: &RowGroupMetaData) -> u64 {
        let first = group.columns().iter().filter_map(start).min().unwrap_or(0);
        let sizes = group.columns().iter().filter_map(|chunk| unsigned(chunk.compressed_size()));
        let bytes = sizes.fold(0_u64, u64::saturating_add);
        first.saturating_add(bytes / 2).min(self.bytes - 1)
    }
}

/// Bytes of the footer of a file whose last bytes these are.
fn footer_bytes(last: &[u8], bytes: u64) -> Result<u64> {
    let Some(tail) = last.last_chunk::<{ TAIL as usize }>() else { return fail("it is too short") };
    if tail[4..] == *ENCRYPTED {
        return fail("it is encrypted; write it without encryption");
    }
    if tail[4..] != *MAGIC {
        return fail("it does not end with PAR1: it was cut off, or its writer did not finish; write it again");
    }
    let length = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
    let room = bytes - TAIL - MAGIC.len() as u64;
    if length > room {
        return fail(format!("its footer claims {length} bytes, the file has room for {room}"));
    }
    Ok(length)
}

/// Offset of the first page.
fn start(chunk: &ColumnChunkMetaData) -> Option<u64> {
    // Some writers say 0 for no dictionary.
    let dictionary = chunk.dictionary_page_offset().filter(|start| *start > 0);
    unsigned(dictionary.map_or(chunk.data_page_offset(), |start| start.min(chunk.data_page_offset())))
}

fn unsigned(number: i64) -> Option<u64> {
    u64::try_from(number).ok()
}

/// Nothing asks for the statistics of a footer.
fn without_statistics() -> ParquetMetaDataOptions {
    let skip = || ParquetStatisticsPolicy::SkipAll;
    let options = ParquetMetaDataOptions::new().with_column_stats_policy(skip());
    options.with_encoding_stats_policy(skip()).with_size_stats_policy(skip())
}
