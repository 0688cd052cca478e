//! The same rows train the same from standard input, a file, a folder of parts, an object store or a web server, compressed, as JSON
//! lines, and as CSV whose fields hold line breaks.

use std::collections::BTreeMap;
use std::fs::File;
use std::process::{Command, Stdio};

use zagros_fakes::s3::{FakeS3, S3Fault};
use zagros_tests::TestProgram;
use zagros_zip::ZipEq;

use super::fixture::{Fixture, gzip};
use super::parquet::twins;
use super::resume::losses;

/// Rows in the order of the files, one step after the other: equal rows then give equal losses, bit by bit.
const IN_ORDER: [&str; 5] =
    ["train", "--set=train.mode=sync", "--set=data.shuffle_rows=0", "--set=train.seed=3", "--set=train.batch_size=256"];

fn train(fixture: &Fixture, job: &str, sets: &[&str]) -> BTreeMap<u64, String> {
    let _ = std::fs::remove_dir_all(fixture.path("runs"));
    fixture.zagros(IN_ORDER.iter().chain(&[job]).chain(sets).copied()).expect(0);
    let (losses, _) = losses(fixture);
    assert!(losses.len() > 5, "{losses:?}");
    losses
}

fn with_input(fixture: &Fixture, input: &str, arguments: &[&str]) -> (i32, String) {
    let input = File::open(fixture.path(input)).expect("the input is there");
    let mut command = Command::new(TestProgram::Zagros.path());
    command.current_dir(fixture.folder()).args(arguments).stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.output().expect("the program runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn standard_input_trains_and_scores_as_the_file_does() {
    let fixture = Fixture::new(4_000);
    let whole = train(&fixture, "job.toml", &[]);
    let run = fixture.run_name();
    let (code, said) = with_input(&fixture, "test.txt", &["predict", &run, "-", "-o", "piped.csv"]);
    assert_eq!(code, 0, "{said}");
    fixture.zagros(["predict", &run, "test.txt", "-o", "file.csv"]).expect(0);
    assert_eq!(fixture.read("piped.csv"), fixture.read("file.csv"));
    fixture.write("train.txt.gz", gzip(&fixture.read("train.txt")));
    for input in ["train.txt", "train.txt.gz"] {
        let _ = std::fs::remove_dir_all(fixture.path("runs"));
        let arguments: Vec<&str> = IN_ORDER.iter().chain(&["job.toml", "--set", "data.train=-"]).copied().collect();
        let (code, said) = with_input(&fixture, input, &arguments);
        assert_eq!(code, 0, "{said}");
        assert_eq!(losses(&fixture).0, whole, "{input}");
    }
}

#[test]
fn standard_input_is_refused_where_it_would_be_read_twice() {
    let fixture = Fixture::new(100);
    let refused = |sets: &[&str]| {
        let arguments: Vec<&str> = ["train", "job.toml", "--set", "data.train=-"].iter().chain(sets).copied().collect();
        let (code, said) = with_input(&fixture, "train.txt", &arguments);
        assert_eq!(code, 2, "{said}");
        said
    };
    assert!(refused(&["--set", "train.epochs=2"]).contains("`train.epochs` does not fit"));
    let said = with_input(&fixture, "train.txt", &["up", "job.toml", "--set", "data.train=-"]).1;
    assert!(said.contains("only `zagros train` reads"), "{said}");
}

#[test]
fn other_stores_and_web_servers_train_as_files_do() {
    let (store, server) = (FakeS3::start("logs"), FakeS3::start_open("files"));
    let fixture = Fixture::new(3_000).with_environment(store.environment_of_others());
    let whole = train(&fixture, "job.toml", &[]);
    let rows = fixture.read("train.txt");
    let half = rows[..rows.len() / 2].rfind('\n').expect("lines") + 1;
    for (key, part) in [("day/part-0", &rows[..half]), ("day/part-1", &rows[half..])] {
        store.put_object(key, part.as_bytes());
        server.put_object(key, part.as_bytes());
    }
    let url = |part: u32| format!("{}/files/day/part-{part}", server.base_url());
    let list = format!("data.train=['{}', '{}']", url(0), url(1));
    for data in ["data.train=gs://logs/day", "data.train=az://logs/day/part-*", &list] {
        assert_eq!(train(&fixture, "job.toml", &["--set", data]), whole, "{data}");
    }
    let missing = fixture.zagros(["train", "job.toml", "--set", &format!("data.train={}/files/no", server.base_url())]);
    missing.expect(3).says(&["/files/no", "there is no such object"]);
}

#[test]
fn parquet_in_a_store_trains_as_parquet_on_a_disk() {
    let store = FakeS3::start("logs");
    let fixture = twins(6_000).with_environment(store.environment_variables());
    let whole = train(&fixture, "parquet.toml", &[]);
    for name in ["train0.parquet", "train1.parquet"] {
        store.put_object(&format!("day/{name}"), std::fs::read(fixture.path(name)).expect("the file is there"));
    }
    assert_eq!(train(&fixture, "parquet.toml", &["--set", "data.train=s3://logs/day"]), whole);
    store.inject_fault(S3Fault::Denies, "GET /logs/day/train1", 1_000);
    let denied = fixture.zagros(["train", "parquet.toml", "--set", "data.train=s3://logs/day"]);
    denied.says(&["cannot read s3://logs/day/train1.parquet", "AccessDenied", "AWS_ACCESS_KEY_ID"]);
}

const QUOTED: &str = r#"
[data]
format = "delimited"
train = "rows.csv"
quoted_breaks = true
[features]
label = "click"
numeric = ["age"]
categorical = ["city", "note"]
[model]
kind = "ffnn"
hidden = [8]
[cluster]
timeout_seconds = 20
"#;

#[test]
fn rows_with_line_breaks_in_quotes_train_with_any_number_of_workers() {
    let fixture = Fixture::new(10);
    let note =
        |n: u32| if n.is_multiple_of(3) { format!("\"a\n{},\"\"b\"\"\n\"", n % 11) } else { format!("n{}", n % 7) };
    let row = |n: u32| format!("{},{},c{},{}\n", n % 2, n % 90, n % 13, note(n));
    fixture.write("rows.csv", "click,age,city,note\n".to_owned() + &(0..20_000).map(row).collect::<String>());
    fixture.write("rows.toml", QUOTED);
    train(&fixture, "rows.toml", &[]);
    assert_eq!(fixture.summary()["samples"], 20_000);
    let _ = std::fs::remove_dir_all(fixture.path("runs"));
    fixture.zagros(["up", "rows.toml", "--set", "cluster.workers=2"]).expect(0);
    assert_eq!(fixture.summary()["samples"], 20_000);
    fixture.write("rows.toml", QUOTED.replace("quoted_breaks = true\n", ""));
    fixture.zagros(["train", "rows.toml"]).expect(3).says(&["rows.csv:2:4", "set data.quoted_breaks = true"]);
}

fn parts(fixture: &Fixture) -> Vec<String> {
    let rows = fixture.read("train.txt");
    let rows: Vec<&str> = rows.lines().collect();
    rows.chunks(rows.len() / 4).map(|part| part.join("\n") + "\n").collect()
}

fn object(row: &str) -> String {
    let numbered = |letter: char, last: u32| (1..=last).map(move |n| format!("{letter}{n}"));
    let names: Vec<String> =
        std::iter::once("label".to_owned()).chain(numbered('I', 13)).chain(numbered('C', 26)).collect();
    let values = names.into_iter().zip_eq(row.split('\t').collect::<Vec<_>>()).filter(|(_, value)| !value.is_empty());
    let field = |(name, value): (String, &str)| match name.starts_with('C') {
        true => format!("\"{name}\":\"{value}\""),
        false => format!("\"{name}\":{value}"),
    };
    format!("{{{}}}\n", values.map(field).collect::<Vec<_>>().join(","))
}

#[test]
fn the_same_rows_train_the_same_however_they_are_stored() {
    let store = FakeS3::start("logs");
    let fixture = Fixture::new(8_000).with_environment(store.environment_variables());
    let whole = train(&fixture, "job.toml", &[]);
    assert!(whole.len() > 20, "{whole:?}");
    std::fs::create_dir(fixture.path("parts")).expect("a folder");
    fixture.write("parts/_SUCCESS", "");
    for (index, part) in parts(&fixture).iter().enumerate() {
        match index {
            0 => std::fs::write(fixture.path("parts/part-0"), gzip(part)).expect("room for a file"),
            _ => fixture.write(&format!("parts/part-{index}"), part),
        }
        store.put_object(&format!("2026/part-{index}.txt"), part.as_bytes());
        store.put_object(&format!("zipped/part-{index}.gz"), gzip(part));
    }
    store.put_object("2026/_SUCCESS", "");
    for data in ["parts", "parts/part-[0-9]", "s3://logs/2026", "s3://logs/*/part-?.gz"] {
        assert_eq!(train(&fixture, "job.toml", &["--set", &format!("data.train={data}")]), whole, "{data}");
    }
    let mixed = "--set=data.train=['parts/part-0', 's3://logs/2026/part-[123].txt']";
    assert_eq!(train(&fixture, "job.toml", &[mixed]), whole);
    let objects: String = fixture.read("train.txt").lines().map(object).collect();
    fixture.write("train.jsonl", objects);
    let test: String = fixture.read("test.txt").lines().map(object).collect();
    fixture.write("test.jsonl", test);
    let job = fixture.read("job.toml").replace("criteo", "jsonl") + &features();
    fixture.write("job.toml", job.replace("train.txt", "train.jsonl").replace("test.txt", "test.jsonl"));
    assert_eq!(train(&fixture, "job.toml", &[]), whole);
}

/// Criteo's features by name.
fn features() -> String {
    let list = |letter: char, last: u32, log: &str| {
        (1..=last).map(|n| format!("{{ column = '{letter}{n}'{log} }}")).collect::<Vec<_>>().join(", ")
    };
    format!(
        "[features]\nlabel = 'label'\nnumeric = [{}]\ncategorical = [{}]\n",
        list('I', 13, ", log = true"),
        list('C', 26, "")
    )
}

#[test]
fn what_a_store_refuses_is_named_before_anything_starts() {
    let store = FakeS3::start("logs");
    let fixture = Fixture::new(500).with_environment(store.environment_variables());
    let train = |data: &str| fixture.zagros(["train", "job.toml", "--set", &format!("data.train={data}")]).stderr;
    let missing = train("s3://logs/2026/rows.txt");
    assert!(missing.contains("s3://logs/2026/rows.txt is neither an object nor a prefix of objects"), "{missing}");
    let nothing = train("s3://logs/2026-*/x");
    assert!(nothing.contains("s3://logs/2026-*/x matches no object"), "{nothing}");
    store.inject_fault(S3Fault::Denies, "GET /logs", 1_000);
    let denied = train("s3://logs/2026/*");
    assert!(denied.contains("cannot list s3://logs/2026") && denied.contains("AWS_ACCESS_KEY_ID"), "{denied}");
    store.clear_faults();
    let bucket = train("s3://other/rows.txt");
    assert!(bucket.contains("there is no such bucket"), "{bucket}");
    let scheme = train("ftp://logs/rows.txt");
    assert!(scheme.contains("`data.train` names no file") && scheme.contains("s3://bucket/key"), "{scheme}");
}
