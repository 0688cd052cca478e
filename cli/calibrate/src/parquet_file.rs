//! The workload as a Parquet file.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, Repetition, Type as PhysicalType};
use parquet::data_type::{DataType, FloatType, Int64Type};
use parquet::errors::Result;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;
use zagros_ingest::Batch;

/// Writes batches as row groups: `label`, `n0` … and `c0` ….
pub(crate) fn write(path: &Path, batches: &[Batch]) -> Result<()> {
    let (numbers, ids) =
        batches.first().map_or((0, 0), |batch| (batch.numeric.len() / batch.size, batch.categorical.len()));
    let field = |name: String, form| {
        let field = Type::primitive_type_builder(&name, form).with_repetition(Repetition::REQUIRED).build()?;
        Ok(Arc::new(field))
    };
    let names = ["label".to_owned()].into_iter().chain((0..numbers).map(|index| format!("n{index}")));
    let mut fields = names.map(|name| field(name, PhysicalType::FLOAT)).collect::<Result<Vec<_>>>()?;
    for index in 0..ids {
        fields.push(field(format!("c{index}"), PhysicalType::INT64)?);
    }
    let schema = Arc::new(Type::group_type_builder("row").with_fields(fields).build()?);
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut writer = SerializedFileWriter::new(File::create(path)?, schema, Arc::new(properties))?;
    for batch in batches {
        let mut group = writer.next_row_group()?;
        column::<FloatType>(&mut group, &batch.labels)?;
        for number in 0..numbers {
            let values: Vec<f32> = batch.numeric.iter().skip(number).step_by(numbers).copied().collect();
            column::<FloatType>(&mut group, &values)?;
        }
        for feature in &batch.categorical {
            let values: Vec<i64> = feature.ids.iter().map(|id| id.cast_signed()).collect();
            column::<Int64Type>(&mut group, &values)?;
        }
        group.close()?;
    }
    writer.close()?;
    Ok(())
}

fn column<T: DataType>(group: &mut SerializedRowGroupWriter<'_, File>, values: &[T::T]) -> Result<()> {
    if let Some(mut column) = group.next_column()? {
        column.typed::<T>().write_batch(values, None, None)?;
        column.close()?;
    }
    Ok(())
}
