//! The job file of a sketch.

mod features;

use std::path::Path;

use features::{write_categorical, write_dropped, write_history, write_label, write_numeric, write_weight};
use zagros_job::TimeBound;

use crate::init::{ColumnKind, DataLayout, LabelForm, NewestParts, Sketch, TextDialect};

/// The parts that are the same for all data.
const MODEL: &str = "
[embedding]
dim = 16                       # of tables that name no `dim`

[model]
";

/// Categorical features from which on crosses of them are worth a comparison (docs/adr/0006).
const MANY_CATEGORIES: usize = 8;

pub(crate) fn job_text(sketch: &Sketch, data: &Path) -> String {
    let mut text = String::new();
    write_head(&mut text, sketch);
    write_data(&mut text, sketch, data);
    write_label(&mut text, sketch);
    write_weight(&mut text, sketch);
    write_numeric(&mut text, sketch);
    write_history(&mut text, sketch);
    write_categorical(&mut text, sketch);
    write_dropped(&mut text, sketch);
    write_model(&mut text, sketch);
    text
}

fn write_model(text: &mut String, sketch: &Sketch) {
    let metric = match sketch.label.kind {
        LabelForm::Click { .. } => "auc",
        LabelForm::Classes { .. } => "logloss",
        LabelForm::Regression { .. } => "mse",
    };
    text.push_str(MODEL);
    if sketch.categorical_columns().count() >= MANY_CATEGORIES {
        text.push_str("# UNSURE: of many categories a network may learn more by crosses, `kind = \"dcnv2\"`, in more time. Compare the two.\n");
    }
    text.push_str("kind = \"ffnn\"                  # takes tables of any dims; other kinds: docs/models.md\n");
    text.push_str("hidden = [256, 128]\ndropout = 0.3\n");
    text.push_str("\n[train]\nbatch_size = 1024\nepochs = 20                    # at most\n");
    text.push_str(&format!(
        "early_stop = {{ metric = \"{metric}\", patience = 3 }}  # evaluations without a better one; the best state is saved\n"
    ));
}

fn write_head(text: &mut String, sketch: &Sketch) {
    let sample = &sketch.sample;
    let part = match (sample.is_whole, sample.is_spread) {
        (true, _) => "all",
        (false, true) => "a sample of",
        (false, false) => "the first",
    };
    let files = if sample.files > 1 { format!(" of {} files", sample.files) } else { String::new() };
    let rows = sample.row_count();
    text.push_str(&format!(
        "# Written by `zagros init` from {part} {rows} rows{files}. Lines with UNSURE are guesses: check them.\n"
    ));
    text.push_str("# docs/job-file.md describes every key.\n");
}

fn write_data(text: &mut String, sketch: &Sketch, data: &Path) {
    let format = match sketch.layout {
        DataLayout::Criteo => "criteo",
        DataLayout::Delimited(_) => "delimited",
        DataLayout::Columns(content) => content.format_name(),
    };
    text.push_str(&format!("\n[data]\nformat = {format:?}\ntrain = {}\n", quoted(&data.to_string_lossy())));
    match &sketch.newest {
        Some(newest) => write_newest(text, sketch, newest),
        None => write_shares(text, sketch),
    }
    text.push_str("shuffle_rows = 100_000         # files are often sorted; a batch should not be\n");
    if let DataLayout::Delimited(dialect) = &sketch.layout {
        write_dialect(text, sketch, dialect);
    }
    let mut missing: Vec<&str> = sketch.columns.iter().flat_map(|column| column.missing.iter().copied()).collect();
    missing.sort_unstable();
    missing.dedup();
    if !missing.is_empty() && sketch.layout != DataLayout::Criteo {
        let marks: Vec<String> = missing.into_iter().map(quoted).collect();
        text.push_str(&format!("missing = [{}]\n", marks.join(", ")));
    }
}

/// Parts by time: scores of the newest rows are what scores of rows to come will be.
fn write_newest(text: &mut String, sketch: &Sketch, newest: &NewestParts) {
    let name = &sketch.columns[newest.column].name;
    if newest.is_guess {
        text.push_str(&format!(
            "# UNSURE: {} is taken as the time of a row. If it is not, hold out random rows instead:\n",
            comment(name)
        ));
        text.push_str("# test_fraction = 0.1 and validation_share = 0.1 in place of the next three keys.\n");
    }
    if !newest.others.is_empty() {
        let others = comment(&newest.others.join(", "));
        text.push_str(&format!("# UNSURE: these columns are times as well: {others}.\n"));
    }
    let bound = |bound: &TimeBound| match bound {
        TimeBound::Number(number) => number.to_string(),
        TimeBound::Text(text) => quoted(text),
    };
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    text.push_str(&format!(
        "time_column = {}  # the newest rows are held out, because rows to come are newer still\n",
        quoted(name)
    ));
    let (validation, test) = (percent(newest.validation_share), percent(newest.test_share));
    text.push_str(&format!(
        "validation_from = {}  # about {validation} of the rows; decide when to stop\n",
        bound(&newest.validation_from)
    ));
    text.push_str(&format!(
        "test_from = {}  # about {test} of the rows; scored once, in the end\n",
        bound(&newest.test_from)
    ));
}

/// Random parts, and why they are not by time.
fn write_shares(text: &mut String, sketch: &Sketch) {
    text.push_str("test_fraction = 0.1            # rows that a hash chooses; or `test = \"FILE\"`\n");
    text.push_str("validation_share = 0.1         # decides when to stop\n");
    for column in sketch.feature_columns().filter(|column| matches!(column.kind, ColumnKind::Time(_))) {
        let name = comment(&column.name);
        if sketch.sample.is_spread {
            text.push_str(&format!(
                "# UNSURE: {name} is a time, but does not divide the rows into old and new ones; both parts are random.\n"
            ));
        } else {
            text.push_str(&format!(
                "# UNSURE: {name} is a time, and both parts are random: only the start of a compressed file was looked at, which does\n"
            ));
            text.push_str("# not say what is new. To score the newest rows, set `time_column`, `validation_from` and `test_from` instead.\n");
        }
    }
}

fn write_dialect(text: &mut String, sketch: &Sketch, dialect: &TextDialect) {
    if dialect.has_comments {
        text.push_str("comment = \"#\"\n");
    }
    if dialect.ragged > 0 {
        text.push_str(&format!(
            "# UNSURE: {} rows of the sample do not have {} fields and stop the run, unless this is raised:\nmax_bad_rows = 0\n",
            dialect.ragged, dialect.fields
        ));
    }
    text.push_str(&format!("delimiter = {}\n", quoted(&dialect.separator.to_string())));
    text.push_str(&format!("header = {}\n", dialect.header));
    if !dialect.header {
        let names: Vec<String> = sketch.columns.iter().map(|column| quoted(&column.name)).collect();
        text.push_str(
            "# UNSURE: the first line looks like values, so the columns have numbers. Rename them here and below.\n",
        );
        text.push_str(&format!("columns = [{}]\n", names.join(", ")));
    }
    if dialect.quoted_breaks {
        text.push_str("quoted_breaks = true           # quoted fields hold line breaks\n");
    }
    if dialect.decimal_comma {
        text.push_str("decimal = \",\"                  # 3,14 is a number\n");
    }
    if dialect.trim {
        text.push_str("trim = true                    # blanks surround the fields\n");
    }
}

/// A text as TOML, which has JSON's escapes, but allows no DEL.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007F")
}

/// Text that cannot end the comment that it stands in.
fn comment(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

#[cfg(test)]
mod tests;
