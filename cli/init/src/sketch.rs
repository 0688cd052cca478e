//! All that is known of the data.

use crate::dialect::Table;
use crate::{Column, ColumnKind, Dialect, InitError, Label, Sample};

/// Rows that are needed at least.
const MIN_ROWS: usize = 10;

/// All that is known of the data.
#[derive(Clone, Debug)]
pub struct Sketch {
    /// How lines are divided.
    pub dialect: Dialect,
    /// Whether the lines are Criteo's.
    pub is_criteo: bool,
    /// The columns.
    pub columns: Vec<Column>,
    /// The column that is learned.
    pub label: Label,
    /// Rows of the sample.
    pub rows: usize,
    /// Whether the sample is the whole file.
    pub is_whole: bool,
    /// Whether lines that start with `#` are comments.
    pub has_comments: bool,
}

/// Infers what the data is. `label` is the column that the user names.
///
/// # Errors
/// When the sample is no table, or nothing in it can be learned.
pub fn sketch(sample: &Sample, label: Option<&str>) -> Result<Sketch, InitError> {
    if sample.lines.len() < MIN_ROWS {
        return Err(InitError::TooFewRows { rows: sample.lines.len(), needed: MIN_ROWS });
    }
    let Table { dialect, names, rows } = Table::infer(&sample.lines)?;
    let column = |(at, name): (usize, &String)| {
        let values: Vec<&str> = rows.iter().map(|row| row[at].as_str()).collect();
        Column::of(name, &values, dialect.separator, sample.is_whole)
    };
    let columns: Vec<Column> = names.iter().enumerate().map(column).collect();
    let is_criteo = is_criteo(&dialect, &rows) && label.is_none();
    let named = if is_criteo { Some(names[0].as_str()) } else { label };
    let label = Label::choose(&columns, named)?;
    let sketch = Sketch {
        dialect,
        is_criteo,
        columns,
        label,
        rows: rows.len(),
        is_whole: sample.is_whole,
        has_comments: sample.has_comments,
    };
    if sketch.categories().next().is_none() && !is_criteo {
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
                ColumnKind::Category | ColumnKind::MultiValued(_) | ColumnKind::Number { is_category: true, .. }
            )
        })
    }
}

/// Whether lines are Criteo's: a label, 13 integers, 26 categories of 8 hexadecimal digits; any but the label may be empty.
fn is_criteo(dialect: &Dialect, rows: &[Vec<String>]) -> bool {
    let is_label = |text: &str| text == "0" || text == "1";
    let is_integer = |text: &String| text.is_empty() || text.parse::<i64>().is_ok();
    let is_hash =
        |text: &String| text.is_empty() || text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    dialect.separator == '\t'
        && dialect.fields == 40
        && !dialect.header
        && rows
            .iter()
            .all(|row| is_label(&row[0]) && row[1..14].iter().all(is_integer) && row[14..].iter().all(is_hash))
}
