//! Which cells are missing does not depend on the format: any values and any texts of `data.missing`, in cells of every kind, as
//! CSV, JSON lines, Parquet and Arrow.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{ArrayRef, Float64Array, Int64Array, ListArray, RecordBatch, StringArray};
use arrow_ipc::writer::FileWriter;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, FloatType, Int64Type};
use parquet::file::properties::WriterProperties;
use proptest::prelude::*;
use proptest::sample::select;
use zagros_ingest::{Batch, BatchStream, DataPart, find_files};
use zagros_job::{Job, Overrides};
use zagros_zip::ZipEq;

use super::samples;
use super::twins::{Group, List, joined, shown, write_file, write_list, write_optional};

const SCHEMA: &str = "message rows {
    optional double y; optional double w; optional double n; optional int64 i;
    optional group vector (LIST) { repeated group list { optional float element; } }
    optional group tags (LIST) { repeated group list { optional binary element (UTF8); } }
    optional group weights (LIST) { repeated group list { optional double element; } }
    optional binary text (UTF8); optional binary texts (UTF8); optional binary numbers (UTF8);
}";

const COLUMNS: [&str; 10] = ["y", "w", "n", "i", "vector", "tags", "weights", "text", "texts", "numbers"];

const FEATURES: &str = r#"
[features]
label = { column = "y", kind = "regression", loss = "mse", missing = "LABEL" }
weight = "w"
numeric = [
    { column = "n", missing = -7, missing_indicator = true },
    { column = "i", missing = -7, missing_indicator = true },
    { column = "vector", width = 2, SEPARATOR missing = -7, missing_indicator = true },
    { column = "numbers", width = 2, separator = "|", missing = -7, missing_indicator = true },
]
categorical = [
    "n", "i", "text",
    { column = "n", name = "range", buckets = [-1, 0.5, 100] },
    { cross = ["range", "text"], name = "both" },
    { column = "tags", SEPARATOR pooling = "mean" },
    { column = "tags", name = "weighted_tags", SEPARATOR weights = "weights", pooling = "sum" },
    { column = "texts", separator = "|", pooling = "mean" },
    { column = "texts", name = "weighted_texts", separator = "|", weights = "numbers", pooling = "sum" },
]
[model]
kind = "ffnn"
[train]
batch_size = 16
"#;

#[derive(Clone, Debug, Default)]
struct Row {
    y: Option<f64>,
    w: Option<f64>,
    n: Option<f64>,
    i: Option<i64>,
    vector: List<f32>,
    tags: List<&'static str>,
    weights: List<f64>,
    text: Option<&'static str>,
    texts: Option<String>,
    numbers: Option<String>,
}

impl Row {
    fn cells(&self) -> [String; 10] {
        let Self { y, w, n, i, vector, tags, weights, text, texts, numbers } = self;
        let (texts, numbers) = (shown(texts), shown(numbers));
        let lists = [joined(vector), joined(tags), joined(weights)];
        let [vector, tags, weights] = lists;
        [shown(y), shown(w), shown(n), shown(i), vector, tags, weights, shown(text), texts, numbers]
    }

    fn object(&self) -> String {
        let number = |text: String| match text.as_str() {
            "" => "null".to_owned(),
            "NaN" => "\"NaN\"".to_owned(),
            _ => text,
        };
        let text = |text: String| if text.is_empty() { "null".to_owned() } else { format!("{text:?}") };
        let list = |items: Vec<String>| format!("[{}]", items.join(","));
        let [y, w, n, i, .., of_text, texts, numbers] = self.cells();
        let vector = self.vector.iter().flatten().map(|item| number(shown(item))).collect();
        let tags = self.tags.iter().flatten().map(|item| text(shown(item))).collect();
        let weights = self.weights.iter().flatten().map(|item| number(shown(item))).collect();
        let [y, w, n, i] = [y, w, n, i].map(number);
        let values = [y, w, n, i, list(vector), list(tags), list(weights), text(of_text), text(texts), text(numbers)];
        let pairs: Vec<String> =
            COLUMNS.iter().enumerate().map(|(at, name)| format!("{name:?}:{}", values[at])).collect();
        format!("{{{}}}\n", pairs.join(","))
    }
}

fn write_text(folder: &Path, rows: &[Row]) {
    let lines: String = rows.iter().map(|row| row.cells().join(",") + "\n").collect();
    fs::write(folder.join("rows.delimited"), format!("{}\n{lines}", COLUMNS.join(","))).unwrap();
    fs::write(folder.join("rows.jsonl"), rows.iter().map(Row::object).collect::<String>()).unwrap();
}

fn write_columns(group: &mut Group<'_>, rows: &[Row]) {
    write_optional::<DoubleType>(group, rows.iter().map(|row| row.y));
    write_optional::<DoubleType>(group, rows.iter().map(|row| row.w));
    write_optional::<DoubleType>(group, rows.iter().map(|row| row.n));
    write_optional::<Int64Type>(group, rows.iter().map(|row| row.i));
    write_list::<FloatType, _>(group, rows.iter().map(|row| &row.vector), |value| *value);
    write_list::<ByteArrayType, _>(group, rows.iter().map(|row| &row.tags), |text| ByteArray::from(*text));
    write_list::<DoubleType, _>(group, rows.iter().map(|row| &row.weights), |value| *value);
    write_optional::<ByteArrayType>(group, rows.iter().map(|row| row.text.map(ByteArray::from)));
    write_optional::<ByteArrayType>(group, rows.iter().map(|row| row.texts.as_deref().map(ByteArray::from)));
    write_optional::<ByteArrayType>(group, rows.iter().map(|row| row.numbers.as_deref().map(ByteArray::from)));
}

fn write_parquet(folder: &Path, rows: &[Row], dictionary: bool) {
    let properties = WriterProperties::builder().set_dictionary_enabled(dictionary);
    write_file(&folder.join("rows.parquet"), (SCHEMA, properties), std::iter::once(rows), write_columns);
}

fn write_arrow(folder: &Path, rows: &[Row]) {
    let numbers = |value: &dyn Fn(&Row) -> Option<f64>| -> ArrayRef {
        Arc::new(rows.iter().map(value).collect::<Float64Array>())
    };
    let texts = |text: &dyn Fn(&Row) -> Option<String>| -> ArrayRef {
        Arc::new(rows.iter().map(text).collect::<StringArray>())
    };
    let mut tags = ListBuilder::new(StringBuilder::new());
    for row in rows {
        row.tags.iter().flatten().for_each(|item| tags.values().append_option(*item));
        tags.append(row.tags.is_some());
    }
    let vector = ListArray::from_iter_primitive::<Float32Type, _, _>(rows.iter().map(|row| row.vector.clone()));
    let weights = ListArray::from_iter_primitive::<Float64Type, _, _>(rows.iter().map(|row| row.weights.clone()));
    let i: ArrayRef = Arc::new(rows.iter().map(|row| row.i).collect::<Int64Array>());
    let lists: [ArrayRef; 3] = [Arc::new(vector), Arc::new(tags.finish()), Arc::new(weights)];
    let [vector, tags, weights] = lists;
    let [y, w, n] = [numbers(&|row| row.y), numbers(&|row| row.w), numbers(&|row| row.n)];
    let text = texts(&|row| row.text.map(str::to_owned));
    let (texts, numbers) = (texts(&|row| row.texts.clone()), texts(&|row| row.numbers.clone()));
    let columns = [y, w, n, i, vector, tags, weights, text, texts, numbers];
    let batch = RecordBatch::try_from_iter(COLUMNS.into_iter().zip_eq(columns)).unwrap();
    let mut writer = FileWriter::try_new(File::create(folder.join("rows.arrow")).unwrap(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
}

/// The rows of a format, and how many are malformed.
fn read(folder: &Path, format: &str, missing: &[&str], label: &str) -> (Batch, u64) {
    let separator = if format == "delimited" { "separator = '|'," } else { "" };
    let features = FEATURES.replace("SEPARATOR", separator).replace("LABEL", label);
    let data = format!(
        "[data]\nformat = '{format}'\ntrain = 'rows.{format}'\nmissing = {missing:?}\nmax_bad_rows = 1000\nshuffle_rows = 0\n"
    );
    let job = Job::parse(&(data + &features), &folder.join("job.toml"), &Overrides::none()).unwrap();
    let infos = find_files(&job, &job.data.train).unwrap();
    let mut stream = BatchStream::open_files(&job, DataPart::Train, &infos).unwrap();
    let batches: Vec<Batch> = stream.by_ref().map(Result::unwrap).collect();
    (samples(&batches), stream.stats().bad_rows)
}

fn number() -> impl Strategy<Value = Option<f64>> {
    select(vec![None, Some(-999.0), Some(-1.0), Some(0.0), Some(0.1), Some(2.0), Some(9_999.0), Some(1e30)])
}

fn tag() -> impl Strategy<Value = Option<&'static str>> {
    select(vec![None, Some("NA"), Some("-1"), Some("0"), Some("a"), Some("b")])
}

/// A list that a text can hold: one of a single null would be an empty text.
fn list<T: Clone + std::fmt::Debug>(
    item: impl Strategy<Value = Option<T>>,
    most: usize,
) -> impl Strategy<Value = List<T>> {
    let is_text = |list: &List<T>| !matches!(list.as_deref(), Some([None]));
    prop::option::of(prop::collection::vec(item, 0..=most)).prop_filter("a null alone", is_text)
}

fn row() -> impl Strategy<Value = Row> {
    let single = (number(), number(), prop_oneof![5 => number(), 1 => Just(Some(f64::NAN))]);
    let integer = number().prop_map(|number| number.map(|number| number as i64));
    let texts = prop::option::of(prop::collection::vec(tag(), 1..4));
    let numbers = prop::option::of(prop::collection::vec(number(), 1..4));
    let lists =
        (list(number().prop_map(|number| number.map(|number| number as f32)), 3), list(tag(), 2), list(number(), 2));
    (single, integer, lists, tag(), texts, numbers).prop_map(
        |((y, w, n), i, (vector, tags, weights), text, texts, numbers)| {
            let texts = Some(joined(&texts)).filter(|text| !text.is_empty());
            let numbers = Some(joined(&numbers)).filter(|text| !text.is_empty());
            Row { y, w, n, i, vector, tags, weights, text, texts, numbers }
        },
    )
}

const SENTINELS: [&str; 9] = ["-999", "-1", "0", "0.1", "9999", "NA", "a", "NaN", "-1.0"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_cell_is_missing_in_every_format_or_in_none(
        mut rows in prop::collection::vec(row(), 1..40),
        missing in prop::sample::subsequence(SENTINELS.to_vec(), 0..4),
        skips: bool,
        dictionary: bool,
    ) {
        // Most rows are malformed in one cell or another.
        for (at, row) in rows.iter_mut().enumerate() {
            match at % 4 {
                0 => (row.y, row.w) = (Some(3.0), Some(1.0)),
                1 => (row.vector, row.numbers) = (None, None),
                2 => (row.weights, row.texts) = (row.tags.as_ref().map(|tags| vec![Some(2.0); tags.len()]), None),
                _ => *row = Row { y: row.y, w: row.w, n: row.n, i: row.i, text: row.text, ..Row::default() },
            }
        }
        rows.push(Row { y: Some(3.0), w: Some(1.0), ..Row::default() });
        let folder = tempfile::tempdir().unwrap();
        write_text(folder.path(), &rows);
        write_parquet(folder.path(), &rows, dictionary);
        write_arrow(folder.path(), &rows);
        let label = if skips { "skip" } else { "refuse" };
        let read = |format| read(folder.path(), format, &missing, label);
        // Debug, because a missing label is NaN.
        let (csv, bad) = read("delimited");
        for format in ["jsonl", "parquet", "arrow"] {
            let found = read(format);
            prop_assert_eq!((format!("{:?}", found.0), found.1), (format!("{csv:?}"), bad), "{}", format);
        }
        let is_missing = |text: String| text.is_empty() || missing.contains(&text.as_str());
        let learned = csv.labels.iter().filter(|label| !label.is_nan());
        prop_assert!(learned.clone().all(|label| !is_missing(label.to_string())), "a missing label is learned");
        prop_assert!(skips || csv.labels.len() == learned.count());
        prop_assert!(csv.weights.iter().all(|weight| !is_missing(weight.to_string())));
        for row in csv.numeric.chunks(csv.numeric.len() / csv.size) {
            prop_assert!(row[..4].iter().step_by(2).all(|number| !is_missing(number.to_string())), "{row:?}");
        }
    }
}
