//! A table as Parquet: one row group for several blocks, so that memory is bounded.

use std::io::{self, Write};
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as PhysicalType};
use parquet::data_type::{FloatType, Int32Type, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{Type, TypePtr};
use zagros_rows::snapshot::format::RUN_BYTES;
use zagros_rows::snapshot::{RowBatch, SlotPart, decode_part};

use crate::export::table::is_scalar;
use crate::{ExportError, ExportSource, ExportSummary};

pub(crate) fn write(
    source: &ExportSource,
    to: &mut (impl Write + Send),
    passed: &mut dyn FnMut(u64) -> io::Result<()>,
) -> Result<ExportSummary, ExportError> {
    let mut writer = SerializedFileWriter::new(to, schema(source)?, Arc::new(writer_properties(source)))?;
    let (mut group, mut rows) = (RowBatch::default(), 0);
    source.each_block(|block, bytes| {
        passed(bytes)?;
        rows += block.ids.len() as u64;
        group.ids.extend(block.ids);
        group.slots.extend(block.slots);
        group.access.extend(block.access);
        if size_of_val(&group.slots[..]) >= RUN_BYTES {
            write_group(&mut writer, source, &std::mem::take(&mut group))?;
        }
        Ok(())
    })?;
    if !group.ids.is_empty() {
        write_group(&mut writer, source, &group)?;
    }
    writer.close()?;
    Ok(ExportSummary { rows, columns: source.column_names() })
}

fn schema(source: &ExportSource) -> Result<TypePtr, ExportError> {
    let mut fields = vec![number_column("id", PhysicalType::INT64, Some(64))?];
    for column in &source.columns {
        let value = |name: &str| number_column(name, PhysicalType::FLOAT, None);
        fields.push(if is_scalar(column) { value(column.name)? } else { list_column(column.name, value("element")?)? });
    }
    if source.with_marks {
        fields.push(number_column("mark", PhysicalType::INT32, Some(32))?);
    }
    Ok(Arc::new(Type::group_type_builder("row").with_fields(fields).build()?))
}

/// A required column. Whole numbers are unsigned.
fn number_column(name: &str, physical: PhysicalType, bits: Option<i8>) -> Result<TypePtr, ExportError> {
    let logical = bits.map(|bit_width| LogicalType::integer(bit_width, false));
    let column = Type::primitive_type_builder(name, physical).with_repetition(Repetition::REQUIRED);
    Ok(Arc::new(column.with_logical_type(logical).build()?))
}

/// The three levels of a list, with the names in the format's specification.
fn list_column(name: &str, element: TypePtr) -> Result<TypePtr, ExportError> {
    let inner = Type::group_type_builder("list").with_repetition(Repetition::REPEATED).with_fields(vec![element]);
    let outer = Type::group_type_builder(name).with_repetition(Repetition::REQUIRED);
    let outer = outer.with_logical_type(Some(LogicalType::List)).with_fields(vec![Arc::new(inner.build()?)]);
    Ok(Arc::new(outer.build()?))
}

fn writer_properties(source: &ExportSource) -> WriterProperties {
    let reported = source.description().into_iter().map(|(key, value)| KeyValue::new(format!("zagros.{key}"), value));
    WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        // Trained numbers seldom repeat.
        .set_dictionary_enabled(false)
        .set_created_by(format!("zagros {}", env!("CARGO_PKG_VERSION")))
        .set_key_value_metadata(Some(reported.collect()))
        .build()
}

fn write_group<W: Write + Send>(
    writer: &mut SerializedFileWriter<W>,
    source: &ExportSource,
    rows: &RowBatch,
) -> Result<(), ExportError> {
    let mut group = writer.next_row_group()?;
    if let Some(mut column) = group.next_column()? {
        // Parquet stores unsigned numbers as signed numbers with the same bits.
        let ids: Vec<i64> = rows.ids.iter().map(|id| id.cast_signed()).collect();
        column.typed::<Int64Type>().write_batch(&ids, None, None)?;
        column.close()?;
    }
    for part in &source.columns {
        let Some(mut column) = group.next_column()? else { break };
        let values = part_values(part, source.header().width, &rows.slots);
        let (defined, repeated) = levels(part, rows.ids.len());
        let (defined, repeated) = (defined.as_deref(), repeated.as_deref());
        column.typed::<FloatType>().write_batch(&values, defined, repeated)?;
        column.close()?;
    }
    if let Some(mut column) = group.next_column()? {
        let access: Vec<i32> = rows.access.iter().map(|mark| mark.cast_signed()).collect();
        column.typed::<Int32Type>().write_batch(&access, None, None)?;
        column.close()?;
    }
    group.close()?;
    Ok(())
}

/// The values of one part of every row. Narrow values are exact in f32.
fn part_values(part: &SlotPart, width: usize, slots: &[u32]) -> Vec<f32> {
    let (mut all, mut row) = (Vec::with_capacity(slots.len() / width.max(1) * part.values), Vec::new());
    for slot in slots.chunks_exact(width.max(1)) {
        decode_part(part, slot, &mut row);
        all.extend_from_slice(&row);
    }
    all
}

/// Definition and repetition levels of lists that are all present and of one length.
fn levels(part: &SlotPart, rows: usize) -> (Option<Vec<i16>>, Option<Vec<i16>>) {
    if is_scalar(part) {
        return (None, None);
    }
    let mut repeated = vec![1; rows * part.values];
    repeated.iter_mut().step_by(part.values.max(1)).for_each(|level| *level = 0);
    (Some(vec![1; rows * part.values]), Some(repeated))
}
