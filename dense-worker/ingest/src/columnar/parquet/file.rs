//! What is known of a Parquet file before its rows are read: its row groups, and its columns by their names, with what their values mean.
//!
//! A column inside a group is named by its path: `user.id`. The two levels that a list adds have no part in the name: the
//! column `tags` is a list of texts, and `items.price` is the prices of a list of items.

use std::path::Path;
use std::sync::Arc;

use ::parquet::basic::{CompressionCodec, ConvertedType, LogicalType, Repetition, TimeUnit, Type as PhysicalType};
use ::parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader, ParquetStatisticsPolicy,
    RowGroupMetaData,
};
use ::parquet::schema::types::{ColumnDescriptor, Type};

use super::pages::{ChunkPlace, StoredGroups};
use crate::IngestError;
use crate::columnar::groups::{ColumnDescription, GroupPlace, RowGroup, RowGroups, UsedColumn};
use crate::columnar::kind::ValueKind;
use crate::columnar::{FileFault, FileResult, catch_panics, fail};
use crate::formats::{PARQUET as MAGIC, other_format};
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
    pub(crate) names: Vec<String>,
    pub(crate) bytes: u64,
    source: RandomAccess,
}

impl ParquetFooter {
    pub(crate) fn open(path: &Path) -> Result<Self, IngestError> {
        let (source, bytes) = RandomAccess::open(path)?;
        let damaged = |FileFault(reason)| IngestError::bad_file(path, reason);
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
            let names = column_names(metadata.file_metadata().schema())?;
            Ok((metadata, names))
        });
        let (metadata, names) = metadata.map_err(damaged)?;
        Ok(Self { metadata, names, bytes, source })
    }

    pub(crate) fn row_groups(
        &self,
        path: &Path,
        positions: impl IntoIterator<Item = usize>,
    ) -> Result<RowGroups, IngestError> {
        let columns: Vec<UsedColumn> =
            positions.into_iter().map(|position| self.used_column(path, position)).collect::<Result<_, _>>()?;
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
            let chunks = chunks.collect::<Result<_, _>>()?;
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

    fn used_column(&self, path: &Path, position: usize) -> Result<UsedColumn, IngestError> {
        let (name, column) =
            (self.names[position].clone(), self.metadata.file_metadata().schema_descr().column(position));
        match catch_panics(|| column_kind(&column)) {
            Ok(kind) => Ok(UsedColumn { name, position, kind, description: ColumnDescription::Parquet(column) }),
            Err(FileFault(reason)) => Err(IngestError::UnusableColumn { path: path.into(), column: name, reason }),
        }
    }

    fn chunk_place(&self, group: &RowGroupMetaData, column: &UsedColumn) -> FileResult<ChunkPlace> {
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
fn footer_bytes(last: &[u8], bytes: u64) -> FileResult<u64> {
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

/// Groups inside groups.
const MOST_DEPTH: usize = 32;

/// Bytes of a value of a column whose values all have the same.
const MOST_VALUE_BYTES: i32 = 1 << 20;

pub(super) fn column_names(schema: &Type) -> FileResult<Vec<String>> {
    let mut names = Vec::new();
    for node in schema.get_fields() {
        visit_node(node, &ParentNode::default(), 0, &mut names)?;
    }
    Ok(names)
}

#[derive(Clone, Debug, Default)]
struct ParentNode {
    path: Vec<String>,
    /// Levels below that are not named.
    unnamed: UnnamedLevels,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum UnnamedLevels {
    #[default]
    None,
    /// The repeated node of a list, and its only child.
    ListAndElement,
    /// The repeated node of a map.
    Entries,
    Element,
}

fn visit_node(node: &Type, parent: &ParentNode, depth: usize, names: &mut Vec<String>) -> FileResult<()> {
    if depth > MOST_DEPTH {
        return fail(format!("it has groups inside groups, more than {MOST_DEPTH}"));
    }
    let here = parent.child(node);
    if node.is_primitive() {
        names.push(here.path.join("."));
        return Ok(());
    }
    node.get_fields().iter().try_for_each(|child| visit_node(child, &here, depth + 1, names))
}

impl ParentNode {
    fn child(&self, node: &Type) -> Self {
        let (mut path, basic) = (self.path.clone(), node.get_basic_info());
        let is_repeated = basic.has_repetition() && basic.repetition() == Repetition::REPEATED;
        let unnamed = match self.unnamed {
            UnnamedLevels::ListAndElement if is_repeated && node.is_group() && node.get_fields().len() == 1 => {
                UnnamedLevels::Element
            }
            UnnamedLevels::ListAndElement | UnnamedLevels::Entries if is_repeated => UnnamedLevels::None,
            unnamed => {
                if unnamed != UnnamedLevels::Element {
                    path.push(node.name().to_owned());
                }
                match (basic.logical_type_ref(), basic.converted_type()) {
                    (Some(LogicalType::List), _) | (None, ConvertedType::LIST) => UnnamedLevels::ListAndElement,
                    (Some(LogicalType::Map), _) | (None, ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE) => {
                        UnnamedLevels::Entries
                    }
                    _ => UnnamedLevels::None,
                }
            }
        };
        Self { path, unnamed }
    }
}

fn column_kind(column: &ColumnDescriptor) -> FileResult<ValueKind> {
    let stored = column.physical_type();
    if stored == PhysicalType::FIXED_LEN_BYTE_ARRAY && !(1..=MOST_VALUE_BYTES).contains(&column.type_length()) {
        return fail(format!("it has {} bytes a value", column.type_length()));
    }
    let is_int = matches!(stored, PhysicalType::INT32 | PhysicalType::INT64);
    Ok(match (column.logical_type_ref(), column.converted_type()) {
        (Some(LogicalType::Unknown), _) => ValueKind::Nothing,
        (Some(LogicalType::Decimal(decimal)), _) => decimal_kind(decimal.scale)?,
        (None, ConvertedType::DECIMAL) => decimal_kind(column.type_scale())?,
        (Some(LogicalType::Date), _) | (None, ConvertedType::DATE) if stored == PhysicalType::INT32 => ValueKind::Date,
        (Some(LogicalType::Time(time)), _) if is_int => ValueKind::Time(parts_of_second(&time.unit)),
        (Some(LogicalType::Timestamp(moment)), _) if is_int => ValueKind::Timestamp(parts_of_second(&moment.unit)),
        (None, ConvertedType::TIME_MILLIS) if is_int => ValueKind::Time(1_000),
        (None, ConvertedType::TIME_MICROS) if is_int => ValueKind::Time(1_000_000),
        (None, ConvertedType::TIMESTAMP_MILLIS) if is_int => ValueKind::Timestamp(1_000),
        (None, ConvertedType::TIMESTAMP_MICROS) if is_int => ValueKind::Timestamp(1_000_000),
        (Some(LogicalType::Uuid), _) if column.type_length() == 16 => ValueKind::Uuid,
        (Some(LogicalType::Float16), _) if column.type_length() == 2 => ValueKind::Half,
        (Some(LogicalType::Integer(integer)), _) if !integer.is_signed && is_int => unsigned_kind(stored),
        (None, ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 | ConvertedType::UINT_64)
            if is_int =>
        {
            unsigned_kind(stored)
        }
        _ => plain_kind(stored),
    })
}

fn plain_kind(stored: PhysicalType) -> ValueKind {
    match stored {
        PhysicalType::BOOLEAN => ValueKind::Bool,
        PhysicalType::INT32 | PhysicalType::INT64 => ValueKind::Integer,
        // A timestamp of twelve bytes, which old writers use.
        PhysicalType::INT96 => ValueKind::Timestamp(1_000_000_000),
        PhysicalType::FLOAT => ValueKind::Single,
        PhysicalType::DOUBLE => ValueKind::Double,
        PhysicalType::BYTE_ARRAY | PhysicalType::FIXED_LEN_BYTE_ARRAY => ValueKind::Text,
    }
}

fn unsigned_kind(stored: PhysicalType) -> ValueKind {
    ValueKind::Unsigned(if stored == PhysicalType::INT32 { 32 } else { 64 })
}

fn decimal_kind(scale: i32) -> FileResult<ValueKind> {
    match u32::try_from(scale) {
        Ok(scale) if scale <= 38 => Ok(ValueKind::Decimal(scale)),
        _ => fail("a decimal with an impossible scale"),
    }
}

fn parts_of_second(unit: &TimeUnit) -> i64 {
    match unit {
        TimeUnit::MILLIS => 1_000,
        TimeUnit::MICROS => 1_000_000,
        TimeUnit::NANOS => 1_000_000_000,
    }
}
