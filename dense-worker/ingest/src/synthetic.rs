//! Data with a known model: a Criteo-shaped generator with a planted model, a teacher of higher-order terms on which larger networks are
//! better, and a fixed workload for measuring speed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::thread;

use crate::IngestError;
use crate::parse::number::push_integer;
use crate::synthetic::factors::FactorTeacher;
use crate::synthetic::planted::{PlantedModel, PlantedRow};

mod counter;
mod crit_zipf;
mod factors;
mod planted;

pub use crit_zipf::make_crit_zipf;
pub use factors::{FactorColumns, FactorSpec, factor_columns};
pub use planted::SyntheticSpec;

/// Number of rows that a thread makes at once.
const CHUNK: u64 = 8_192;

/// Number of the first test row. It is so high that test rows do not depend on the number of training rows.
const TEST_START: u64 = 1 << 48;

/// Label and planted logit of each row of a file, in its order.
type RowTruth = Vec<(f32, f32)>;

/// Writes `train.txt` and `test.txt` in Criteo's format into `folder`, and makes the folder if needed. The same
/// specification writes the same bytes. A file has its final name only once it is whole.
///
/// Returns label (0 or 1) and planted logit of each test row. A measure of these logits is the best that any model can
/// reach on the test file, up to chance.
pub fn generate_criteo(spec: &SyntheticSpec, folder: &Path) -> Result<Vec<(f32, f32)>, IngestError> {
    let planted = PlantedModel::new(spec.seed);
    let make = |number: u64, text: &mut Vec<u8>| {
        let row = planted.make_row(number);
        write_row(&row, text);
        (f32::from(u8::from(row.clicked)), row.logit as f32)
    };
    let rows = RowWriter { head: &[], make: &make };
    rows.write_parts(folder, ["train.txt", "test.txt"], [spec.rows, spec.test_rows])
}

/// Writes `train.csv` and `test.csv` of a teacher over latent factors into `folder`, with a header. Otherwise as [`generate_criteo`].
pub fn generate_factors(spec: &FactorSpec, folder: &Path) -> Result<Vec<(f32, f32)>, IngestError> {
    let teacher = FactorTeacher::new(spec)?;
    let make = |number: u64, text: &mut Vec<u8>| {
        let row = teacher.make_row(number);
        factors::write_row(&row, text);
        (f32::from(u8::from(row.clicked)), row.logit as f32)
    };
    let columns = (0..spec.factors as usize).map(factors::column_name);
    let head = std::iter::once("label".to_owned()).chain(columns).collect::<Vec<_>>().join(",") + "\n";
    let rows = RowWriter { head: head.as_bytes(), make: &make };
    rows.write_parts(folder, ["train.csv", "test.csv"], [spec.rows, spec.test_rows])
}

struct RowWriter<'a, Make> {
    head: &'a [u8],
    /// Adds the text of a row, and returns its label and planted logit.
    make: &'a Make,
}

impl<Make: Fn(u64, &mut Vec<u8>) -> (f32, f32) + Sync> RowWriter<'_, Make> {
    /// Training and test part. Returns the truth of the test part.
    fn write_parts(&self, folder: &Path, names: [&str; 2], rows: [u64; 2]) -> Result<RowTruth, IngestError> {
        if rows.contains(&0) {
            return Err(IngestError::BadSpec { reason: "rows and test rows must be at least 1".to_owned() });
        }
        let unwritable = |source| IngestError::Unwritable { path: folder.into(), source };
        fs::create_dir_all(folder).map_err(unwritable)?;
        self.write_file(0..rows[0], &folder.join(names[0]))?;
        self.write_file(TEST_START..TEST_START + rows[1], &folder.join(names[1]))
    }

    fn write_file(&self, rows: Range<u64>, path: &Path) -> Result<RowTruth, IngestError> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = Path::new(&partial);
        let written = self.write_rows(rows, partial).and_then(|truth| {
            fs::rename(partial, path)?;
            Ok(truth)
        });
        if written.is_err() {
            // The partial file may be what filled the disk.
            let _ = fs::remove_file(partial);
        }
        written.map_err(|source| IngestError::Unwritable { path: path.into(), source })
    }

    fn write_rows(&self, rows: Range<u64>, path: &Path) -> io::Result<RowTruth> {
        let threads = thread::available_parallelism().map_or(1, usize::from) as u64;
        let mut file = File::create(path)?;
        file.write_all(self.head)?;
        let mut truth = RowTruth::new();
        let mut start = rows.start;
        while start < rows.end {
            let end = rows.end.min(start + threads * CHUNK);
            for (text, part) in self.make_chunks(start..end) {
                file.write_all(&text)?;
                truth.extend(part);
            }
            start = end;
        }
        file.sync_all()?;
        Ok(truth)
    }

    /// The text of consecutive chunks, with one thread for each.
    fn make_chunks(&self, rows: Range<u64>) -> Vec<(Vec<u8>, RowTruth)> {
        thread::scope(|scope| {
            let starts = rows.clone().step_by(CHUNK as usize);
            let chunk = |start: u64| start..rows.end.min(start + CHUNK);
            let threads: Vec<_> = starts.map(|start| scope.spawn(move || self.make_chunk(chunk(start)))).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        })
    }

    fn make_chunk(&self, rows: Range<u64>) -> (Vec<u8>, RowTruth) {
        let (mut text, mut truth) = (Vec::with_capacity(CHUNK as usize * 256), RowTruth::with_capacity(CHUNK as usize));
        for number in rows {
            truth.push((self.make)(number, &mut text));
        }
        (text, truth)
    }
}

fn write_row(row: &PlantedRow, text: &mut Vec<u8>) {
    text.push(if row.clicked { b'1' } else { b'0' });
    for integer in row.integers {
        text.push(b'\t');
        if let Some(value) = integer {
            push_integer(value, text);
        }
    }
    for category in row.categories {
        text.push(b'\t');
        if let Some(value) = category {
            text.extend((0..8).rev().map(|digit| b"0123456789abcdef"[(value >> (4 * digit)) as usize & 15]));
        }
    }
    text.push(b'\n');
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::{DataPart, StreamOptions, fixture};

    fn spec(rows: u64, test_rows: u64) -> SyntheticSpec {
        SyntheticSpec { rows, test_rows, ..SyntheticSpec::default() }
    }

    #[test]
    fn files_are_read_back_with_the_planted_labels() {
        let folder = TempDir::new().unwrap();
        let truth = generate_criteo(&spec(3, 20_000), &folder.path().join("new/folder")).unwrap();
        let splits = fixture::whole(&folder.path().join("new/folder/test.txt"));
        let stream = fixture::stream(&fixture::criteo(), StreamOptions::new(DataPart::All), splits);
        let labels: Vec<f32> = stream.flat_map(|batch| batch.unwrap().labels).collect();
        assert_eq!(labels, truth.iter().map(|(label, _)| *label).collect::<Vec<_>>());
        assert_eq!(labels.len(), 20_000);
    }

    #[test]
    fn the_same_spec_writes_the_same_bytes_and_test_rows_do_not_depend_on_training_rows() {
        let (one, two) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        generate_criteo(&spec(10_000, 50), one.path()).unwrap();
        generate_criteo(&spec(9_000, 50), two.path()).unwrap();
        let read = |folder: &TempDir, name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(read(&one, "test.txt"), read(&two, "test.txt"));
        assert!(read(&one, "train.txt").starts_with(&read(&two, "train.txt")));
        assert_eq!(read(&one, "train.txt").lines().count(), 10_000);
        assert!(!one.path().join("train.txt.partial").exists());
    }

    #[test]
    fn rows_of_factors_are_written_with_a_header_and_their_labels() {
        let folder = TempDir::new().unwrap();
        let spec = FactorSpec { rows: 9_000, test_rows: 100, factors: 3, order: 3, ..FactorSpec::default() };
        let truth = generate_factors(&spec, folder.path()).unwrap();
        let test = fs::read_to_string(folder.path().join("test.csv")).unwrap();
        let mut lines = test.lines();
        assert_eq!(lines.next(), Some("label,x1,c1,x2"));
        let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
        let labels: Vec<f32> = rows.iter().map(|row| row[0].parse().unwrap()).collect();
        assert_eq!(labels, truth.iter().map(|(label, _)| *label).collect::<Vec<_>>());
        for row in &rows {
            let number: f64 = row[1].parse().unwrap();
            assert!(row.len() == 4 && (0.0..1.0).contains(&number) && row[2].starts_with('v'), "{row:?}");
        }
        let other = TempDir::new().unwrap();
        generate_factors(&FactorSpec { rows: 5, ..spec }, other.path()).unwrap();
        assert_eq!(fs::read_to_string(other.path().join("test.csv")).unwrap(), test);
        let read = |folder: &TempDir| fs::read_to_string(folder.path().join("train.csv")).unwrap();
        assert!(read(&folder).starts_with(&read(&other)) && read(&folder).lines().count() == 9_001);
    }

    #[test]
    fn clicks_happen_as_often_as_planted() {
        let folder = TempDir::new().unwrap();
        let criteo = generate_criteo(&spec(1, 20_000), &folder.path().join("criteo")).unwrap();
        let factors = FactorSpec { rows: 1, test_rows: 20_000, ..FactorSpec::default() };
        let factors = generate_factors(&factors, &folder.path().join("factors")).unwrap();
        for truth in [criteo, factors] {
            let (mut surplus, mut variance) = (0.0_f64, 0.0_f64);
            for (label, logit) in truth {
                let probability = 1.0 / (1.0 + f64::from(-logit).exp());
                surplus += f64::from(label) - probability;
                variance += probability * (1.0 - probability);
            }
            assert!(surplus.abs() < 5.0 * variance.sqrt(), "{surplus} clicks more than expected");
        }
    }

    #[test]
    fn no_rows_are_refused() {
        let folder = TempDir::new().unwrap();
        for rows in [spec(0, 1), spec(1, 0)] {
            let error = generate_criteo(&rows, folder.path()).unwrap_err();
            assert!(matches!(error, IngestError::BadSpec { .. }), "{error}");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let (_folder, path) = fixture::file("a file, not a folder");
        let error = generate_criteo(&spec(1, 1), &path.join("below")).unwrap_err().to_string();
        assert!(error.starts_with("cannot write ") && error.contains("below"), "{error}");
    }

    #[test]
    fn a_failed_write_leaves_no_partial_file() {
        let folder = TempDir::new().unwrap();
        fs::create_dir_all(folder.path().join("train.txt/in-the-way")).unwrap();
        let error = generate_criteo(&spec(1, 1), folder.path()).unwrap_err();
        assert!(matches!(error, IngestError::Unwritable { .. }), "{error}");
        assert!(!folder.path().join("train.txt.partial").exists());
    }
}
