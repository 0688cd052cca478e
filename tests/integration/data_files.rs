//! The same rows as one file, in a folder of parts, compressed, as JSON lines and in an object store: the same training.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use zagros_fakes::s3::{FakeS3, S3Fault};
use zagros_zip::ZipEq;

use crate::fixture::Fixture;
use crate::resume::losses;

const ROWS: u32 = 8_000;

/// Rows in the order of the files, one step after the other: equal rows then give equal losses, bit by bit.
const IN_ORDER: [&str; 6] =
    ["train", "job.toml", "--set=train.mode=sync", "--set=data.shuffle_rows=0", "--set", "train.seed=3"];

fn train(fixture: &Fixture, sets: &[&str]) -> BTreeMap<u64, String> {
    let _ = std::fs::remove_dir_all(fixture.path("runs"));
    fixture.zagros(IN_ORDER.iter().copied().chain(sets.iter().copied())).expect(0);
    let (losses, _) = losses(fixture);
    assert!(losses.len() > 20, "{losses:?}");
    losses
}

fn parts(fixture: &Fixture) -> Vec<String> {
    let rows = fixture.read("train.txt");
    let rows: Vec<&str> = rows.lines().collect();
    rows.chunks(rows.len() / 4).map(|part| part.join("\n") + "\n").collect()
}

pub(crate) fn gzip(text: &str) -> Vec<u8> {
    let mut gzip = Command::new("gzip").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("gzip is there");
    let mut stdin = gzip.stdin.take().expect("a pipe");
    let text = text.to_owned();
    let writing = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let bytes = gzip.wait_with_output().expect("gzip ends").stdout;
    writing.join().expect("no panic").expect("gzip reads");
    bytes
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
    let fixture = Fixture::new(ROWS).with_environment(store.environment_variables());
    let whole = train(&fixture, &[]);
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
        assert_eq!(train(&fixture, &["--set", &format!("data.train={data}")]), whole, "{data}");
    }
    assert_eq!(train(&fixture, &["--set=data.train=['parts/part-0', 's3://logs/2026/part-[123].txt']"]), whole);
    let objects: String = fixture.read("train.txt").lines().map(object).collect();
    fixture.write("train.jsonl", objects);
    let test: String = fixture.read("test.txt").lines().map(object).collect();
    fixture.write("test.jsonl", test);
    let job = fixture.read("job.toml").replace("criteo", "jsonl") + &features();
    fixture.write("job.toml", job.replace("train.txt", "train.jsonl").replace("test.txt", "test.jsonl"));
    assert_eq!(train(&fixture, &[]), whole);
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
    let train = |data: &str| {
        let run = fixture.zagros(IN_ORDER.iter().copied().chain(["--set", &format!("data.train={data}")]));
        run.stderr
    };
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
