//! Rows a second of one core for each format, beside pyarrow's reader.
//!
//! ```text
//! cargo bench -p zagros-ingest --bench formats -- [FILE …]
//! PYARROW=/path/to/python cargo bench -p zagros-ingest --bench formats -- [FILE …]
//! ```
//!
//! Files have the columns of Criteo's data set, `label`, `I1` to `I13` and `C1` to `C26`, and end in `.csv` or `.tsv` (with a header),
//! `.jsonl`, `.parquet` or `.arrow`; of a `.quoted.csv`, quoted fields may hold line breaks. Without a file it makes 200,000 such rows in all
//! these formats. `PYARROW` is a Python that has pyarrow.
//!
//! What is compared is not quite equal. Here a row is read, parsed, hashed and put into a batch. pyarrow makes arrays of
//! the values and hashes nothing; it uses one thread.

use std::env;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int32Array, RecordBatch, StringArray};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use tempfile::TempDir;
use zagros_ingest::{BatchStream, DataPart, criteo_columns, find_files};
use zagros_job::{Job, Overrides};

/// Rows of generated files, and of a row group.
const ROWS: (usize, usize) = (200_000, 50_000);
/// The best of so many readings counts.
const READINGS: usize = 3;

fn main() {
    let folder = TempDir::new().expect("a folder");
    let mut paths: Vec<PathBuf> = env::args().skip(1).filter(|arg| !arg.starts_with('-')).map(PathBuf::from).collect();
    if paths.is_empty() {
        paths = generate(folder.path());
    }
    let python = env::var_os("PYARROW");
    println!(
        "{:<28} {:>9} {:>8} {:>12} {:>9}  pyarrow rows/s   ratio",
        "file", "MB", "rows", "rows/s/core", "MB/s/core"
    );
    for path in &paths {
        let bytes = fs::metadata(path).expect("the file exists").len();
        let (rows, rate) = zagros(path);
        let name = path.file_name().unwrap_or_default().display().to_string();
        let megabytes = bytes as f64 / 1e6;
        let mut line =
            format!("{name:<28} {megabytes:>9.1} {rows:>8} {rate:>12.0} {:>9.1}", rate * megabytes / rows as f64);
        if let Some(python) = &python {
            let other = pyarrow(Path::new(python), path);
            let _ = write!(line, " {other:>15.0} {:>7.2}", rate / other);
        }
        println!("{line}");
    }
}

/// Rows, and rows a second of processor time of the reading and the parsing thread.
fn zagros(path: &Path) -> (u64, f64) {
    let end = path.extension().and_then(|end| end.to_str());
    let format = end.filter(|end| ["parquet", "arrow", "jsonl"].contains(end)).unwrap_or("delimited");
    let breaks = match end {
        Some("tsv") => "delimiter = \"\\t\"\n",
        _ if is_quoted(path) => "quoted_breaks = true\n",
        _ => "",
    };
    let list = |letter: char, last: u32| (1..=last).map(|n| format!("'{letter}{n}'")).collect::<Vec<_>>().join(", ");
    let text = format!(
        "[data]\nformat = '{format}'\ntrain = '{}'\nthreads = 1\nshuffle_rows = 0\n{breaks}[features]\nlabel = 'label'\nnumeric = [{}]\n\
         categorical = [{}]\n[model]\nkind = 'ffnn'\n[train]\nbatch_size = 4096\n",
        path.display(),
        list('I', 13),
        list('C', 26)
    );
    let here = env::current_dir().expect("a current folder");
    let job = Job::parse(&text, &here.join("job.toml"), &Overrides::none()).expect("the job is good");
    let infos = find_files(&job, &job.data.train).expect("the file is good");
    let reading = |_| {
        let mut stream = BatchStream::open_files(&job, DataPart::All, &infos).expect("threads start");
        stream.by_ref().for_each(|batch| drop(batch.expect("the rows are good")));
        let stats = stream.stats();
        (stats.rows, stats.rows as f64 / stats.cpu_seconds)
    };
    (0..READINGS).map(reading).max_by(|one, other| one.1.total_cmp(&other.1)).expect("a reading")
}

fn is_quoted(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().ends_with(b".quoted.csv"))
}

/// Rows a second of pyarrow with one thread.
fn pyarrow(python: &Path, path: &Path) -> f64 {
    let script = "import sys, time, pyarrow as pa, pyarrow.csv, pyarrow.feather, pyarrow.json, pyarrow.parquet\n\
        pa.set_cpu_count(1); pa.set_io_thread_count(1)\n\
        path, best = sys.argv[1], 0\n\
        for _ in range(3):\n\
        \x20   start = time.process_time()\n\
        \x20   if path.endswith('.parquet'): table = pyarrow.parquet.read_table(path, use_threads=False, memory_map=True)\n\
        \x20   elif path.endswith('.arrow'): table = pyarrow.feather.read_table(path, use_threads=False, memory_map=False)\n\
        \x20   elif path.endswith('.jsonl'): table = pyarrow.json.read_json(path, pyarrow.json.ReadOptions(use_threads=False))\n\
        \x20   else:\n\
        \x20       breaks = pyarrow.csv.ParseOptions(newlines_in_values=path.endswith('.quoted.csv'), delimiter='\\t' if path.endswith('.tsv') else ',')\n\
        \x20       table = pyarrow.csv.read_csv(path, pyarrow.csv.ReadOptions(use_threads=False), breaks)\n\
        \x20   best = max(best, table.num_rows / (time.process_time() - start))\n\
        print(best)";
    let output = Command::new(python).args(["-c", script]).arg(path).output().expect("PYARROW is a Python");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().unwrap_or_else(|_| panic!("no pyarrow: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Rows whose numbers and categories are skewed as in logs of clicks.
fn generate(folder: &Path) -> Vec<PathBuf> {
    let ends = ["csv", "tsv", "quoted.csv", "jsonl", "snappy.parquet", "arrow", "lz4.arrow"];
    let paths = ends.map(|end| folder.join(format!("rows.{end}")));
    let [csv, tsv, quoted, objects, columns, plain, lz4] = &paths;
    let mut random = Pcg64::seed_from_u64(1);
    let mut skewed = |most: f64| (most.powf(random.random::<f64>().powi(2)) as u64).saturating_sub(1);
    let rows: Vec<Vec<u64>> = (0..ROWS.0)
        .map(|_| (0..40).map(|column| skewed(if column == 0 { 3.0 } else { 10_f64.powi(1 + column % 6) })).collect())
        .collect();
    let text = |column: usize, value: u64| match column {
        0 => u8::from(value > 0).to_string(),
        1..=13 => value.to_string(),
        _ => format!("{:08x}", (value as u32).wrapping_mul(2_654_435_761)),
    };
    // Half of the categories are quoted, and one of them has a line break.
    let with_quotes = |column: usize, value: u64| match column {
        39 => format!("\"{}\n\"", text(column, value)),
        27.. => format!("\"{}\"", text(column, value)),
        _ => text(column, value),
    };
    let lines = lines_of(&rows, &text);
    let [tabs, quoted_lines] = [lines.replace(',', "\t"), lines_of(&rows, &with_quotes)];
    for (path, text) in [(tsv, tabs), (csv, lines), (quoted, quoted_lines), (objects, objects_of(&rows, &text))] {
        fs::write(path, text).expect("room for the rows");
    }
    write_columns(columns, &rows, &text);
    write_batches(plain, None, &rows, &text);
    write_batches(lz4, Some(CompressionType::LZ4_FRAME), &rows, &text);
    paths.to_vec()
}

/// The rows as CSV.
fn lines_of(rows: &[Vec<u64>], text: &dyn Fn(usize, u64) -> String) -> String {
    let line = |row: &Vec<u64>| {
        let fields: Vec<_> = row.iter().enumerate().map(|(column, value)| text(column, *value)).collect();
        fields.join(",") + "\n"
    };
    criteo_columns().join(",") + "\n" + &rows.iter().map(line).collect::<String>()
}

/// The rows as JSON lines.
fn objects_of(rows: &[Vec<u64>], text: &dyn Fn(usize, u64) -> String) -> String {
    let names = criteo_columns();
    let field = |(column, value): (usize, &u64)| {
        let quote = if column > 13 { "\"" } else { "" };
        format!("\"{}\":{quote}{}{quote}", names[column], text(column, *value))
    };
    let object = |row: &Vec<u64>| row.iter().enumerate().map(field).collect::<Vec<_>>().join(",");
    rows.iter().map(|row| format!("{{{}}}\n", object(row))).collect()
}

fn write_columns(path: &Path, rows: &[Vec<u64>], text: &dyn Fn(usize, u64) -> String) {
    let field = |(index, name): (usize, &String)| match index {
        0..=13 => format!("required int32 {name};"),
        _ => format!("required binary {name} (UTF8);"),
    };
    let fields: String = criteo_columns().iter().enumerate().map(field).collect();
    let schema = Arc::new(parse_message_type(&format!("message rows {{ {fields} }}")).expect("a schema"));
    let properties = Arc::new(WriterProperties::builder().set_compression(Compression::SNAPPY).build());
    let file = File::create(path).expect("a file");
    let mut writer = SerializedFileWriter::new(file, schema, properties).expect("a writer");
    for rows in rows.chunks(ROWS.1) {
        let mut group = writer.next_row_group().expect("a row group");
        let mut index = 0;
        while let Some(mut column) = group.next_column().expect("a column") {
            if index <= 13 {
                let value = |row: &Vec<u64>| text(index, row[index]).parse().expect("a number");
                let values: Vec<i32> = rows.iter().map(value).collect();
                column.typed::<Int32Type>().write_batch(&values, None, None).expect("values are written");
            } else {
                let values: Vec<_> = rows.iter().map(|row| ByteArray::from(text(index, row[index]).as_str())).collect();
                column.typed::<ByteArrayType>().write_batch(&values, None, None).expect("values are written");
            }
            column.close().expect("the column is complete");
            index += 1;
        }
        group.close().expect("the row group is complete");
    }
    writer.close().expect("the file is complete");
}

fn write_batches(
    path: &Path,
    compression: Option<CompressionType>,
    rows: &[Vec<u64>],
    text: &dyn Fn(usize, u64) -> String,
) {
    let column = |index: usize, rows: &[Vec<u64>]| -> ArrayRef {
        let texts = rows.iter().map(|row| text(index, row[index]));
        if index <= 13 {
            Arc::new(texts.map(|text| text.parse::<i32>().expect("a number")).collect::<Int32Array>())
        } else {
            Arc::new(texts.map(Some).collect::<StringArray>())
        }
    };
    let batch = |rows: &[Vec<u64>]| {
        let columns = criteo_columns().into_iter().enumerate().map(|(index, name)| (name, column(index, rows)));
        RecordBatch::try_from_iter(columns).expect("columns of equal length")
    };
    let options = IpcWriteOptions::default().try_with_compression(compression).expect("a codec");
    let file = File::create(path).expect("a file");
    let mut writer = FileWriter::try_new_with_options(file, &batch(&rows[..1]).schema(), options).expect("a writer");
    rows.chunks(ROWS.1).for_each(|rows| writer.write(&batch(rows)).expect("room for the rows"));
    writer.finish().expect("the file is complete");
}
