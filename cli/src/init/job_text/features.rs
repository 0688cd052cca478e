//! `[features]` of a sketch.

use super::{comment, quoted};
use crate::init::column::is_either;
use crate::init::{Column, ColumnKind, LabelForm, Sketch, TimeForm};

/// Names of columns that say how much a row counts.
const WEIGHTS: [&str; 5] = ["weight", "sample_weight", "instance_weight", "importance", "fnlwgt"];

/// Distinct values, below which a long tail costs nothing.
const MIN_TAIL: usize = 1_000;

/// Values per row of a table with this many rows: fastai's rule, 1.6 n^0.56, here as a power of two from 4 to 64.
fn dim(rows: usize) -> usize {
    let rule = (1.6 * (rows as f64).powf(0.56)).round() as usize;
    rule.clamp(4, 64).next_power_of_two().min(64)
}

pub(super) fn write_label(text: &mut String, sketch: &Sketch) {
    let (label, column) = (&sketch.label, &sketch.columns[sketch.label.column]);
    text.push_str("\n[features]\n");
    if let LabelForm::Click { positive_rows, .. } = label.kind {
        let share = positive_rows as f64 / sketch.sample.row_count() as f64;
        text.push_str(&format!("# {:.1} % of the sample's rows are positive.\n", 100.0 * share));
    }
    if !label.other_candidates.is_empty() {
        let others = comment(&label.other_candidates.join(", "));
        text.push_str(&format!(
            "# UNSURE: these columns could be the label as well: {others}. `--label COLUMN` chooses; what is known only\n"
        ));
        text.push_str("# after the label, as they may be, is no feature.\n");
    }
    let name = quoted(&column.name);
    match &label.kind {
        LabelForm::Click { positive, negative, is_value_guessed, .. } => {
            if *is_value_guessed {
                let are_numbers = positive.parse::<f64>().is_ok() && negative.parse::<f64>().is_ok();
                let which = if are_numbers { "larger number" } else { "rarer text" };
                text.push_str(&format!("# UNSURE: the {which} is taken as positive.\n"));
            }
            let (positive, negative) = (quoted(positive), quoted(negative));
            text.push_str(&format!(
                "label = {{ column = {name}, positive = [{positive}], negative = [{negative}] }}\n"
            ));
        }
        LabelForm::Classes { classes, are_numbers } => {
            if *are_numbers {
                text.push_str("# UNSURE: few whole numbers are taken as classes. As a number: kind = \"regression\" without `classes`,\n");
                text.push_str("# and early_stop = { metric = \"mse\", patience = 3 } below.\n");
            }
            if !sketch.sample.is_whole {
                text.push_str(
                    "# UNSURE: a class that is not in the sample is missing here, and its rows are malformed.\n",
                );
            }
            let classes: Vec<String> = classes.iter().map(|class| quoted(class)).collect();
            text.push_str(&format!(
                "label = {{ column = {name}, kind = \"classes\", classes = [{}] }}\n",
                classes.join(", ")
            ));
        }
        LabelForm::Regression { are_counts } => {
            if *are_counts {
                text.push_str(
                    "# UNSURE: whole numbers with a long tail. If they are counts, try loss = \"poisson\".\n",
                );
            }
            text.push_str(&format!("label = {{ column = {name}, kind = \"regression\", loss = \"mse\" }}\n"));
        }
    }
}

/// Columns by whose name a sample may count more than another one.
pub(super) fn write_weight(text: &mut String, sketch: &Sketch) {
    let is_weight = |column: &&Column| {
        let name = column.name.to_ascii_lowercase();
        matches!(column.kind, ColumnKind::Number { .. }) && WEIGHTS.contains(&name.as_str())
    };
    for column in sketch.feature_columns().filter(is_weight) {
        let (shown, name) = (comment(&column.name), quoted(&column.name));
        text.push_str(&format!(
            "# UNSURE: if {shown} says how much a row counts, it is no feature: remove it below, and set\n# weight = {}\n",
            comment(&name)
        ));
    }
}

/// What a row's earlier values would be to a network that looks at them one by one.
pub(super) fn write_history(text: &mut String, sketch: &Sketch) {
    for (history, of) in &sketch.histories {
        let [history, of] = [history, of].map(|at| comment(&sketch.columns[*at].name));
        text.push_str(&format!(
            "# UNSURE: {history} holds values of {of}. If they are earlier ones, in order, `sequence` and `kind = \"din\"` may learn more of them:\n# docs/models.md.\n"
        ));
    }
}

pub(super) fn write_numeric(text: &mut String, sketch: &Sketch) {
    text.push_str(
        "# `standardise` measures mean and deviation before training; `log` tames long tails.\nnumeric = [\n",
    );
    for column in sketch.feature_columns() {
        let log = match column.kind {
            ColumnKind::Number { has_tail: true, .. } => "log = true, ",
            ColumnKind::Number { .. } => "",
            // Rows to come would have values that were never trained on.
            ColumnKind::Time(TimeForm::Epoch) if sketch.newest.is_none() => "",
            _ => continue,
        };
        text.push_str(&format!("    {{ column = {}, {log}standardise = true }},\n", quoted(&column.name)));
    }
    text.push_str("]\n");
    write_either(text, sketch)
}

/// Integers that may be ids, though their names do not say so: they are in both lists.
fn write_either(text: &mut String, sketch: &Sketch) {
    let is_either = |column: &&Column| {
        matches!(column.kind, ColumnKind::Number { is_category: true, .. }) && is_either(column.distinct)
    };
    let names: Vec<String> = sketch.feature_columns().filter(is_either).map(|column| comment(&column.name)).collect();
    if names.is_empty() {
        return;
    }
    let names = names.join(", ");
    text.push_str(&format!(
        "# UNSURE: amounts or ids? In both lists, here and below: {names}. If they are ids, remove them here.\n"
    ));
}

pub(super) fn write_categorical(text: &mut String, sketch: &Sketch) {
    text.push_str("# dim: 1.6 n^0.56 for n values, as a power of two from 4 to 64.\ncategorical = [\n");
    for column in sketch.categorical_columns() {
        let separator = match column.kind {
            ColumnKind::MultiValued(inner) => {
                format!(", separator = {}, pooling = \"mean\"", quoted(&inner.to_string()))
            }
            ColumnKind::List => ", pooling = \"mean\"".to_owned(),
            _ => String::new(),
        };
        let name = quoted(&column.name);
        let rows = column.table_rows();
        text.push_str(&format!(
            "    {{ column = {name}, dim = {}{separator}{rows} }},  # {}\n",
            dim(column.estimated),
            count(column)
        ));
    }
    for (column, part) in
        sketch.feature_columns().flat_map(|column| column.date_parts.iter().map(move |part| (column, *part)))
    {
        let (name, feature) = (quoted(&column.name), quoted(&format!("{}_{part}", column.name)));
        text.push_str(&format!("    {{ column = {name}, name = {feature}, date = \"{part}\", dim = 4 }},\n"));
    }
    text.push_str("]\n");
    write_tails(text, sketch)
}

/// Columns most of whose values are rare: rows of values that came once are hardly learned.
fn write_tails(text: &mut String, sketch: &Sketch) {
    let has_tail = |column: &&Column| column.distinct >= MIN_TAIL && column.single * 2 > column.distinct;
    let names: Vec<String> =
        sketch.categorical_columns().filter(has_tail).map(|column| comment(&column.name)).collect();
    if names.is_empty() {
        return;
    }
    text.push_str(&format!(
        "# UNSURE: most values of these columns came once: {}. One row for all of them takes less memory, and may\n\
         # learn more or less: vocabulary = {{ min_count = 2 }}. Compare the two.\n",
        names.join(", ")
    ));
}

fn count(column: &Column) -> String {
    if column.estimated > column.distinct {
        format!("{} values in the sample, at least about {} in all", column.distinct, column.estimated)
    } else {
        format!("{} values", column.distinct)
    }
}

pub(super) fn write_dropped(text: &mut String, sketch: &Sketch) {
    for (column, leak) in sketch.leaking_columns() {
        let (name, quoted) = (comment(&column.name), comment(&quoted(&column.name)));
        let rows = leak.row_share();
        text.push_str(&format!(
            "# UNSURE: {name} alone tells the label in {rows}, as a column does that is written after it.\n"
        ));
        match sketch.keeps_leaks {
            true => {
                text.push_str(
                    "# Without it there would be no feature. Remove it if it is not known when a row is scored.\n",
                );
            }
            false => {
                text.push_str(&format!(
                    "# If it is known when a row is scored, it is a feature: {{ column = {quoted} }}.\n"
                ));
            }
        }
    }
    for column in sketch.feature_columns() {
        let why = match column.kind {
            ColumnKind::Constant => "it has one value",
            ColumnKind::RowName => "it differs in nearly every row",
            ColumnKind::Time(TimeForm::Epoch) if sketch.newest.is_none() => continue,
            ColumnKind::Time(_) if column.date_parts.is_empty() => "it is a time, and rows to come have later ones",
            ColumnKind::Time(_) => "it is a time, and rows to come have later ones; its parts are features",
            _ => continue,
        };
        text.push_str(&format!("# Not a feature: {}, because {why}.\n", comment(&column.name)));
    }
    for (name, why) in &sketch.sample.unusable {
        text.push_str(&format!(
            "# Not a feature: {}, because the trainer cannot read it: {}.\n",
            comment(name),
            comment(why)
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dims_grow_with_the_number_of_values() {
        assert_eq!([2, 10, 100, 1_000_000].map(dim), [4, 8, 32, 64]);
    }
}
