//! Files of predictions: their bytes, and what an interruption leaves.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use zagros_ingest::InputRows;

use crate::predictions::file::part_name;
use crate::predictions::{PredictionColumns, PredictionCounts, PredictionFile, PredictionFormat};

const FORMATS: [(&str, PredictionFormat); 3] =
    [("s.csv", PredictionFormat::Csv), ("s.jsonl", PredictionFormat::Jsonl), ("s.parquet", PredictionFormat::Parquet)];

fn columns() -> PredictionColumns {
    PredictionColumns::new(vec!["id".to_owned(), "note".to_owned()], vec!["score".to_owned()]).unwrap()
}

/// Each row is a sample with its keys, or a malformed one.
fn rows(rows: &[Option<[&str; 2]>]) -> InputRows {
    InputRows::from_rows(2, rows.iter().map(|keys| keys.map(|keys| keys.map(str::as_bytes).to_vec())))
}

fn first() -> (InputRows, [f64; 2]) {
    (rows(&[Some(["7", "a,\"b\""]), None, Some(["8", " é\n"])]), [0.5, 1e-9])
}

fn second() -> (InputRows, [f64; 1]) {
    (rows(&[None, Some(["9", ""])]), [0.125])
}

fn open(path: &Path, format: PredictionFormat, every: u64) -> PredictionFile {
    PredictionFile::open(path, (columns(), format), "model and rows", every, false).unwrap()
}

fn write(path: &Path, format: PredictionFormat) -> Vec<u8> {
    let mut file = open(path, format, 1000);
    file.add_rows(&first().0, &first().1).unwrap();
    file.add_rows(&second().0, &second().1).unwrap();
    assert_eq!(file.finish().unwrap(), PredictionCounts { samples: 3, malformed: 2, not_finite: 0 });
    fs::read(path).unwrap()
}

fn names(folder: &Path) -> Vec<PathBuf> {
    let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into()).collect();
    names.sort();
    names
}

/// JSON has no NaN.
#[test]
fn a_score_that_is_no_number_is_null_in_json_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = open(&folder.path().join("s.jsonl"), PredictionFormat::Jsonl, 1000);
    file.add_rows(&first().0, &[f64::NAN, f64::INFINITY]).unwrap();
    file.add_rows(&second().0, &second().1).unwrap();
    assert_eq!(file.finish().unwrap(), PredictionCounts { samples: 3, malformed: 2, not_finite: 2 });
    let text = fs::read_to_string(folder.path().join("s.jsonl")).unwrap();
    let scores = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["score"].as_f64());
    assert_eq!(scores.collect::<Vec<_>>(), [None, None, None, None, Some(0.125)]);
}

#[test]
fn rows_keep_their_order_keys_and_places() {
    let folder = tempfile::tempdir().unwrap();
    let text = |name: &str, format| String::from_utf8(write(&folder.path().join(name), format)).unwrap();
    assert_eq!(
        text("s.csv", PredictionFormat::Csv),
        "id,note,score\n7,\"a,\"\"b\"\"\",0.5\n,,\n8,\" é\n\",0.000000001\n,,\n9,,0.125\n"
    );
    assert_eq!(
        text("s.jsonl", PredictionFormat::Jsonl),
        "{\"id\":\"7\",\"note\":\"a,\\\"b\\\"\",\"score\":0.5}\n{\"id\":\"\",\"note\":\"\",\"score\":null}\n\
         {\"id\":\"8\",\"note\":\" é\\n\",\"score\":0.000000001}\n{\"id\":\"\",\"note\":\"\",\"score\":null}\n\
         {\"id\":\"9\",\"note\":\"\",\"score\":0.125}\n"
    );
    write(&folder.path().join("s.parquet"), PredictionFormat::Parquet);
    let reader = SerializedFileReader::new(File::open(folder.path().join("s.parquet")).unwrap()).unwrap();
    let read: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    let ids: Vec<_> = read.iter().map(|row| row.get_string(0).unwrap().clone()).collect();
    assert_eq!(ids, ["7", "", "8", "", "9"]);
    let scores: Vec<_> = read.iter().map(|row| row.get_double(2).ok()).collect();
    assert_eq!(scores, [Some(0.5), None, Some(1e-9), None, Some(0.125)]);
    assert_eq!(names(folder.path()), FORMATS.map(|(name, _)| PathBuf::from(name)), "nothing else is left");
}

#[test]
fn a_file_without_keys_has_a_line_for_a_malformed_row() {
    let columns = PredictionColumns::new(vec![], vec!["p".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.csv");
    let mut file = PredictionFile::open(&path, (columns, PredictionFormat::Csv), "", 1000, false).unwrap();
    file.add_rows(&InputRows::from_rows(0, [Some(vec![]), None]), &[0.5]).unwrap();
    file.finish().unwrap();
    assert_eq!(fs::read_to_string(path).unwrap(), "p\n0.5\n\"\"\n");
}

/// Invariant CK-1: at no time is there a part of a file under its name.
#[test]
fn interrupted_predictions_go_on_to_the_same_bytes() {
    for (name, format) in FORMATS {
        let folder = tempfile::tempdir().unwrap();
        let undisturbed = write(&folder.path().join(name), format);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        let mut file = open(&path, format, 1);
        file.add_rows(&first().0, &first().1).unwrap();
        // What is written now is not durable.
        file.every = 1000;
        file.add_rows(&second().0, &second().1).unwrap();
        drop(file);
        assert!(!path.exists() && part_name(&path).exists());
        let mut file = open(&path, format, 1000);
        assert_eq!(file.written_counts(), PredictionCounts { samples: 2, malformed: 1, not_finite: 0 });
        file.add_rows(&second().0, &second().1).unwrap();
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), undisturbed, "{name}");
        assert_eq!(names(folder.path()), [PathBuf::from(name)]);
    }
}

#[test]
fn predictions_of_other_rows_and_torn_ones_start_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.csv");
    let interrupt = || {
        let mut file = open(&path, PredictionFormat::Csv, 1);
        file.add_rows(&first().0, &first().1).unwrap();
    };
    let found = |identity: &str, fresh: bool| {
        let columns = (columns(), PredictionFormat::Csv);
        PredictionFile::open(&path, columns, identity, 1000, fresh).unwrap().written_counts().row_count()
    };
    interrupt();
    assert_eq!(found("model and rows", false), 3);
    assert_eq!(found("another model", false), 0);
    interrupt();
    assert_eq!(found("model and rows", true), 0);
    interrupt();
    File::options().write(true).open(part_name(&path)).unwrap().set_len(5).unwrap();
    assert_eq!(found("model and rows", false), 0);
}

#[test]
fn two_processes_do_not_write_the_same_predictions() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.csv");
    let _first = open(&path, PredictionFormat::Csv, 1);
    let second = PredictionFile::open(&path, (columns(), PredictionFormat::Csv), "model and rows", 1, false);
    assert!(second.unwrap_err().to_string().contains("another process writes"));
}

#[test]
fn what_cannot_be_written_is_refused() {
    let format = |name: &str| PredictionFormat::from_path(Path::new(name));
    assert!(FORMATS.iter().all(|(name, expected)| format(name).unwrap() == *expected));
    assert!(format("s.tsv").unwrap_err().to_string().contains("end it in .csv, .jsonl or .parquet"));
    let twice = PredictionColumns::new(vec!["score".to_owned()], vec!["score".to_owned()]).unwrap_err().to_string();
    assert!(twice.contains("--score-column"), "{twice}");
    let stream = PredictionFile::open_stdout(columns(), PredictionFormat::Parquet).unwrap_err().to_string();
    assert!(stream.contains("Parquet cannot be written to standard output"), "{stream}");
    let folder = tempfile::tempdir().unwrap();
    let file =
        PredictionFile::open(&folder.path().join("none/s.csv"), (columns(), PredictionFormat::Csv), "", 1, false);
    assert!(file.unwrap_err().to_string().contains("none/s.csv.part: No such file"));
}

#[test]
fn a_row_may_have_several_scores() {
    let folder = tempfile::tempdir().unwrap();
    let columns = || PredictionColumns::new(vec!["id".to_owned()], vec!["click".to_owned(), "buy".to_owned()]).unwrap();
    let rows = InputRows::from_rows(1, [Some(vec![&b"7"[..]]), None, Some(vec![&b"8"[..]])]);
    let write = |name: &str, format| {
        let path = folder.path().join(name);
        let mut file = PredictionFile::open(&path, (columns(), format), "model", 1, false).unwrap();
        file.add_rows(&rows, &[0.5, 0.25, 0.75, 1.0]).unwrap();
        file.finish().unwrap();
        path
    };
    let text = |path: PathBuf| fs::read_to_string(path).unwrap();
    assert_eq!(text(write("s.csv", PredictionFormat::Csv)), "id,click,buy\n7,0.5,0.25\n,,\n8,0.75,1\n");
    let json = text(write("s.jsonl", PredictionFormat::Jsonl));
    assert!(json.ends_with("null,\"buy\":null}\n{\"id\":\"8\",\"click\":0.75,\"buy\":1}\n"), "{json}");
    let reader = SerializedFileReader::new(File::open(write("s.parquet", PredictionFormat::Parquet)).unwrap()).unwrap();
    let read: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    let scores: Vec<_> = read.iter().map(|row| (row.get_double(1).ok(), row.get_double(2).ok())).collect();
    assert_eq!(scores, [(Some(0.5), Some(0.25)), (None, None), (Some(0.75), Some(1.0))]);
}
