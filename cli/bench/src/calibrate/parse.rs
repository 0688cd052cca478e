//! The parsers: bytes that a core reads each second, by format.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, Repetition, Type as PhysicalType};
use parquet::data_type::{DataType, FloatType, Int64Type};
use parquet::errors::Result as ParquetResult;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;
use tempfile::TempDir;
use zagros_ingest::synthetic::{SyntheticSpec, generate_criteo};
use zagros_ingest::{Batch, BatchStream, DataPart, find_files};
use zagros_job::{Job, Overrides};
use zagros_planner::ParseRates;
use zagros_shell::{Exit, Failure, OrFailure};
use zagros_zip::ZipEq;

use crate::workload;

const BATCHES: usize = 10;

pub(crate) fn rates() -> Result<ParseRates, Failure> {
    let folder = TempDir::new().or_internal()?;
    let rows = (BATCHES * workload::BATCH) as u64;
    let spec = SyntheticSpec { rows, test_rows: 1, ..SyntheticSpec::default() };
    generate_criteo(&spec, folder.path()).or_exit(Exit::Storage)?;
    let csv = folder.path().join("rows.csv");
    workload::write_rows(&csv, rows)?;
    write_json_lines(&csv, &folder.path().join("rows.jsonl")).or_internal()?;
    write_parquet(&folder.path().join("rows.parquet"), &workload::make_batches(BATCHES)).or_internal()?;
    let rate = |format: &str, file: &str| rate(format, &folder.path().join(file));
    Ok(ParseRates {
        criteo: rate("criteo", "train.txt")?,
        delimited: rate("delimited", "rows.csv")?,
        json_lines: rate("jsonl", "rows.jsonl")?,
        parquet: rate("parquet", "rows.parquet")?,
    })
}

/// Bytes a second of CPU.
fn rate(format: &str, file: &Path) -> Result<f64, Failure> {
    let columns = if format == "criteo" { String::new() } else { workload::features_section() };
    let text = format!("[data]\nformat = \"{format}\"\ntrain = {file:?}\nthreads = 1\n{columns}");
    let job = Job::parse(&text, "the benchmark's job".as_ref(), &Overrides::none());
    let job = job.map_err(|errors| Failure::new(Exit::Internal, errors))?;
    let found = find_files(&job, &job.data.train).or_internal()?;
    let mut stream = BatchStream::open_files(&job, DataPart::Train, &found).or_internal()?;
    for batch in &mut stream {
        std::hint::black_box(batch.or_internal()?);
    }
    let stats = stream.stats();
    Ok(stats.bytes as f64 / stats.cpu_seconds.max(1e-9))
}

/// Each row of a CSV file with a header and numbers alone, as a JSON object.
fn write_json_lines(csv: &Path, to: &Path) -> std::io::Result<()> {
    let text = std::fs::read_to_string(csv)?;
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let mut file = BufWriter::new(std::fs::File::create(to)?);
    for line in lines {
        let mut separator = '{';
        for (name, value) in names.iter().zip_eq(line.split(',').collect::<Vec<_>>()) {
            write!(file, "{separator}\"{name}\":{value}")?;
            separator = ',';
        }
        writeln!(file, "}}")?;
    }
    file.flush()
}

/// Writes batches as row groups: `label`, `n0` … and `c0` ….
fn write_parquet(path: &Path, batches: &[Batch]) -> ParquetResult<()> {
    let (numbers, ids) =
        batches.first().map_or((0, 0), |batch| (batch.numeric.len() / batch.size, batch.categorical.len()));
    let field = |name: String, form| {
        let field = Type::primitive_type_builder(&name, form).with_repetition(Repetition::REQUIRED).build()?;
        Ok(Arc::new(field))
    };
    let names = ["label".to_owned()].into_iter().chain((0..numbers).map(|index| format!("n{index}")));
    let mut fields = names.map(|name| field(name, PhysicalType::FLOAT)).collect::<ParquetResult<Vec<_>>>()?;
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

fn column<T: DataType>(group: &mut SerializedRowGroupWriter<'_, File>, values: &[T::T]) -> ParquetResult<()> {
    if let Some(mut column) = group.next_column()? {
        column.typed::<T>().write_batch(values, None, None)?;
        column.close()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_is_parsed_at_some_rate() {
        let ParseRates { criteo, delimited, json_lines, parquet } = rates().unwrap();
        assert!([criteo, delimited, json_lines, parquet].iter().all(|rate| rate.is_finite() && *rate > 0.0));
    }
}
