//! All that is known of the data.

use zagros_ingest::RowSample;

use crate::column::{ColumnHints, is_missing};
use crate::decimals::with_points;
use crate::history::related_histories;
use crate::leaks::{LabelLeak, find_leaks};
use crate::table::{SampleTable, TableColumn};
use crate::{Column, ColumnKind, DataLayout, InitError, LabelColumn, NewestParts, TextDialect};

const MIN_ROWS: usize = 10;

#[derive(Clone, Debug)]
pub struct Sketch {
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
pub fn infer_sketch(sample: RowSample, label: Option<&str>) -> Result<Sketch, InitError> {
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
    let column = |column: &TableColumn| {
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
    let has_others = sketch.categorical_columns().next().is_some();
    sketch.keeps_leaks = !has_others;
    if sketch.categorical_columns().next().is_none() {
        return Err(InitError::NoFeature { label: sketch.columns[sketch.label.column].name.clone() });
    }
    Ok(sketch)
}

impl Sketch {
    /// What the user should hear besides the job: what may be wrong in the data.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
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
