//! Rows from standard input, object stores, a web server, and CSV files whose fields hold line breaks train the same.

use std::collections::BTreeMap;
use std::fs::File;
use std::process::{Command, Stdio};

use zagros_fakes::s3::{FakeS3, S3Fault};
use zagros_tests::TestProgram;

use crate::fixture::Fixture;
use crate::parquet::twins;
use crate::resume::losses;

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
    let run = fixture.run_folder().display().to_string();
    let (code, said) = with_input(&fixture, "test.txt", &["predict", &run, "-", "-o", "piped.csv"]);
    assert_eq!(code, 0, "{said}");
    fixture.zagros(["predict", &run, "test.txt", "-o", "file.csv"]).expect(0);
    assert_eq!(fixture.read("piped.csv"), fixture.read("file.csv"));
    let zipped = Command::new("gzip").arg("-k").arg(fixture.path("train.txt")).status().expect("gzip is there");
    assert!(zipped.success());
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
[output]
folder = "runs"
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
