//! All that is known of the data.

use zagros_ingest::RowSample;

use crate::column::Known;
use crate::history::histories;
use crate::table::{Table, TableColumn};
use crate::{Column, ColumnKind, Dialect, InitError, Label, Layout, NewestParts};

/// Rows that are needed at least.
const MIN_ROWS: usize = 10;

/// All that is known of the data.
#[derive(Clone, Debug)]
pub struct Sketch {
    /// How the data is written.
    pub layout: Layout,
    /// The columns.
    pub columns: Vec<Column>,
    /// Columns that the trainer cannot read, and why.
    pub unusable: Vec<(String, String)>,
    /// The column that is learned.
    pub label: Label,
    /// Places of columns of several values, and of the column of one value whose values they hold.
    pub histories: Vec<(usize, usize)>,
    /// The newest rows, where a column says when each row was.
    pub newest: Option<NewestParts>,
    /// Rows of the sample.
    pub rows: usize,
    /// Files of the data.
    pub files: usize,
    /// Whether the sample has all rows.
    pub is_whole: bool,
    /// Whether the rows of the sample come from all parts of the data.
    pub is_spread: bool,
}

/// Infers what the data is. `label` is the column that the user names.
///
/// # Errors
/// When the sample is no table, or nothing in it can be learned.
pub fn sketch(sample: RowSample, label: Option<&str>) -> Result<Sketch, InitError> {
    let RowSample { files, is_whole, is_spread, .. } = sample;
    let Table { mut layout, columns: texts, rows, unusable } = Table::of(sample)?;
    if rows < MIN_ROWS {
        return Err(InitError::TooFewRows { rows, needed: MIN_ROWS });
    }
    if layout == Layout::Criteo && label.is_some() {
        layout = Layout::Delimited(Dialect::of_criteo());
    }
    let separator = if let Layout::Delimited(dialect) = &layout { Some(dialect.separator) } else { None };
    let column = |column: &TableColumn| {
        let values: Vec<&str> = column.texts.iter().map(String::as_str).collect();
        Column::of(&column.name, &values, Known { form: column.form, separator, is_whole })
    };
    let columns: Vec<Column> = texts.iter().map(column).collect();
    let named = if layout == Layout::Criteo { Some(columns[0].name.clone()) } else { label.map(str::to_owned) };
    let label = Label::choose(&columns, named.as_deref())?;
    // A part of the data that is its start says nothing of what is new.
    let newest = NewestParts::of(&columns, &texts, label.column).filter(|_| is_spread && layout != Layout::Criteo);
    let histories = histories(&columns, &texts, label.column);
    let sketch = Sketch { layout, columns, unusable, label, histories, newest, rows, files, is_whole, is_spread };
    if sketch.categories().next().is_none() && sketch.layout != Layout::Criteo {
        return Err(InitError::NoFeature { label: sketch.columns[sketch.label.column].name.clone() });
    }
    Ok(sketch)
}

impl Sketch {
    /// Columns other than the label.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = &Column> {
        self.columns.iter().enumerate().filter(|(at, _)| *at != self.label.column).map(|(_, column)| column)
    }

    /// Columns that become categorical features.
    pub(crate) fn categories(&self) -> impl Iterator<Item = &Column> {
        self.inputs().filter(|column| {
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
