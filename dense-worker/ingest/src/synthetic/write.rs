//! The planted rows as files in Criteo's format.

use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::thread;

use crate::IngestError;
use crate::synthetic::planted::{PlantedModel, Row, SyntheticSpec};

/// Number of rows that a thread makes at once.
const CHUNK: u64 = 8_192;

/// Number of the first test row. It is so high that test rows do not depend on the number of training rows.
const TEST_START: u64 = 1 << 48;

/// Label and planted logit of each row of a file, in its order.
type Truth = Vec<(f32, f32)>;

/// Writes `train.txt` and `test.txt` in Criteo's format into `folder`, and makes the folder if needed. The same
/// specification writes the same bytes. A file has its final name only once it is whole.
///
/// Returns label (0 or 1) and planted logit of each test row. A measure of these logits is the best that any model can
/// reach on the test file, up to chance.
///
/// # Errors
/// When the specification is impossible or a file cannot be written.
pub fn generate(spec: &SyntheticSpec, folder: &Path) -> Result<Vec<(f32, f32)>, IngestError> {
    let planted = PlantedModel::new(spec)?;
    let unwritable = |source| IngestError::Unwritable { path: folder.into(), source };
    fs::create_dir_all(folder).map_err(unwritable)?;
    write_file(&planted, 0..spec.rows, &folder.join("train.txt"))?;
    write_file(&planted, TEST_START..TEST_START + spec.test_rows, &folder.join("test.txt"))
}

fn write_file(planted: &PlantedModel, rows: Range<u64>, path: &Path) -> Result<Truth, IngestError> {
    let partial = path.with_extension("txt.partial");
    let written = write_rows(planted, rows, &partial).and_then(|truth| {
        fs::rename(&partial, path)?;
        Ok(truth)
    });
    if written.is_err() {
        // The partial file may be what filled the disk.
        let _ = fs::remove_file(&partial);
    }
    written.map_err(|source| IngestError::Unwritable { path: path.into(), source })
}

fn write_rows(planted: &PlantedModel, rows: Range<u64>, path: &Path) -> io::Result<Truth> {
    let threads = thread::available_parallelism().map_or(1, usize::from) as u64;
    let mut file = File::create(path)?;
    let mut truth = Truth::new();
    let mut start = rows.start;
    while start < rows.end {
        let end = rows.end.min(start + threads * CHUNK);
        for (text, part) in make_chunks(planted, start..end) {
            file.write_all(&text)?;
            truth.extend(part);
        }
        start = end;
    }
    file.sync_all()?;
    Ok(truth)
}

/// The text of consecutive chunks, with one thread for each.
fn make_chunks(planted: &PlantedModel, rows: Range<u64>) -> Vec<(Vec<u8>, Truth)> {
    thread::scope(|scope| {
        let starts = rows.clone().step_by(CHUNK as usize);
        let chunk = |start: u64| start..rows.end.min(start + CHUNK);
        let threads: Vec<_> = starts.map(|start| scope.spawn(move || make_chunk(planted, chunk(start)))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}

fn make_chunk(planted: &PlantedModel, rows: Range<u64>) -> (Vec<u8>, Truth) {
    let (mut text, mut truth) = (Vec::with_capacity(CHUNK as usize * 256), Truth::with_capacity(CHUNK as usize));
    for number in rows {
        let row = planted.row(number);
        write_row(&row, &mut text);
        truth.push((f32::from(u8::from(row.clicked)), row.logit as f32));
    }
    (text, truth)
}

fn write_row(row: &Row, text: &mut Vec<u8>) {
    text.push(if row.clicked { b'1' } else { b'0' });
    for integer in row.integers {
        text.push(b'\t');
        if let Some(value) = integer {
            write_integer(value, text);
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

fn write_integer(value: i64, text: &mut Vec<u8>) {
    if value < 0 {
        text.push(b'-');
    }
    let (mut digits, mut first, mut rest) = ([0; 20], 20, value.unsigned_abs());
    loop {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    text.extend_from_slice(&digits[first..]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;
    use crate::{BatchStream, DataPart, StreamOptions, StreamStart, WholeFiles, files, fixture};

    fn spec(rows: u64, test_rows: u64) -> SyntheticSpec {
        SyntheticSpec { rows, test_rows, ..SyntheticSpec::default() }
    }

    #[test]
    fn files_are_read_back_with_the_planted_labels() {
        let folder = TempDir::new().unwrap();
        let truth = generate(&spec(3, 20_000), &folder.path().join("new/folder")).unwrap();
        let job = fixture::criteo();
        let infos = files(&job, &[folder.path().join("new/folder/test.txt")]).unwrap();
        let options = StreamOptions {
            part: DataPart::All,
            epoch: 0,
            start: StreamStart::default(),
            bad_rows: 0,
            cancel: std::sync::Arc::default(),
        };
        let stream = BatchStream::open(&job, options, Box::new(WholeFiles::new(&infos))).unwrap();
        let labels: Vec<f32> = stream.flat_map(|batch| batch.unwrap().labels).collect();
        assert_eq!(labels, truth.iter().map(|(label, _)| *label).collect::<Vec<_>>());
        assert_eq!(labels.len(), 20_000);
    }

    #[test]
    fn the_same_spec_writes_the_same_bytes_and_test_rows_do_not_depend_on_training_rows() {
        let (one, two) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        generate(&spec(10_000, 50), one.path()).unwrap();
        generate(&spec(9_000, 50), two.path()).unwrap();
        let read = |folder: &TempDir, name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(read(&one, "test.txt"), read(&two, "test.txt"));
        assert!(read(&one, "train.txt").starts_with(&read(&two, "train.txt")));
        assert_eq!(read(&one, "train.txt").lines().count(), 10_000);
        assert!(!one.path().join("train.txt.partial").exists());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let (_folder, path) = fixture::file("a file, not a folder");
        let error = generate(&spec(1, 1), &path.join("below")).unwrap_err().to_string();
        assert!(error.starts_with("cannot write ") && error.contains("below"), "{error}");
    }

    #[test]
    fn a_failed_write_leaves_no_partial_file() {
        let folder = TempDir::new().unwrap();
        fs::create_dir_all(folder.path().join("train.txt/in-the-way")).unwrap();
        let error = generate(&spec(1, 1), folder.path()).unwrap_err();
        assert!(matches!(error, IngestError::Unwritable { .. }), "{error}");
        assert!(!folder.path().join("train.txt.partial").exists());
    }

    proptest! {
        #[test]
        fn integers_are_written_as_the_standard_library_writes_them(value: i64) {
            let mut text = Vec::new();
            write_integer(value, &mut text);
            prop_assert_eq!(String::from_utf8(text).unwrap(), value.to_string());
        }
    }
}
