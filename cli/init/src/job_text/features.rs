//! `[features]` of a sketch.

use std::fmt::{self, Write};

use super::{comment, quoted};
use crate::ids::is_either;
use crate::{Column, ColumnKind, Layout, Sketch, TimeForm};

/// Values per row of a table with this many rows: fastai's rule, 1.6 n^0.56, here as a power of two from 4 to 64.
fn dim(rows: usize) -> usize {
    let rule = (1.6 * (rows as f64).powf(0.56)).round() as usize;
    rule.clamp(4, 64).next_power_of_two().min(64)
}

pub(super) fn write_label(text: &mut String, sketch: &Sketch) -> fmt::Result {
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
    if sketch.layout == Layout::Criteo {
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

pub(super) fn write_numeric(text: &mut String, sketch: &Sketch) -> fmt::Result {
    text.push_str(
        "# `standardise` measures mean and deviation before training; `log` tames long tails.\nnumeric = [\n",
    );
    for column in sketch.inputs() {
        let log = match column.kind {
            ColumnKind::Number { has_tail: true, .. } => "log = true, ",
            ColumnKind::Number { .. } => "",
            // Rows to come would have values that were never trained on.
            ColumnKind::Time(TimeForm::EpochSeconds | TimeForm::EpochMillis) if sketch.newest.is_none() => "",
            _ => continue,
        };
        writeln!(text, "    {{ column = {}, {log}standardise = true }},", quoted(&column.name))?;
    }
    text.push_str("]\n");
    write_either(text, sketch)
}

/// Integers that may be ids, though their names do not say so: they are in both lists.
fn write_either(text: &mut String, sketch: &Sketch) -> fmt::Result {
    let is_either = |column: &&Column| {
        matches!(column.kind, ColumnKind::Number { is_category: true, .. }) && is_either(column.distinct)
    };
    let names: Vec<String> = sketch.inputs().filter(is_either).map(|column| comment(&column.name)).collect();
    if names.is_empty() {
        return Ok(());
    }
    let names = names.join(", ");
    writeln!(
        text,
        "# UNSURE: amounts or ids? In both lists, here and below: {names}. If they are ids, remove them here."
    )
}

pub(super) fn write_categorical(text: &mut String, sketch: &Sketch) -> fmt::Result {
    text.push_str("# dim: 1.6 n^0.56 for n values, as a power of two from 4 to 64.\ncategorical = [\n");
    for column in sketch.categories() {
        let separator = match column.kind {
            ColumnKind::MultiValued(inner) => {
                format!(", separator = {}, pooling = \"mean\"", quoted(&inner.to_string()))
            }
            ColumnKind::List => ", pooling = \"mean\"".to_owned(),
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

pub(super) fn write_dropped(text: &mut String, sketch: &Sketch) -> fmt::Result {
    for column in sketch.inputs() {
        let why = match column.kind {
            ColumnKind::Constant => "it has one value",
            ColumnKind::RowName => "it differs in nearly every row",
            ColumnKind::Time(TimeForm::EpochSeconds | TimeForm::EpochMillis) if sketch.newest.is_none() => continue,
            ColumnKind::Time(_) => "it is a time, and rows to come have later ones",
            _ => continue,
        };
        writeln!(text, "# Not a feature: {}, because {why}.", comment(&column.name))?;
    }
    for (name, why) in &sketch.unusable {
        writeln!(text, "# Not a feature: {}, because the trainer cannot read it: {}.", comment(name), comment(why))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dims_grow_with_the_number_of_values() {
        assert_eq!([2, 10, 100, 1_000_000].map(dim), [4, 8, 32, 64]);
    }
}
