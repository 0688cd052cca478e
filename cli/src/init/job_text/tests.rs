//! Written jobs, each of which must be a valid one.

use zagros_ingest::{DataContent, RowSample, SampledColumn};
use zagros_job::{Job, Overrides};

use super::*;
use crate::init::infer_sketch;
use crate::init::table::tests::sample_of_lines;

fn checked(sample: RowSample, label: Option<&str>) -> String {
    let text = job_text(&infer_sketch(sample, label).unwrap(), Path::new("rows.csv"));
    if let Err(errors) = Job::parse(&text, Path::new("job.toml"), &Overrides::default()) {
        panic!("{errors:?}\n{text}");
    }
    text
}

#[track_caller]
fn assert_parts(text: &str, parts: &[&str]) {
    parts.iter().for_each(|part| assert!(text.contains(part), "no {part} in\n{text}"));
}

/// The job of so many rows below a line of names.
fn job_of_rows(names: &str, rows: usize, row: impl Fn(usize) -> String) -> String {
    job(&format!("{names}\n{}", (0..rows).map(row).collect::<String>()), None)
}

/// 0 or 1, whatever the columns of the row are.
fn chance(row: usize) -> usize {
    row * 7_919 / 64 % 2
}

fn job(data: &str, label: Option<&str>) -> String {
    checked(sample_of_lines(data.lines().map(str::to_owned)), label)
}

fn rows() -> String {
    let mut data = String::from("clicked,user_id,genres,year,timestamp,day\n");
    for row in 0..40 {
        let (label, user, genre) = (row % 2, row % 7, ["a|b", "b", "c|a", "a|b|c", "b|a"][row % 5]);
        data +=
            &format!("{label},{user},{genre},{},{},2026-11-{:02}\n", 1990 + row % 9, 964_982_224 + row, 1 + row % 28);
    }
    data
}

#[test]
fn a_csv_with_a_header_becomes_a_valid_job_that_holds_out_the_newest_rows() {
    let parts = [
        r#"label = { column = "clicked", positive = ["1"], negative = ["0"] }"#,
        r#"{ column = "genres", dim = 4, separator = "|", pooling = "mean" },  # 3 values"#,
        "time_column = \"timestamp\"",
        "validation_from = 964982256  # about 10.0 %",
        "test_from = 964982260  # about 10.0 %",
        "UNSURE: these columns are times as well: day",
        "# Not a feature: day, because it is a time",
        "# Not a feature: timestamp, because it is a time",
    ];
    assert_parts(&job(&rows(), None), &parts);
}

#[test]
fn the_start_of_a_file_does_not_say_what_is_new() {
    let sample = sample_of_lines(rows().lines().map(str::to_owned));
    let text = checked(RowSample { is_whole: false, is_spread: false, ..sample }, None);
    let timestamp = r#"{ column = "timestamp", standardise = true }"#;
    assert_parts(&text, &[timestamp, "test_fraction = 0.1", "UNSURE: timestamp is a time"]);
}

#[test]
fn a_csv_without_a_header_with_names_that_need_quotes_becomes_a_valid_job() {
    let data: String = (0..40)
        .map(|row| format!("{}, {}, ?, {}\n", row % 5, ["x\\", "y\""][row % 2], [">50K", "<=50K", "<=50K"][row % 3]))
        .collect();
    let text = job(&data, Some("c4"));
    let constant = "# Not a feature: c3, because it has one value";
    let parts = ["header = false", "trim = true", r#"missing = ["?"]"#, "UNSURE: the rarer text", constant];
    assert_parts(&text, &parts);
}

#[test]
fn columns_with_types_become_a_valid_job() {
    let column = |name: &str, text: &dyn Fn(usize) -> String| SampledColumn {
        name: name.into(),
        is_list: name == "tags",
        texts: (0..40).map(text).collect(),
    };
    let columns = vec![
        column("paid", &|row| (row % 3 == 0).to_string()),
        column("user.id", &|row| (row % 7).to_string()),
        column("tags", &|row| format!("t{}\u{1f}t{}", row % 4, row % 3)),
        column("price", &|row| if row == 3 { "NaN".into() } else { format!("{}.5", row % 30) }),
        column("at", &|row| format!("2026-11-23 00:{row:02}:00")),
    ];
    for content in [DataContent::Parquet, DataContent::Arrow, DataContent::Jsonl] {
        let unusable = vec![("blob".to_owned(), "it is compressed with LZO".to_owned())];
        let sample = RowSample { content, columns: columns.clone(), unusable, ..sample_of_lines([]) };
        let text = checked(sample, Some("paid"));
        let parts = [
            r#"label = { column = "paid", positive = ["true"], negative = ["false"] }"#,
            r#"{ column = "tags", dim = 4, pooling = "mean" }"#,
            r#"{ column = "user.id", dim = 8 }"#,
            r#"missing = ["NaN"]"#,
            r#"test_from = "2026-11-23 00:36:00""#,
            "# Not a feature: blob, because the trainer cannot read it: it is compressed with LZO.",
        ];
        assert_parts(&text, &parts);
    }
}

#[test]
fn integers_that_may_be_ids_are_in_both_lists() {
    let row = |row: usize| format!("{},{},{}.5,{}\n", chance(row), 1_000 + row % 200, row, row % 150);
    let text = job_of_rows("clicked,C14,price,item", 2_000, row);
    let parts = [
        "{ column = \"C14\", standardise = true },\n",
        "{ column = \"C14\", dim = 32 },",
        "{ column = \"item\", dim = 32 },",
        "# UNSURE: amounts or ids? In both lists, here and below: C14.",
    ];
    assert_parts(&text, &parts);
    assert!(!text.contains("\"item\", standardise"), "{text}");
}

#[test]
fn criteos_lines_have_the_features_of_the_same_rows_as_parquet() {
    let cell = |row: usize, column: usize| match column {
        0 => chance(row).to_string(),
        _ if (row + column).is_multiple_of(9) => String::new(),
        1..14 => {
            let outlier = if column > 7 && row.is_multiple_of(50) { 100 } else { 1 };
            (row * (column + 2) % (1 << column) * outlier).to_string()
        }
        _ => format!("{:08x}", 0x68fd_1e64 + row * column % (4 * column)),
    };
    let rows = 0..400;
    let line = |row: usize| (0..40).map(|column| cell(row, column)).collect::<Vec<_>>().join("\t");
    let criteo = checked(sample_of_lines(rows.clone().map(line)), None);
    let column = |(index, name): (usize, String)| SampledColumn {
        name,
        is_list: false,
        texts: rows.clone().map(|row| cell(row, index)).collect(),
    };
    let columns = zagros_ingest::criteo_columns().into_iter().enumerate().map(column).collect();
    let parquet = checked(RowSample { content: DataContent::Parquet, columns, ..sample_of_lines([]) }, None);
    assert_eq!(criteo.replace("\"criteo\"", "\"parquet\""), parquet);
    let number = "{ column = \"I13\", log = true, standardise = true },";
    let categories = ["{ column = \"I1\", dim = 4 },", "{ column = \"C26\", dim = "];
    assert_parts(&criteo, &["format = \"criteo\"", "kind = \"dcnv2\"", number, categories[0], categories[1]]);
}

#[test]
fn numbers_and_classes_are_labels_with_their_losses() {
    let labelled = |label: &dyn Fn(usize) -> String| {
        let row = |row: usize| format!("{},c{},{}\n", label(row), row % 7, row % 30);
        job(&("y,city,age\n".to_owned() + &(0..60).map(row).collect::<String>()), Some("y"))
    };
    let number = r#"label = { column = "y", kind = "regression", loss = "mse" }"#;
    assert_parts(&labelled(&|row| format!("{}.5", row % 23)), &[number, "metric = \"mse\""]);
    assert_parts(&labelled(&|row| row.pow(5).to_string()), &["loss = \"poisson\""]);
    let stars = r#"kind = "classes", classes = ["1", "2", "3", "4", "5"]"#;
    let parts = [stars, "UNSURE: few whole numbers", "metric = \"logloss\""];
    assert_parts(&labelled(&|row| (1 + row % 5).to_string()), &parts);
    let text = labelled(&|row| ["red", "green", "blue"][row % 3].to_owned());
    assert!(text.contains(r#"classes = ["blue", "green", "red"]"#) && !text.contains("whole numbers"), "{text}");
}

#[test]
fn parts_of_dates_are_features_and_what_is_unsure_is_a_comment() {
    let row = |row: usize| {
        let (click, day, hour, weight) = (chance(row), 1 + row % 28, row % 24, row % 9);
        let (item, seen) = (row * 7 % 40, format!("m{}|m{}|m{}", row % 40, row * 3 % 40, row * 11 % 40));
        format!("{click},2026-11-{day:02} {hour:02}:30:00,m{item},{seen},{weight}.5\n")
    };
    let parts = [
        r#"{ column = "at", name = "at_hour", date = "hour", dim = 4 },"#,
        r#"{ column = "at", name = "at_weekday", date = "weekday", dim = 4 },"#,
        "# Not a feature: at, because it is a time, and rows to come have later ones; its parts are features.",
        "# UNSURE: if weight says how much a row counts",
        "# weight = \"weight\"",
        "# UNSURE: seen holds values of item.",
    ];
    assert_parts(&job_of_rows("click,at,item,seen,weight", 400, row), &parts);
}

#[test]
fn for_many_categories_another_network_is_named() {
    let kind = |columns: usize| {
        let names: Vec<String> = (0..columns).map(|column| format!("c{column}")).collect();
        let row = |row: usize| {
            let cells: Vec<String> = (0..columns).map(|column| format!("v{}", row * (column + 3) % 11)).collect();
            format!("{},{}\n", row % 2, cells.join(","))
        };
        job_of_rows(&format!("y,{}", names.join(",")), 60, row)
    };
    assert!(!kind(7).contains("dcnv2"));
    assert!(kind(8).contains("UNSURE: of many categories") && kind(8).contains("\nkind = \"ffnn\""));
}

#[test]
fn a_table_of_very_many_values_is_bounded() {
    let row = |row: usize| format!("{},{}\n", row % 2, if row < 9_000 { format!("u{row}") } else { "u1".to_owned() });
    let data = "y,user\n".to_owned() + &(0..10_000).map(row).collect::<String>();
    let sample = sample_of_lines(data.lines().map(str::to_owned));
    let text = checked(RowSample { is_whole: false, is_spread: false, ..sample }, None);
    assert!(text.contains("hash_size = 10000000"), "{text}");
}

#[test]
fn a_column_that_tells_the_label_is_no_feature_and_a_comment_says_so() {
    let refunded = "\n    { column = \"refunded\"";
    let row = |row: usize| format!("{},{},c{}\n", chance(row), 1 - chance(row), row % 4);
    let text = job_of_rows("y,refunded,city", 60, row);
    let candidate = "UNSURE: these columns could be the label as well: refunded.";
    assert_parts(&text, &["# UNSURE: refunded alone tells the label", candidate]);
    assert!(!text.contains(refunded), "{text}");
    let alone = job_of_rows("y,refunded", 60, |row| format!("{},{}\n", chance(row), 1 - chance(row)));
    assert_parts(&alone, &["Without it there would be no feature", refunded]);
}

#[test]
fn decimal_commas_are_numbers_and_a_key_of_the_job() {
    let row = |row: usize| format!("{};{},{};c{}\n", 1 + chance(row), row % 13, row % 10, row % 4);
    let (number, label) = ("{ column = \"price\", standardise = true }", "positive = [\"2\"], negative = [\"1\"]");
    let parts = ["decimal = \",\"", number, label, "UNSURE: the larger number is taken as positive."];
    assert_parts(&job_of_rows("y;price;city", 60, row), &parts);
}

#[test]
fn a_long_tail_of_values_is_named() {
    let row = |row: usize| format!("{},u{}\n", chance(row), if row < 2_000 { row } else { row % 100 });
    let text = job_of_rows("y,user", 4_000, row);
    assert_parts(&text, &["most values of these columns came once: user.", "min_count = 2"]);
}
