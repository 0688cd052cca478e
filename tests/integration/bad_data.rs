//! Malformed rows and broken files: `file:line:column`, what was expected, and a limit that the user sets.

use super::fixture::{Fixture, gzip};

fn good() -> String {
    let mut fields = vec!["1".to_owned()];
    fields.extend((0..13).map(|number| number.to_string()));
    fields.extend((0..26).map(|number| format!("{number:08x}")));
    fields.join("\t") + "\n"
}

fn with_bad_line(fixture: &Fixture, bad: &[u8]) {
    let mut content = good().repeat(3).into_bytes();
    content.extend_from_slice(bad);
    content.extend_from_slice(good().repeat(2).as_bytes());
    fixture.write("train.txt", content);
}

#[test]
fn a_malformed_row_is_shown_with_its_place_and_the_limit_decides() {
    let fixture = Fixture::new(100);
    let cases: [(&[u8], &[&str]); 5] = [
        (b"1\t2\t3\n", &["train.txt:4", "40"]),
        (&good().replace("\t5\t", "\tfive\t").into_bytes(), &["train.txt:4", "five"]),
        (&good().replacen('1', "7", 1).into_bytes(), &["train.txt:4", "7"]),
        (&[good().trim_end().as_bytes(), b"\xff\xfe\n"].concat(), &["train.txt:4", "UTF-8"]),
        (&good().replace("00000003", "0000\u{0}003").into_bytes(), &["train.txt:4", "NUL"]),
    ];
    for (bad, texts) in cases {
        with_bad_line(&fixture, bad);
        fixture.zagros(["train", "job.toml"]).expect(3).says(texts).says(&["max_bad_rows"]);
        fixture.zagros(["train", "job.toml", "--set", "data.max_bad_rows=1"]).expect(0);
        assert_eq!(fixture.summary()["samples"], 5);
        assert_eq!(fixture.summary()["bad_rows"], 1);
        fixture.zagros(["data", "validate", "job.toml"]).expect(3).prints(&["train.txt:4"]);
    }
}

#[test]
fn a_line_of_100_megabytes_is_refused_without_being_held() {
    let fixture = Fixture::new(100);
    let mut long = vec![b'x'; 100 << 20];
    long.push(b'\n');
    with_bad_line(&fixture, &long);
    fixture.zagros(["train", "job.toml"]).expect(3).says(&["train.txt:4", "max_line_bytes"]);
    fixture.zagros(["train", "job.toml", "--set", "data.max_bad_rows=1"]).expect(0);
    assert_eq!(fixture.summary()["samples"], 5);
}

#[test]
fn a_truncated_gzip_is_named() {
    let fixture = Fixture::new(3_000);
    let whole = gzip(&fixture.read("train.txt"));
    fixture.write("train.txt.gz", &whole[..whole.len() / 2]);
    let run = fixture.zagros(["train", "job.toml", "--set", "data.train=train.txt.gz"]).expect(3);
    run.says(&["train.txt.gz", "ends early"]);
}

#[test]
fn an_empty_file_is_refused_before_the_first_step() {
    let fixture = Fixture::new(100);
    fixture.write("train.txt", "");
    fixture.zagros(["train", "job.toml"]).expect(3).says(&["train.txt", "empty"]);
}

#[test]
fn a_test_file_of_another_shape_is_refused_before_the_first_step() {
    let fixture = Fixture::new(1_000);
    fixture.write("test.txt", good().replacen('1', "7", 1));
    let run = fixture.zagros(["train", "job.toml"]).expect(3).says(&["test.txt:1:1", "expected"]);
    assert!(!run.stderr.contains("step 1"), "{}", run.stderr);
    fixture.zagros(["train", "job.toml", "--dry-run"]).expect(3).says(&["test.txt:1:1"]);
}

#[test]
fn a_path_in_a_message_is_not_cut_in_two() {
    let fixture = Fixture::new(100);
    let name = format!("{}.txt", "a-rather-long-folder/".repeat(10));
    let run = fixture.zagros(["train", "job.toml", "--set", &format!("data.train={name}")]).expect(3);
    assert!(run.stderr.contains(&name), "{}", run.stderr);
}
