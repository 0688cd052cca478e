//! `[data]` as it is written: keys that exclude each other are side by side.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::settings::{DataOrder, DataSettings, DecimalMark, Format, HeldOutRows, TimeBound};

/// Where samples come from.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Data")]
pub(crate) struct DataFile {
    /// Layout of a line.
    pub(crate) format: DataLayout,
    /// Training files, read in this order. A folder stands for all files below it, a pattern such as `logs/2026-11-*/part-*.csv` for
    /// all that match it; `s3://bucket/key`, a prefix or a pattern of keys for objects in a store (also `gs://`, `az://`), `https://…` for a file of a web server; `-` for standard input, which `zagros train` reads in one epoch. Gzip, zstd, lz4 and bzip2 are recognised by their content. A relative path starts at the job file's folder;
    /// one given by `--set` or the environment starts at the current directory.
    #[schemars(extend("x-change" = "operational"))]
    pub(crate) train: DataPaths,
    /// Held-out files, in the same layout; paths as in `train`. Default: none; excludes `test_fraction` and `test_from`.
    #[schemars(extend("x-change" = "operational"))]
    pub(crate) test: Option<DataPaths>,
    /// Share of the rows of `train` that is held out instead. A hash of the line and its place in the file chooses them (in Parquet and
    /// Arrow files, of the file's name and the row's number), so they are the same rows every time.
    /// Default: none; excludes `test` and `test_from`. Without any of the three nothing is evaluated.
    #[schemars(extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))]
    pub(crate) test_fraction: Option<f64>,
    /// Rows of `train` whose `time_column` has this value or a later one are the test part instead. A number is compared as a number,
    /// a date or time such as `"2026-11-23 12:00"` as a time in whichever form the rows have it, any other text letter by letter. Default: none; excludes `test` and `test_fraction`.
    pub(crate) test_from: Option<TimeBound>,
    /// Validation files, in the same layout; paths as in `train`. Early stopping and the choice of the best state go by them, and the
    /// test part is then scored once, at the end. Default: none; excludes `validation_share` and `validation_from`.
    #[schemars(extend("x-change" = "operational"))]
    pub(crate) validation: Option<DataPaths>,
    /// Share of the rows of `train` that is the validation part instead. A hash as for `test_fraction` chooses them, so they are the same
    /// rows every time and none of the test part's. Default: none; excludes `validation` and `validation_from`.
    #[schemars(extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))]
    pub(crate) validation_share: Option<f64>,
    /// Rows of `train` whose `time_column` has this value or a later one, and that are not in the test part, are the validation part
    /// instead. As `test_from`. Default: none; excludes `validation` and `validation_share`.
    pub(crate) validation_from: Option<TimeBound>,
    /// The column that `test_from` and `validation_from` look at. It need not be a feature. Rows without a value in it are
    /// trained on. Default: none; needed by both.
    pub(crate) time_column: Option<String>,
    /// Field separator, one ASCII character, `"\t"` for tabs. Default: `","`; `delimited` only.
    pub(crate) delimiter: Option<String>,
    /// Whether each file starts with a line of column names. Default: true; `delimited` only.
    pub(crate) header: Option<bool>,
    /// Names of all columns, in order. Default: taken from the header; `delimited` only, and needed when
    /// `header = false`.
    pub(crate) columns: Option<Vec<String>>,
    /// Lines that start with this text are skipped. Default: none; `delimited` only.
    pub(crate) comment: Option<String>,
    /// Whether blanks around a field are removed. Default: false; `delimited` only.
    pub(crate) trim: Option<bool>,
    /// Whether quoted fields may hold line breaks. A file is then read whole by one worker. A record of several lines whose quote is never
    /// closed is an error, and a malformed one counts once for each of its lines. Default: false; `delimited` only.
    pub(crate) quoted_breaks: Option<bool>,
    /// What is before the fraction of a number. Texts of categories stay as they are. Default: `"."`; `delimited` only.
    pub(crate) decimal: Option<DecimalMark>,
    /// Field texts that mean "missing"; an empty field always does, and null. They hold for cells of every kind, and for each value of a
    /// cell of several. Of a value with a type the text is the one that a CSV file would have: −999.0 is `-999`. Default: none; not
    /// for `criteo`.
    pub(crate) missing: Option<Vec<String>>,
    /// Malformed rows that are skipped before the run stops with the places of the first ones. They are counted over all epochs and
    /// workers of the run; a row counts once in each epoch.
    #[serde(default)]
    #[schemars(range(max = 9_223_372_036_854_775_807_u64), extend("x-change" = "operational"))]
    pub(crate) max_bad_rows: u64,
    /// Share of the rows that may be malformed as well before the run stops, from 0 to 1. Each worker judges the rows that it reads in
    /// one go, and at least 10,000: so many malformed rows are tolerated from the start.
    #[serde(default)]
    #[schemars(range(max = 1.0), extend("x-change" = "operational"))]
    pub(crate) max_bad_share: f64,
    /// Longest line accepted, in bytes. A longer line is a malformed row; a longer record of several lines is an error.
    #[serde(default = "max_line_bytes")]
    #[schemars(range(min = 64, max = 1_073_741_824), extend("x-change" = "operational"))]
    pub(crate) max_line_bytes: usize,
    /// Threads that parse lines; 0 plans them from the machine's cores (1 up to 4 cores, else 2).
    #[serde(default)]
    #[schemars(range(max = 1024), extend("x-change" = "operational"))]
    pub(crate) threads: usize,
    /// Rows of the shuffle window, which is held in memory; 0 keeps the order of the files. Each epoch also reads the splits of the
    /// files in another order. Both orders depend on `train.seed` and the epoch alone. Default: 32768, less where a row has so many
    /// features that the window would exceed 32 MiB.
    #[schemars(range(max = 100_000_000))]
    pub(crate) shuffle_rows: Option<usize>,
    /// Order of the rows of an epoch. `time` keeps the order of the files, and excludes `shuffle_rows` above 0.
    #[serde(default)]
    pub(crate) order: DataOrder,
    /// Whether an epoch drops a last batch with fewer than `train.batch_size` samples. Each worker has one where its rows end. Rows that
    /// are scored are never dropped.
    #[serde(default)]
    #[schemars(extend("x-change" = "operational"))]
    pub(crate) drop_last: bool,
}

/// Layout of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Layout")]
pub(crate) enum DataLayout {
    /// Criteo's TSV: `label`, integers `I1` to `I13`, categories `C1` to `C26`, tab-separated, no header, any but
    /// the label may be empty.
    Criteo,
    /// CSV or TSV with named columns, quoted fields as in RFC 4180.
    Delimited,
    /// Parquet: columns with names and types. A column inside another is named by its path, such as `user.id`.
    Parquet,
    /// Arrow IPC files (Feather version 2), as Parquet: columns with names and types. Record batches are to them what row groups are to
    /// Parquet.
    Arrow,
    /// JSON lines: an object on each line, whose keys are the columns. A key of an object inside is named by its path, such as
    /// `user.id`. An array holds the values of a multi-valued feature.
    Jsonl,
}

/// One path or a list of them.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Paths")]
pub(crate) enum DataPaths {
    /// One file.
    One(String),
    /// Files in reading order.
    Many(Vec<String>),
}

impl DataPaths {
    pub(crate) fn as_slice(&self) -> &[String] {
        match self {
            Self::One(path) => std::slice::from_ref(path),
            Self::Many(paths) => paths,
        }
    }

    fn new(paths: &[PathBuf]) -> Self {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        Self::Many(paths.iter().map(|path| text(path)).collect())
    }
}

impl DataFile {
    pub(crate) fn has_validation(&self) -> bool {
        self.validation.is_some() || self.validation_share.is_some() || self.validation_from.is_some()
    }

    pub(crate) fn from_data(data: &DataSettings) -> Self {
        let paths =
            |part: &HeldOutRows| Some(DataPaths::new(part.file_paths())).filter(|paths| !paths.as_slice().is_empty());
        let share = |part: &HeldOutRows| Some(part.row_share()).filter(|share| *share > 0.0);
        let from = |part: &HeldOutRows| part.newest_rows().map(|newest| newest.from.clone());
        let (format, delimited, missing) = match &data.format {
            Format::Criteo => (DataLayout::Criteo, None, None),
            Format::Delimited(delimited) => (DataLayout::Delimited, Some(delimited), Some(&delimited.missing)),
            Format::Parquet(columnar) => (DataLayout::Parquet, None, Some(&columnar.missing)),
            Format::Arrow(columnar) => (DataLayout::Arrow, None, Some(&columnar.missing)),
            Format::Jsonl(columnar) => (DataLayout::Jsonl, None, Some(&columnar.missing)),
        };
        Self {
            format,
            train: DataPaths::new(&data.train),
            test: paths(&data.test),
            test_fraction: share(&data.test),
            test_from: from(&data.test),
            validation: paths(&data.validation),
            validation_share: share(&data.validation),
            validation_from: from(&data.validation),
            time_column: data.time_column().map(str::to_owned),
            delimiter: delimited.map(|layout| char::from(layout.delimiter).to_string()),
            header: delimited.map(|layout| layout.header),
            columns: delimited.map(|layout| layout.columns.clone()),
            comment: delimited.and_then(|layout| layout.comment.clone()),
            trim: delimited.map(|layout| layout.trim),
            quoted_breaks: delimited.map(|layout| layout.quoted_breaks),
            decimal: delimited.map(|layout| layout.decimal),
            missing: missing.cloned(),
            max_bad_rows: data.max_bad_rows,
            max_bad_share: data.max_bad_share,
            max_line_bytes: data.max_line_bytes,
            threads: data.threads,
            shuffle_rows: Some(data.shuffle_rows),
            order: data.order,
            drop_last: data.drop_last,
        }
    }
}

fn max_line_bytes() -> usize {
    1 << 20
}
