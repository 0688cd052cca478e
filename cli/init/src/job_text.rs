//! The job file of a sketch.

use std::fmt::{self, Write};
use std::path::Path;

use crate::{Column, ColumnKind, Sketch, TimeForm};

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

/// Values per row of a table with this many rows: fastai's rule, 1.6 n^0.56, here as a power of two from 4 to 64.
fn dim(rows: usize) -> usize {
    let rule = (1.6 * (rows as f64).powf(0.56)).round() as usize;
    rule.clamp(4, 64).next_power_of_two().min(64)
}

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
    if !sketch.is_criteo {
        write_numeric(text, sketch)?;
        write_categorical(text, sketch)?;
        write_dropped(text, sketch)?;
    }
    text.push_str(END);
    Ok(())
}

fn write_head(text: &mut String, sketch: &Sketch) -> fmt::Result {
    let part = if sketch.is_whole { "all" } else { "the first" };
    writeln!(
        text,
        "# Written by `zagros init` from {part} {} rows. Lines with UNSURE are guesses: check them.",
        sketch.rows
    )?;
    text.push_str("# docs/job-file.md describes every key.\n");
    Ok(())
}

fn write_data(text: &mut String, sketch: &Sketch, data: &Path) -> fmt::Result {
    let format = if sketch.is_criteo { "criteo" } else { "delimited" };
    writeln!(text, "\n[data]\nformat = {format:?}\ntrain = {}", quoted(&data.to_string_lossy()))?;
    text.push_str("test_fraction = 0.1            # rows that a hash chooses; or `test = \"FILE\"`\n");
    text.push_str("validation_share = 0.1         # decides when to stop\n");
    text.push_str("shuffle_rows = 100_000         # files are often sorted; a batch should not be\n");
    if sketch.has_comments {
        text.push_str("comment = \"#\"\n");
    }
    for column in sketch.inputs() {
        if let ColumnKind::Time(_) = column.kind {
            writeln!(
                text,
                "# UNSURE: {} is a time, and both parts are random. Scores of days to come are often lower: to see",
                comment(&column.name)
            )?;
            text.push_str("# them, put the newest rows into a file of their own, and name it as `test` in place of `test_fraction`.\n");
        }
    }
    if sketch.dialect.ragged > 0 {
        writeln!(
            text,
            "# UNSURE: {} rows of the sample do not have {} fields and stop the run, unless this is raised:\nmax_bad_rows = 0",
            sketch.dialect.ragged, sketch.dialect.fields
        )?;
    }
    if sketch.is_criteo {
        return Ok(());
    }
    writeln!(text, "delimiter = {}", quoted(&sketch.dialect.separator.to_string()))?;
    writeln!(text, "header = {}", sketch.dialect.header)?;
    if !sketch.dialect.header {
        let names: Vec<String> = sketch.columns.iter().map(|column| quoted(&column.name)).collect();
        writeln!(
            text,
            "# UNSURE: the first line looks like values, so the columns have numbers. Rename them here and below."
        )?;
        writeln!(text, "columns = [{}]", names.join(", "))?;
    }
    if sketch.dialect.trim {
        text.push_str("trim = true                    # blanks surround the fields\n");
    }
    let mut missing: Vec<&str> = sketch.columns.iter().flat_map(|column| column.missing.iter().copied()).collect();
    missing.sort_unstable();
    missing.dedup();
    if !missing.is_empty() {
        let marks: Vec<String> = missing.into_iter().map(quoted).collect();
        writeln!(text, "missing = [{}]", marks.join(", "))?;
    }
    Ok(())
}

fn write_label(text: &mut String, sketch: &Sketch) -> fmt::Result {
    let (label, column) = (&sketch.label, &sketch.columns[sketch.label.column]);
    let share = label.positive_rows as f64 / sketch.rows as f64;
    writeln!(text, "\n[features]\n# {:.1} % of the sample's rows are positive.", 100.0 * share)?;
    if !label.other_candidates.is_empty() {
        let others = comment(&label.other_candidates.join(", "));
        writeln!(text, "# UNSURE: these columns have two values as well: {others}. `--label COLUMN` chooses.")?;
    }
    if label.is_value_guessed {
        text.push_str("# UNSURE: the rarer text is taken as positive.\n");
    }
    if sketch.is_criteo {
        return Ok(());
    }
    writeln!(
        text,
        "label = {{ column = {}, positive = [{}], negative = [{}] }}",
        quoted(&column.name),
        quoted(&label.positive),
        quoted(&label.negative)
    )
}

fn write_numeric(text: &mut String, sketch: &Sketch) -> fmt::Result {
    text.push_str(
        "# `standardise` measures mean and deviation before training; `log` tames long tails.\nnumeric = [\n",
    );
    for column in sketch.inputs() {
        let log = match column.kind {
            ColumnKind::Number { has_tail: true, .. } => "log = true, ",
            ColumnKind::Number { .. } | ColumnKind::Time(TimeForm::EpochSeconds | TimeForm::EpochMillis) => "",
            _ => continue,
        };
        writeln!(text, "    {{ column = {}, {log}standardise = true }},", quoted(&column.name))?;
    }
    text.push_str("]\n");
    Ok(())
}

fn write_categorical(text: &mut String, sketch: &Sketch) -> fmt::Result {
    text.push_str("# dim: 1.6 n^0.56 for n values, as a power of two from 4 to 64.\ncategorical = [\n");
    for column in sketch.categories() {
        let separator = match column.kind {
            ColumnKind::MultiValued(inner) => {
                format!(", separator = {}, pooling = \"mean\"", quoted(&inner.to_string()))
            }
            _ => String::new(),
        };
        let name = quoted(&column.name);
        writeln!(text, "    {{ column = {name}, dim = {}{separator} }},  # {}", dim(column.estimated), count(column))?;
    }
    text.push_str("]\n");
    Ok(())
}

fn count(column: &Column) -> String {
    if column.estimated > column.distinct {
        format!("{} values in the sample, at least about {} in all", column.distinct, column.estimated)
    } else {
        format!("{} values", column.distinct)
    }
}

fn write_dropped(text: &mut String, sketch: &Sketch) -> fmt::Result {
    for column in sketch.inputs() {
        let why = match column.kind {
            ColumnKind::Constant => "it has one value",
            ColumnKind::RowName => "it differs in nearly every row",
            ColumnKind::Time(TimeForm::Iso | TimeForm::DateHour) => "it is a date, and rows to come have later ones",
            _ => continue,
        };
        writeln!(text, "# Not a feature: {}, because {why}.", comment(&column.name))?;
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
    use zagros_job::{Job, Overrides};

    use super::*;
    use crate::{Sample, sketch};

    fn job(data: &str, label: Option<&str>) -> String {
        let text = job_text(&sketch(&Sample::of(data, true), label).unwrap(), Path::new("rows.csv"));
        if let Err(errors) = Job::parse(&text, Path::new("job.toml"), &Overrides::default()) {
            panic!("{errors:?}\n{text}");
        }
        text
    }

    #[test]
    fn dims_grow_with_the_number_of_values() {
        assert_eq!([2, 10, 100, 1_000_000].map(dim), [4, 8, 32, 64]);
    }

    #[test]
    fn a_csv_with_a_header_becomes_a_valid_job() {
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
        let text = job(&data, None);
        assert!(text.contains(r#"label = { column = "clicked", positive = ["1"], negative = ["0"] }"#), "{text}");
        assert!(
            text.contains(r#"{ column = "genres", dim = 4, separator = "|", pooling = "mean" },  # 3 values"#),
            "{text}"
        );
        assert!(text.contains(r#"{ column = "timestamp", standardise = true }"#), "{text}");
        assert!(text.contains("# Not a feature: day, because it is a date"), "{text}");
        assert!(text.contains("UNSURE: timestamp is a time"), "{text}");
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
    fn criteos_lines_are_recognised() {
        let row = |label: usize| format!("{label}{}{}\n", "\t-1".repeat(13), "\t68fd1e64".repeat(26));
        let data: String = (0..20).map(|line| row(line % 2)).collect();
        assert!(job(&data, None).contains("format = \"criteo\""));
    }
}
