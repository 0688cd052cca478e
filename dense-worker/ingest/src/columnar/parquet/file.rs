//! What is known of a Parquet file before its rows are read.

use std::path::Path;
use std::sync::Arc;

use ::parquet::basic::CompressionCodec;
use ::parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader, ParquetStatisticsPolicy,
    RowGroupMetaData,
};

use super::pages::ChunkPlace;
use super::schema;
use super::stored::StoredGroups;
use crate::IngestError;
use crate::columnar::fault::{FileFault, Result, catch_panics, fail};
use crate::columnar::groups::{ColumnDescription, GroupPlace, RowGroup, RowGroups, UsedColumn};
use crate::columnar::magic::{PARQUET as MAGIC, other_format};
use crate::source::RandomAccess;

/// The last bytes of a file whose footer is encrypted.
const ENCRYPTED: &[u8; 4] = b"PARE";
/// Bytes behind the footer: its length and the magic.
const TAIL: u64 = 8;
/// Bytes that are read at once at the end of a file: most footers, and one request to a store.
const END: u64 = 64 << 10;

#[derive(Debug)]
pub(crate) struct ParquetFooter {
    metadata: ParquetMetaData,
    names: Vec<String>,
    pub(crate) bytes: u64,
    source: RandomAccess,
}

impl ParquetFooter {
    pub(crate) fn open(path: &Path) -> std::result::Result<Self, IngestError> {
        let (source, bytes) = RandomAccess::open(path)?;
        let damaged = |FileFault(reason)| IngestError::DamagedFooter { path: path.into(), reason };
        let read = |at: u64, length: u64| source.read(path, at, length as usize);
        let end = bytes.min(END);
        let last = read(bytes - end, end)?;
        // The start shows what a file is, unless the end does.
        let ends_as_parquet = bytes >= MAGIC.len() as u64 + TAIL && last.ends_with(MAGIC);
        let start = if ends_as_parquet { MAGIC[..].into() } else { read(0, bytes.min(TAIL))? };
        if !start.starts_with(MAGIC) || bytes < MAGIC.len() as u64 + TAIL {
            let none = "it does not start with PAR1, so it is no Parquet file; check data.format";
            return Err(damaged(FileFault::new(
                other_format(&start).filter(|_| !start.starts_with(MAGIC)).unwrap_or(none),
            )));
        }
        let length = footer_bytes(&last, bytes).map_err(damaged)?;
        let (behind, whole) = (TAIL as usize, length as usize + TAIL as usize);
        let footer = match last.len().checked_sub(whole) {
            Some(start) => last.slice(start..last.len() - behind),
            None => read(bytes - whole as u64, length)?,
        };
        let metadata = catch_panics(|| {
            let metadata = ParquetMetaDataReader::decode_metadata_with_options(&footer, Some(&without_statistics()))?;
            let names = schema::column_names(metadata.file_metadata().schema())?;
            Ok((metadata, names))
        });
        let (metadata, names) = metadata.map_err(damaged)?;
        Ok(Self { metadata, names, bytes, source })
    }

    pub(crate) fn column_names(&self) -> &[String] {
        &self.names
    }

    pub(crate) fn row_groups(
        &self,
        path: &Path,
        positions: impl IntoIterator<Item = usize>,
    ) -> std::result::Result<RowGroups, IngestError> {
        let columns: Vec<UsedColumn> = positions
            .into_iter()
            .map(|position| self.used_column(path, position))
            .collect::<std::result::Result<_, _>>()?;
        let (mut groups, mut first_row, mut last_middle) = (Vec::new(), 0_u64, 0);
        for (number, group) in self.metadata.row_groups().iter().enumerate() {
            let chunks = columns.iter().map(|column| {
                self.chunk_place(group, column).map_err(|FileFault(reason)| IngestError::DamagedColumn {
                    path: path.into(),
                    unit: "row group",
                    number,
                    column: column.name.clone(),
                    reason,
                })
            });
            let chunks = chunks.collect::<std::result::Result<_, _>>()?;
            // Never before an earlier one, also where a writer sorted them otherwise: owners are found by bisection.
            last_middle = self.group_middle(group).max(last_middle);
            let rows = group.num_rows().max(0).cast_unsigned();
            groups.push(RowGroup { first_row, rows, middle: last_middle, chunks });
            first_row = first_row.saturating_add(rows);
        }
        let place = match &self.source {
            RandomAccess::Disk(_) => GroupPlace::Disk,
            RandomAccess::Object(objects, object) => {
                GroupPlace::Store(Arc::new(StoredGroups::new(objects.clone(), object.clone())))
            }
        };
        Ok(RowGroups { columns, groups, place })
    }

    fn used_column(&self, path: &Path, position: usize) -> std::result::Result<UsedColumn, IngestError> {
        let (name, column) =
            (self.names[position].clone(), self.metadata.file_metadata().schema_descr().column(position));
        match catch_panics(|| schema::column_kind(&column)) {
            Ok(kind) => Ok(UsedColumn { name, position, kind, description: ColumnDescription::Parquet(column) }),
            Err(FileFault(reason)) => Err(IngestError::UnusableColumn { path: path.into(), column: name, reason }),
        }
    }

    fn chunk_place(&self, group: &RowGroupMetaData, column: &UsedColumn) -> Result<ChunkPlace> {
        let Some(chunk) = group.columns().get(column.position) else {
            let (found, expected) = (group.num_columns(), self.names.len());
            return fail(format!("the row group has {found} columns, the schema has {expected}"));
        };
        if chunk.file_path().is_some() {
            return fail("its pages are in another file; write the file in one piece");
        }
        let codec = chunk.compression_codec();
        if group.num_rows() == 0 {
            // Writers say all kinds of things of pages that are not there.
            return Ok(ChunkPlace { start: MAGIC.len() as u64, end: MAGIC.len() as u64, codec });
        }
        let end = first_page(chunk)
            .and_then(|start| Some((start, start.checked_add(to_unsigned(chunk.compressed_size())?)?)));
        let Some((start, end)) = end.filter(|(start, end)| *start >= MAGIC.len() as u64 && *end <= self.bytes - TAIL)
        else {
            let (start, size) = (chunk.data_page_offset(), chunk.compressed_size());
            return fail(format!("its {size} bytes of pages are said to be at byte {start} of {}", self.bytes));
        };
        if !column.is_list() && chunk.num_values() != group.num_rows() {
            let (values, rows) = (chunk.num_values(), group.num_rows());
            return fail(format!("it has {values} values in a row group of {rows} rows"));
        }
        if matches!(codec, CompressionCodec::LZO | CompressionCodec::BROTLI) {
            return fail(format!(
                "it is compressed with {codec}, which is not supported; write the file with snappy, zstd, gzip or lz4"
            ));
        }
        Ok(ChunkPlace { start, end, codec })
    }

    /// The middle of all pages of a row group, inside the file.
    fn group_middle(&self, group: &RowGroupMetaData) -> u64 {
        let first = group.columns().iter().filter_map(first_page).min().unwrap_or(0);
        let sizes = group.columns().iter().filter_map(|chunk| to_unsigned(chunk.compressed_size()));
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

fn first_page(chunk: &ColumnChunkMetaData) -> Option<u64> {
    // Some writers say 0 for no dictionary.
    let dictionary = chunk.dictionary_page_offset().filter(|start| *start > 0);
    to_unsigned(dictionary.map_or(chunk.data_page_offset(), |start| start.min(chunk.data_page_offset())))
}

fn to_unsigned(number: i64) -> Option<u64> {
    u64::try_from(number).ok()
}

/// Nothing asks for the statistics of a footer.
fn without_statistics() -> ParquetMetaDataOptions {
    let skip = || ParquetStatisticsPolicy::SkipAll;
    let options = ParquetMetaDataOptions::new().with_column_stats_policy(skip());
    options.with_encoding_stats_policy(skip()).with_size_stats_policy(skip())
}
