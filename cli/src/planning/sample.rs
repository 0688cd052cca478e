//! What a sample of a job's data holds, by its first batch.

use std::collections::HashSet;

use zagros_cost::DataShape;
use zagros_ingest::{
    Batch, BatchStream, DataPart, FileInfo, StreamOptions, StreamStart, WholeFiles, find_files, training_rows,
};
use zagros_job::Job;
use zagros_zip::ZipEq;

const MOST: usize = 1 << 16;

/// Measures the first batch, or assumes what cannot be measured: data that are not there, that are elsewhere, or that need statistics of
/// all rows before they can be read.
pub(crate) fn measure_shape(job: &Job, samples: Option<u64>) -> DataShape {
    let assumed = DataShape { samples, ..DataShape::from_job(job) };
    let is_elsewhere = job.data.train.iter().any(|path| path.to_string_lossy().contains("://"));
    if is_elsewhere || job.data.reads_stdin() {
        return assumed;
    }
    let Ok(found) = find_files(job, &job.data.train) else { return assumed };
    let Some(batch) = first_batch(job, &found) else { return assumed };
    let rows = training_rows(job, &found).ok().map(|count| count.rows()).filter(|rows| *rows > 0);
    let bytes = found.iter().map(|file| file.bytes).sum::<u64>() as f64;
    let bytes = rows.map_or(assumed.bytes, |rows| bytes / rows as f64);
    let (ids, distinct) = counts(job, &batch);
    DataShape { bytes, ids, distinct, samples: samples.or(rows), rows: None, is_measured: true }
}

fn first_batch(job: &Job, found: &[FileInfo]) -> Option<Batch> {
    let mut job = job.clone();
    job.data.shuffle_rows = 0;
    job.train.batch_size = job.train.batch_size.min(MOST);
    let options = StreamOptions {
        part: DataPart::Train,
        epoch: 0,
        start: StreamStart::default(),
        bad_rows: 0,
        cancel: std::sync::Arc::default(),
    };
    let mut stream = BatchStream::open(&job, options, Box::new(WholeFiles::new(found))).ok()?;
    stream.next()?.ok().filter(|batch| batch.size > 0)
}

/// Ids of each feature and distinct rows of each table, for each sample.
fn counts(job: &Job, batch: &Batch) -> (Vec<f64>, Vec<f64>) {
    let samples = batch.size.max(1) as f64;
    let mut rows: Vec<HashSet<u64>> = vec![HashSet::new(); job.tables.len()];
    let mut ids = Vec::new();
    for (feature, found) in job.features.categorical.iter().zip_eq(&batch.categorical) {
        ids.push(found.ids.len() as f64 / samples);
        rows[feature.table].extend(&found.ids);
    }
    (ids, rows.iter().map(|rows| rows.len() as f64 / samples).collect())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::Overrides;

    use super::*;

    fn job(folder: &Path, text: &str) -> Job {
        std::fs::write(folder.join("a.csv"), text).unwrap();
        let job = format!(
            "[data]\nformat = 'delimited'\ntrain = '{}/a.csv'\n[features]\nlabel = 'y'\ncategorical = ['u', {{ column = 'l', table = 'u', separator = '|' }}]\n[model]\nkind = 'ffnn'\n",
            folder.display()
        );
        Job::parse(&job, Path::new("job.toml"), &Overrides::none()).unwrap()
    }

    #[test]
    fn ids_are_counted_by_feature_and_distinct_rows_by_table() {
        let folder = tempfile::tempdir().unwrap();
        let text = "y,u,l\n1,a,b|c\n0,a,\n1,b,c\n0,d,a|b|c\n";
        let shape = measure_shape(&job(folder.path(), text), None);
        assert!(shape.is_measured);
        assert_eq!((shape.ids, shape.distinct, shape.samples), (vec![1.0, 1.5], vec![1.0], Some(4)));
        assert_eq!(shape.bytes, text.len() as f64 / 4.0);
    }

    #[test]
    fn data_that_are_not_there_are_assumed() {
        let folder = tempfile::tempdir().unwrap();
        let mut job = job(folder.path(), "y,u,l\n1,a,b\n");
        job.data.train = vec![folder.path().join("absent.csv")];
        let shape = measure_shape(&job, Some(7));
        assert!(!shape.is_measured);
        assert_eq!(shape.samples, Some(7));
    }
}
