//! Records become a Parquet file, one row group after another, so that memory is bounded.

use std::io::{Read, Write};
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as PhysicalType};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType};
use parquet::errors::Result;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{Type, TypePtr};
use zagros_zip::ZipEq;

use crate::predictions::{PredictionColumns, format};

const GROUP_ROWS: u64 = 1 << 17;

struct RowGroup {
    keys: Vec<Vec<ByteArray>>,
    scores: Vec<Vec<f64>>,
    /// 1 where a row has scores.
    defined: Vec<i16>,
}

/// Writes a file of so many records.
pub(crate) fn write(
    columns: &PredictionColumns,
    from: &mut impl Read,
    rows: u64,
    to: &mut (impl Write + Send),
) -> Result<()> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by(format!("zagros {}", env!("CARGO_PKG_VERSION")))
        .build();
    let mut writer = SerializedFileWriter::new(to, schema(columns)?, Arc::new(properties))?;
    let mut done = 0;
    while done < rows {
        let group = read_group(columns, from, GROUP_ROWS.min(rows - done))?;
        done += group.defined.len() as u64;
        write_group(&mut writer, &group)?;
    }
    writer.close()?;
    Ok(())
}

fn schema(columns: &PredictionColumns) -> Result<TypePtr> {
    let key = |name: &String| {
        let text = Type::primitive_type_builder(name, PhysicalType::BYTE_ARRAY).with_repetition(Repetition::REQUIRED);
        Ok(Arc::new(text.with_logical_type(Some(LogicalType::String)).build()?))
    };
    let mut fields: Vec<TypePtr> = columns.keys.iter().map(key).collect::<Result<_>>()?;
    for name in &columns.scores {
        let score = Type::primitive_type_builder(name, PhysicalType::DOUBLE);
        fields.push(Arc::new(score.with_repetition(Repetition::OPTIONAL).build()?));
    }
    Ok(Arc::new(Type::group_type_builder("row").with_fields(fields).build()?))
}

fn read_group(columns: &PredictionColumns, from: &mut impl Read, rows: u64) -> Result<RowGroup> {
    let (keys, scores) = (columns.keys.len(), columns.scores.len());
    let mut group = RowGroup { keys: vec![Vec::new(); keys], scores: vec![Vec::new(); scores], defined: Vec::new() };
    let mut texts = vec![Vec::new(); keys];
    for _ in 0..rows {
        let is_scored = format::read_record(from, &mut texts, &mut group.scores)?;
        group.defined.push(i16::from(is_scored));
        for (column, text) in group.keys.iter_mut().zip_eq(&texts) {
            column.push(String::from_utf8_lossy(text).as_bytes().to_vec().into());
        }
    }
    Ok(group)
}

fn write_group<W: Write + Send>(writer: &mut SerializedFileWriter<W>, rows: &RowGroup) -> Result<()> {
    let mut group = writer.next_row_group()?;
    for texts in &rows.keys {
        let Some(mut column) = group.next_column()? else { break };
        column.typed::<ByteArrayType>().write_batch(texts, None, None)?;
        column.close()?;
    }
    for scores in &rows.scores {
        let Some(mut column) = group.next_column()? else { break };
        column.typed::<DoubleType>().write_batch(scores, Some(&rows.defined), None)?;
        column.close()?;
    }
    group.close()?;
    Ok(())
}
