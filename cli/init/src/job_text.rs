//! The job file of a sketch.

mod features;

use std::fmt::{self, Write};
use std::path::Path;

use features::{write_categorical, write_dropped, write_label, write_numeric};

use crate::{Bound, ColumnKind, Dialect, Layout, NewestParts, Sketch};

/// The parts that are the same for all data.
const END: &str = "
[embedding]
dim = 16                       # of tables that name no `dim`

[model]
kind = \"ffnn\"                  # takes tables of any dims; other kinds: docs/models.md
hidden = [256, 128]
dropout = 0.3

[train]
batch_size = 1024
epochs = 20                    # at most
early_stop = { metric = \"auc\", patience = 3 }  # evaluations without a better one; the best state is saved
";

/// Writes the job file for the data at `data`.
#[must_use]
pub fn job_text(sketch: &Sketch, data: &Path) -> String {
    let mut text = String::new();
    write_all(&mut text, sketch, data).expect("a String takes any text");
    text
}

fn write_all(text: &mut String, sketch: &Sketch, data: &Path) -> fmt::Result {
    write_head(text, sketch)?;
    write_data(text, sketch, data)?;
    write_label(text, sketch)?;
    if sketch.layout != Layout::Criteo {
        write_numeric(text, sketch)?;
        write_categorical(text, sketch)?;
        write_dropped(text, sketch)?;
    }
    text.push_str(END);
    Ok(())
}

fn write_head(text: &mut String, sketch: &Sketch) -> fmt::Result {
    let part = match (sketch.is_whole, sketch.is_spread) {
        (true, _) => "all",
        (false, true) => "a sample of",
        (false, false) => "the first",
    };
    let files = if sketch.files > 1 { format!(" of {} files", sketch.files) } else { String::new() };
    let rows = sketch.rows;
    writeln!(
        text,
        "# Written by `zagros init` from {part} {rows} rows{files}. Lines with UNSURE are guesses: check them."
    )?;
    text.push_str("# docs/job-file.md describes every key.\n");
    Ok(())
}

fn write_data(text: &mut String, sketch: &Sketch, data: &Path) -> fmt::Result {
    let format = match sketch.layout {
        Layout::Criteo => "criteo",
        Layout::Delimited(_) => "delimited",
        Layout::Parquet => "parquet",
        Layout::Jsonl => "jsonl",
    };
    writeln!(text, "\n[data]\nformat = {format:?}\ntrain = {}", quoted(&data.to_string_lossy()))?;
    match &sketch.newest {
        Some(newest) => write_newest(text, sketch, newest)?,
        None => write_shares(text, sketch)?,
    }
    text.push_str("shuffle_rows = 100_000         # files are often sorted; a batch should not be\n");
    if let Layout::Delimited(dialect) = &sketch.layout {
        write_dialect(text, sketch, dialect)?;
    }
    let mut missing: Vec<&str> = sketch.columns.iter().flat_map(|column| column.missing.iter().copied()).collect();
    missing.sort_unstable();
    missing.dedup();
    if !missing.is_empty() && sketch.layout != Layout::Criteo {
        let marks: Vec<String> = missing.into_iter().map(quoted).collect();
        writeln!(text, "missing = [{}]", marks.join(", "))?;
    }
    Ok(())
}

/// Parts by time: scores of the newest rows are what scores of rows to come will be.
fn write_newest(text: &mut String, sketch: &Sketch, newest: &NewestParts) -> fmt::Result {
    let name = &sketch.columns[newest.column].name;
    if newest.is_guess {
        writeln!(
            text,
            "# UNSURE: {} is taken as the time of a row. If it is not, hold out random rows instead:",
            comment(name)
        )?;
        text.push_str("# test_fraction = 0.1 and validation_share = 0.1 in place of the next three keys.\n");
    }
    if !newest.others.is_empty() {
        let others = comment(&newest.others.join(", "));
        writeln!(text, "# UNSURE: these columns are times as well: {others}.")?;
    }
    let bound = |bound: &Bound| match bound {
        Bound::Number(number) => number.to_string(),
        Bound::Text(text) => quoted(text),
    };
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    writeln!(
        text,
        "time_column = {}  # the newest rows are held out, because rows to come are newer still",
        quoted(name)
    )?;
    let (validation, test) = (percent(newest.validation_share), percent(newest.test_share));
    writeln!(
        text,
        "validation_from = {}  # about {validation} of the rows; decide when to stop",
        bound(&newest.validation_from)
    )?;
    writeln!(text, "test_from = {}  # about {test} of the rows; scored once, in the end", bound(&newest.test_from))
}

/// Random parts, and why they are not by time.
fn write_shares(text: &mut String, sketch: &Sketch) -> fmt::Result {
    text.push_str("test_fraction = 0.1            # rows that a hash chooses; or `test = \"FILE\"`\n");
    text.push_str("validation_share = 0.1         # decides when to stop\n");
    for column in sketch.inputs().filter(|column| matches!(column.kind, ColumnKind::Time(_))) {
        let name = comment(&column.name);
        if sketch.is_spread {
            writeln!(
                text,
                "# UNSURE: {name} is a time, but does not divide the rows into old and new ones; both parts are random."
            )?;
        } else {
            writeln!(
                text,
                "# UNSURE: {name} is a time, and both parts are random: only the start of a compressed file was looked at, which does"
            )?;
            text.push_str("# not say what is new. To score the newest rows, set `time_column`, `validation_from` and `test_from` instead.\n");
        }
    }
    Ok(())
}

fn write_dialect(text: &mut String, sketch: &Sketch, dialect: &Dialect) -> fmt::Result {
    if dialect.has_comments {
        text.push_str("comment = \"#\"\n");
    }
    if dialect.ragged > 0 {
        writeln!(
            text,
            "# UNSURE: {} rows of the sample do not have {} fields and stop the run, unless this is raised:\nmax_bad_rows = 0",
            dialect.ragged, dialect.fields
        )?;
    }
    writeln!(text, "delimiter = {}", quoted(&dialect.separator.to_string()))?;
    writeln!(text, "header = {}", dialect.header)?;
    if !dialect.header {
        let names: Vec<String> = sketch.columns.iter().map(|column| quoted(&column.name)).collect();
        text.push_str(
            "# UNSURE: the first line looks like values, so the columns have numbers. Rename them here and below.\n",
        );
        writeln!(text, "columns = [{}]", names.join(", "))?;
    }
    if dialect.trim {
        text.push_str("trim = true                    # blanks surround the fields\n");
    }
    Ok(())
}

/// A TOML string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\t' => quoted.push_str("\\t"),
            control if control.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(control))),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// Text that cannot end the comment that it stands in.
fn comment(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use zagros_ingest::{ColumnFormat, RowSample, SampledColumn, SampledRows, ValueForm};
    use zagros_job::{Job, Overrides};

    use super::*;
    use crate::sketch;

    fn checked(rows: SampledRows, is_spread: bool, label: Option<&str>) -> String {
        let sample = RowSample { files: 1, is_whole: is_spread, is_spread, rows };
        let text = job_text(&sketch(sample, label).unwrap(), Path::new("rows.csv"));
        if let Err(errors) = Job::parse(&text, Path::new("job.toml"), &Overrides::default()) {
            panic!("{errors:?}\n{text}");
        }
        text
    }

    fn job(data: &str, label: Option<&str>) -> String {
        checked(SampledRows::Lines(data.lines().map(str::to_owned).collect()), true, label)
    }

    fn rows() -> String {
        let mut data = String::from("clicked,user_id,genres,year,timestamp,day\n");
        for row in 0..40 {
            let (label, user, genre) = (row % 2, row % 7, ["a|b", "b", "c|a", "a|b|c", "b|a"][row % 5]);
            data += &format!(
                "{label},{user},{genre},{},{},2026-11-{:02}\n",
                1990 + row % 9,
                964_982_224 + row,
                1 + row % 28
            );
        }
        data
    }

    #[test]
    fn a_csv_with_a_header_becomes_a_valid_job_that_holds_out_the_newest_rows() {
        let text = job(&rows(), None);
        for part in [
            r#"label = { column = "clicked", positive = ["1"], negative = ["0"] }"#,
            r#"{ column = "genres", dim = 4, separator = "|", pooling = "mean" },  # 3 values"#,
            "time_column = \"timestamp\"",
            "validation_from = 964982256  # about 10.0 %",
            "test_from = 964982260  # about 10.0 %",
            "UNSURE: these columns are times as well: day",
            "# Not a feature: day, because it is a time",
            "# Not a feature: timestamp, because it is a time",
        ] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
    }

    #[test]
    fn the_start_of_a_file_does_not_say_what_is_new() {
        let lines = rows().lines().map(str::to_owned).collect();
        let text = checked(SampledRows::Lines(lines), false, None);
        assert!(text.contains(r#"{ column = "timestamp", standardise = true }"#), "{text}");
        assert!(text.contains("test_fraction = 0.1") && text.contains("UNSURE: timestamp is a time"), "{text}");
    }

    #[test]
    fn a_csv_without_a_header_with_names_that_need_quotes_becomes_a_valid_job() {
        let data: String = (0..40)
            .map(|row| {
                format!("{}, {}, ?, {}\n", row % 5, ["x\\", "y\""][row % 2], [">50K", "<=50K", "<=50K"][row % 3])
            })
            .collect();
        let text = job(&data, Some("c4"));
        assert!(text.contains("header = false") && text.contains("trim = true"), "{text}");
        assert!(text.contains(r#"missing = ["?"]"#) && text.contains("UNSURE: the rarer text"), "{text}");
        assert!(text.contains("# Not a feature: c3, because it has one value"), "{text}");
    }

    #[test]
    fn columns_with_types_become_a_valid_job() {
        let column = |name: &str, form, text: &dyn Fn(usize) -> String| SampledColumn {
            name: name.into(),
            form,
            texts: (0..40).map(text).collect(),
        };
        let columns = vec![
            column("paid", ValueForm::Bool, &|row| (row % 3 == 0).to_string()),
            column("user.id", ValueForm::Number, &|row| (row % 7).to_string()),
            column("tags", ValueForm::List, &|row| format!("t{}\u{1f}t{}", row % 4, row % 3)),
            column("price", ValueForm::Number, &|row| if row == 3 { "NaN".into() } else { format!("{}.5", row % 30) }),
            column("at", ValueForm::Time, &|row| format!("2026-11-23 00:{row:02}:00")),
        ];
        for format in [ColumnFormat::Parquet, ColumnFormat::Jsonl] {
            let unusable = vec![("blob".to_owned(), "it is compressed with LZO".to_owned())];
            let text = checked(SampledRows::Columns { format, columns: columns.clone(), unusable }, true, Some("paid"));
            for part in [
                r#"label = { column = "paid", positive = ["true"], negative = ["false"] }"#,
                r#"{ column = "tags", dim = 4, pooling = "mean" }"#,
                r#"{ column = "user.id", dim = 8 }"#,
                r#"missing = ["NaN"]"#,
                r#"test_from = "2026-11-23 00:36:00""#,
                "# Not a feature: blob, because the trainer cannot read it: it is compressed with LZO.",
            ] {
                assert!(text.contains(part), "no {part} in\n{text}");
            }
        }
    }

    #[test]
    fn integers_that_may_be_ids_are_in_both_lists() {
        let rows = (0..2_000).map(|row| format!("{},{},{}.5,{}\n", row % 2, 1_000 + row % 200, row, row % 150));
        let text = job(&format!("clicked,C14,price,item\n{}", rows.collect::<String>()), None);
        for part in [
            "{ column = \"C14\", standardise = true },\n",
            "{ column = \"C14\", dim = 32 },",
            "{ column = \"item\", dim = 32 },",
            "# UNSURE: amounts or ids? In both lists, here and below: C14.",
        ] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
        assert!(!text.contains("\"item\", standardise"), "{text}");
    }

    #[test]
    fn criteos_lines_are_recognised() {
        let row = |label: usize| format!("{label}{}{}\n", "\t-1".repeat(13), "\t68fd1e64".repeat(26));
        let data: String = (0..20).map(|line| row(line % 2)).collect();
        assert!(job(&data, None).contains("format = \"criteo\""));
    }
}
