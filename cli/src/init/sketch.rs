//! All that is known of the data.

use std::collections::HashSet;

use zagros_ingest::{LIST_SEPARATOR, RowSample, SampledColumn};

use crate::init::column::{ColumnHints, is_missing};
use crate::init::leaks::{LabelLeak, find_leaks};
use crate::init::table::{SampleTable, with_points};
use crate::init::{Column, ColumnKind, DataLayout, InitError, LabelColumn, NewestParts, TextDialect};

const MIN_ROWS: usize = 10;

#[derive(Clone, Debug)]
pub(crate) struct Sketch {
    pub layout: DataLayout,
    pub columns: Vec<Column>,
    /// Columns that the trainer cannot read, and why.
    pub unusable: Vec<(String, String)>,
    pub label: LabelColumn,
    pub leaks: Vec<LabelLeak>,
    /// Whether these columns are features, because there would be none without them.
    pub keeps_leaks: bool,
    /// Places of columns of several values, and of the column of one value whose values they hold.
    pub histories: Vec<(usize, usize)>,
    /// The newest rows, where a column says when each row was.
    pub newest: Option<NewestParts>,
    pub rows: usize,
    pub files: usize,
    /// Whether the sample has all rows.
    pub is_whole: bool,
    /// Whether the rows of the sample come from all parts of the data.
    pub is_spread: bool,
}

/// Infers what the data is. `label` is the column that the user names.
pub(crate) fn infer_sketch(sample: RowSample, label: Option<&str>) -> Result<Sketch, InitError> {
    let RowSample { files, is_whole, is_spread, names, .. } = &sample;
    let (files, is_whole, is_spread, names) = (*files, *is_whole, *is_spread, names.clone());
    let SampleTable { mut layout, columns: mut texts, rows, unusable } =
        SampleTable::from_sample(sample).map_err(|error| error.of_files(&names))?;
    if rows < MIN_ROWS {
        return Err(InitError::TooFewRows { rows, needed: MIN_ROWS });
    }
    if layout == DataLayout::Criteo && label.is_some() {
        layout = DataLayout::Delimited(TextDialect::of_criteo());
    }
    if let DataLayout::Delimited(dialect) = &mut layout {
        dialect.decimal_comma = dialect.separator != ',' && with_points(&mut texts, is_missing);
    }
    let separator = if let DataLayout::Delimited(dialect) = &layout { Some(dialect.separator) } else { None };
    let column = |column: &SampledColumn| {
        let values: Vec<&str> = column.texts.iter().map(String::as_str).collect();
        Column::infer(&column.name, &values, ColumnHints { form: column.form, separator, is_whole })
    };
    let columns: Vec<Column> = texts.iter().map(column).collect();
    let label = LabelColumn::choose(&columns, label)?;
    // A part of the data that is its start says nothing of what is new.
    let newest = NewestParts::find(&columns, &texts, label.column).filter(|_| is_spread);
    let histories = related_histories(&columns, &texts, label.column);
    let leaks = find_leaks(&columns, &texts, &label);
    let keeps_leaks = false;
    let mut sketch = Sketch {
        layout,
        columns,
        unusable,
        label,
        leaks,
        keeps_leaks,
        histories,
        newest,
        rows,
        files,
        is_whole,
        is_spread,
    };
    let has_no_category = sketch.categorical_columns().next().is_none();
    sketch.keeps_leaks = has_no_category;
    if sketch.categorical_columns().next().is_none() {
        return Err(InitError::NoFeature { label: sketch.columns[sketch.label.column].name.clone() });
    }
    Ok(sketch)
}

impl Sketch {
    /// What the user should hear besides the job: what may be wrong in the data.
    #[must_use]
    pub(crate) fn warnings(&self) -> Vec<String> {
        let label = &self.columns[self.label.column].name;
        let what = if self.keeps_leaks { "without it there is no feature" } else { "it is no feature of this job" };
        let warning = |(column, leak): (&Column, &LabelLeak)| {
            let (name, rows) = (&column.name, leak.row_share());
            format!(
                "column {name:?} alone tells {label:?} in {rows}, as a column does that is written after it; {what}"
            )
        };
        self.leaking_columns().map(warning).collect()
    }

    /// Columns that may be features: neither the label nor one that tells it.
    pub(crate) fn feature_columns(&self) -> impl Iterator<Item = &Column> {
        let is_input = |at: &usize| {
            *at != self.label.column && (self.keeps_leaks || self.leaks.iter().all(|leak| leak.column != *at))
        };
        self.columns.iter().enumerate().filter(move |(at, _)| is_input(at)).map(|(_, column)| column)
    }

    pub(crate) fn leaking_columns(&self) -> impl Iterator<Item = (&Column, &LabelLeak)> {
        self.leaks.iter().map(|leak| (&self.columns[leak.column], leak))
    }

    pub(crate) fn categorical_columns(&self) -> impl Iterator<Item = &Column> {
        self.feature_columns().filter(|column| {
            matches!(
                column.kind,
                ColumnKind::Category
                    | ColumnKind::MultiValued(_)
                    | ColumnKind::List
                    | ColumnKind::Number { is_category: true, .. }
            )
        })
    }
}

/// Share of the values of the other column that must be among the parts.
const MIN_SHARED: f64 = 0.5;

/// Distinct values that the other column must have: columns of few values share some by chance.
const MIN_VALUES: usize = 20;

/// Places of columns of several values, and of the column of one value whose values they hold: the items that a user saw
/// before, and the item of the row.
fn related_histories(columns: &[Column], texts: &[SampledColumn], label: usize) -> Vec<(usize, usize)> {
    let inner = |column: &Column| match column.kind {
        ColumnKind::MultiValued(inner) => Some(inner),
        ColumnKind::List => Some(LIST_SEPARATOR),
        _ => None,
    };
    let mut found = Vec::new();
    for (history, inner) in columns.iter().enumerate().filter_map(|(at, column)| Some((at, inner(column)?))) {
        let parts: HashSet<&str> = texts[history].texts.iter().flat_map(|text| text.split(inner)).collect();
        let holds = |at: &usize| {
            let column = &columns[*at];
            let is_one = matches!(column.kind, ColumnKind::Category | ColumnKind::Number { is_category: true, .. });
            *at != label && is_one && column.distinct >= MIN_VALUES && shared(&texts[*at], &parts) >= MIN_SHARED
        };
        found.extend((0..columns.len()).find(holds).map(|of| (history, of)));
    }
    found
}

fn shared(column: &SampledColumn, parts: &HashSet<&str>) -> f64 {
    let values: HashSet<&str> = column.texts.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
    values.iter().filter(|value| parts.contains(*value)).count() as f64 / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::column::tests::infer_columns;

    fn find_histories(columns: &[(&str, &dyn Fn(usize) -> String)]) -> Vec<(usize, usize)> {
        let columns: Vec<(&str, Vec<String>)> =
            columns.iter().map(|(name, text)| (*name, (0..200).map(text).collect())).collect();
        let (texts, columns) = infer_columns(&columns);
        related_histories(&columns, &texts, 0)
    }

    #[test]
    fn a_column_that_holds_values_of_another_one_is_its_history() {
        let item = |row: usize| format!("m{}", row * 7 % 40);
        let seen = |row: usize| format!("m{}|m{}|m{}", row % 40, row * 3 % 40, row * 11 % 40);
        let genres = |row: usize| format!("g{}|g{}", row % 5, row % 3);
        let click = |row: usize| (row % 2).to_string();
        let found = find_histories(&[("click", &click), ("item", &item), ("seen", &seen), ("genres", &genres)]);
        assert_eq!(found, [(2, 1)]);
        assert_eq!(find_histories(&[("click", &click), ("item", &item), ("genres", &genres)]), []);
    }
}
