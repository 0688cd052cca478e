//! The same rows as CSV and as Parquet.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FloatType, Int32Type, Int64Type};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use tempfile::TempDir;
use zagros_job::{Job, Overrides};

pub(crate) const SCHEMA: &str = "message rows {
    required int32 click;
    optional double age;
    optional binary city (UTF8);
    optional group tags (LIST) { repeated group list { optional binary element (UTF8); } }
    required int64 user;
    required boolean mobile;
    required int32 day (DATE);
    optional group weights (LIST) { repeated group list { optional double element; } }
    optional group vector (LIST) { repeated group list { optional float element; } }
}";

const FEATURES: &str = r#"
[features]
label = "click"
numeric = ["age"]
categorical = ["city", { column = "tags", SEPARATOR pooling = "mean" }, "user", "mobile", "day"]
[model]
kind = "ffnn"
hidden = [8]
[train]
batch_size = 16
"#;

/// A list of a row, which may be null and hold nulls.
pub(crate) type List<T> = Option<Vec<Option<T>>>;

/// A row, different for each number. Every third city, every fifth age and every seventh list is null.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) click: i32,
    pub(crate) age: Option<f64>,
    pub(crate) city: Option<String>,
    pub(crate) tags: List<String>,
    pub(crate) user: i64,
    pub(crate) mobile: bool,
    pub(crate) day: i32,
    pub(crate) weights: List<f64>,
    pub(crate) vector: List<f64>,
}

impl Row {
    pub(crate) fn new(n: i64) -> Self {
        let is_there = |k: &i64| (n + k) % 11 != 0;
        let tag = |k: i64| is_there(&k).then(|| format!("t{}", (n * 7 + k) % 50));
        let weight = |k: i64| Some(k).filter(is_there).map(|k| ((n + 3 * k) % 9) as f64 / 4.0);
        let number = |k: i64| ((n + k) % 13 != 0).then(|| (n * (k + 1) % 17) as f64 / 8.0 - 1.0);
        Self {
            click: i32::from(n % 2 == 0),
            age: (n % 5 != 0).then_some(n as f64 / 4.0),
            city: (n % 3 != 0).then(|| format!("c{}", n % 13)),
            tags: (n % 7 != 0).then(|| (0..n % 4).map(tag).collect()),
            user: n * 1_000_003 - 5_000,
            mobile: n % 4 == 1,
            day: 20_000 + (n % 90) as i32,
            weights: (n % 7 != 0).then(|| (0..n % 4).map(weight).collect()),
            vector: (n % 6 != 0).then(|| (0..3).map(number).collect()),
        }
    }

    pub(crate) fn line(&self) -> String {
        let Self { click, user, mobile, .. } = self;
        let (tags, weights, vector) = (joined(&self.tags), joined(&self.weights), joined(&self.vector));
        let (age, city, day) = (shown(&self.age), shown(&self.city), date(self.day));
        format!("{click},{age},{city},{tags},{user},{mobile},{day},{weights},{vector}\n")
    }

    pub(crate) fn object(&self) -> String {
        let Self { click, age, city, tags, user, day, weights, vector, .. } = self;
        let object = serde_json::json!({
            "click": click, "age": age, "city": city, "tags": tags, "user": user, "day": date(*day), "weights": weights,
            "vector": vector,
        });
        format!("{object}\n")
    }
}

/// The items of a list in a text; a missing one is empty.
pub(crate) fn joined<T: ToString>(list: &List<T>) -> String {
    list.iter().flatten().map(shown).collect::<Vec<_>>().join("|")
}

pub(crate) fn shown<T: ToString>(value: &Option<T>) -> String {
    value.as_ref().map(T::to_string).unwrap_or_default()
}

pub(crate) type Group<'a> = SerializedRowGroupWriter<'a, File>;

/// The next column of a row group, with its definition and repetition levels.
fn write_levels<K: DataType>(
    group: &mut Group<'_>,
    values: &[K::T],
    definition: Option<&[i16]>,
    repetition: Option<&[i16]>,
) {
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<K>().write_batch(values, definition, repetition).unwrap();
    column.close().unwrap();
}

/// The next column, of which no value is null.
fn write_required<K: DataType>(group: &mut Group<'_>, values: impl Iterator<Item = K::T>) {
    write_levels::<K>(group, &values.collect::<Vec<_>>(), None, None);
}

pub(crate) fn write_optional<K: DataType>(group: &mut Group<'_>, values: impl Iterator<Item = Option<K::T>>) {
    let values: Vec<_> = values.collect();
    let definition: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
    write_levels::<K>(group, &values.into_iter().flatten().collect::<Vec<_>>(), Some(&definition), None);
}

pub(crate) fn write_list<'a, K: DataType, T: 'a>(
    group: &mut Group<'_>,
    lists: impl Iterator<Item = &'a List<T>>,
    value: impl Fn(&T) -> K::T,
) {
    let (mut values, mut definition, mut repetition) = (Vec::new(), Vec::new(), Vec::new());
    for list in lists {
        let entries: Vec<i16> = match list {
            None => vec![0],
            Some(items) if items.is_empty() => vec![1],
            Some(items) => items.iter().map(|item| if item.is_some() { 3 } else { 2 }).collect(),
        };
        repetition.extend((0..entries.len()).map(|entry| i16::from(entry > 0)));
        definition.extend(entries);
        values.extend(list.iter().flatten().flatten().map(&value));
    }
    write_levels::<K>(group, &values, Some(&definition), Some(&repetition));
}

/// Of days between 2024-10-04 and 2025-01-01.
fn date(day: i32) -> String {
    // 20,000 days after 1970-01-01 is 2024-10-04.
    match day - 20_000 + 4 {
        day @ ..=31 => format!("2024-10-{day:02}"),
        day @ 32..=61 => format!("2024-11-{:02}", day - 31),
        day @ 62..=92 => format!("2024-12-{:02}", day - 61),
        day => format!("2025-01-{:02}", day - 92),
    }
}

fn write_group(group: &mut Group<'_>, rows: &[Row]) {
    write_required::<Int32Type>(group, rows.iter().map(|row| row.click));
    write_optional::<DoubleType>(group, rows.iter().map(|row| row.age));
    write_optional::<ByteArrayType>(group, rows.iter().map(|row| row.city.as_deref().map(ByteArray::from)));
    write_list::<ByteArrayType, _>(group, rows.iter().map(|row| &row.tags), |tag| ByteArray::from(tag.as_str()));
    write_required::<Int64Type>(group, rows.iter().map(|row| row.user));
    write_required::<BoolType>(group, rows.iter().map(|row| row.mobile));
    write_required::<Int32Type>(group, rows.iter().map(|row| row.day));
    write_list::<DoubleType, _>(group, rows.iter().map(|row| &row.weights), |weight| *weight);
    write_list::<FloatType, _>(group, rows.iter().map(|row| &row.vector), |number| *number as f32);
}

/// A file with these row groups.
pub(crate) fn write_file<'a, R: 'a>(
    path: &Path,
    (schema, properties): (&str, WriterPropertiesBuilder),
    groups: impl Iterator<Item = &'a [R]>,
    write_group: impl Fn(&mut Group<'_>, &[R]),
) {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let file = File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties.build())).unwrap();
    for rows in groups {
        let mut group = writer.next_row_group().unwrap();
        write_group(&mut group, rows);
        group.close().unwrap();
    }
    writer.close().unwrap();
}

/// Writes rows in groups of `group`.
pub(crate) fn write(path: &Path, rows: &[Row], group: usize, properties: WriterPropertiesBuilder) {
    write_file(path, (SCHEMA, properties), rows.chunks(group), write_group);
}

/// Small pages, so that there are many: of about 20 rows.
pub(crate) fn small_pages() -> WriterPropertiesBuilder {
    WriterProperties::builder().set_data_page_row_count_limit(20).set_write_batch_size(10)
}

/// The same rows as CSV and as Parquet, in a folder.
pub(crate) struct Twins {
    pub(crate) folder: TempDir,
}

impl Twins {
    /// The same rows as CSV and as Parquet, in two files each.
    pub(crate) fn new(rows: i64, group: usize, properties: &dyn Fn() -> WriterPropertiesBuilder) -> Self {
        let twins = Self { folder: TempDir::new().unwrap() };
        let rows: Vec<Row> = (0..rows).map(Row::new).collect();
        for (part, rows) in rows.chunks(rows.len().div_ceil(2)).enumerate() {
            let lines: String = rows.iter().map(Row::line).collect();
            let header = "click,age,city,tags,user,mobile,day,weights,vector\n";
            fs::write(twins.path(&format!("{part}.csv")), format!("{header}{lines}")).unwrap();
            write(&twins.path(&format!("{part}.parquet")), rows, group, properties());
        }
        twins
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn job(&self, format: &str, more: &str) -> Job {
        self.job_of(FEATURES, format, more)
    }

    /// A job with other features.
    pub(crate) fn job_of(&self, features: &str, format: &str, more: &str) -> Job {
        let (name, separator) = match format {
            "parquet" => ("parquet", ""),
            "jsonl" => ("jsonl", ""),
            _ => ("csv", "separator = '|',"),
        };
        let data = format!("[data]\nformat = '{format}'\ntrain = ['0.{name}', '1.{name}']\n{more}\n");
        let text = data + &features.replace("SEPARATOR", separator);
        Job::parse(&text, &self.path("job.toml"), &Overrides::none()).unwrap()
    }

    pub(crate) fn parquet(&self) -> Job {
        self.job("parquet", "")
    }
}
