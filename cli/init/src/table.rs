//! A sample as columns of texts, whatever its format.

use zagros_ingest::{ColumnFormat, RowSample, SampledRows, ValueForm, criteo_columns};
use zagros_zip::ZipEq;

use crate::InitError;
use crate::dialect::{DividedLines, TextDialect};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataLayout {
    Delimited(TextDialect),
    Criteo,
    Parquet,
    Arrow,
    Jsonl,
}

#[derive(Debug)]
pub(crate) struct SampleTable {
    pub(crate) layout: DataLayout,
    pub(crate) columns: Vec<TableColumn>,
    pub(crate) rows: usize,
    /// Columns that the trainer cannot read, and why.
    pub(crate) unusable: Vec<(String, String)>,
}

#[derive(Debug)]
pub(crate) struct TableColumn {
    pub(crate) name: String,
    pub(crate) form: ValueForm,
    pub(crate) texts: Vec<String>,
}

impl SampleTable {
    pub(crate) fn from_sample(sample: RowSample) -> Result<Self, InitError> {
        match sample.rows {
            SampledRows::Lines(lines) => Self::of_lines(&lines),
            SampledRows::Columns { format, columns, unusable } => {
                let layout = match format {
                    ColumnFormat::Parquet => DataLayout::Parquet,
                    ColumnFormat::Arrow => DataLayout::Arrow,
                    ColumnFormat::Jsonl => DataLayout::Jsonl,
                };
                let rows = columns.first().map_or(0, |column| column.texts.len());
                let columns = columns.into_iter().map(|column| TableColumn {
                    name: column.name,
                    form: column.form,
                    texts: column.texts,
                });
                Ok(Self { layout, columns: columns.collect(), rows, unusable })
            }
        }
    }

    fn of_lines(lines: &[String]) -> Result<Self, InitError> {
        let DividedLines { dialect, names, rows } = DividedLines::from_lines(lines)?;
        let is_criteo = is_criteo(&dialect, &rows);
        let names = if is_criteo { criteo_columns() } else { names };
        let mut columns: Vec<TableColumn> =
            names.into_iter().map(|name| TableColumn { name, form: ValueForm::Text, texts: Vec::new() }).collect();
        let count = rows.len();
        for row in rows {
            for (column, text) in columns.iter_mut().zip_eq(row) {
                column.texts.push(text);
            }
        }
        let layout = if is_criteo { DataLayout::Criteo } else { DataLayout::Delimited(dialect) };
        Ok(Self { layout, columns, rows: count, unusable: Vec::new() })
    }
}

/// Whether lines are Criteo's: a label, 13 integers, 26 categories of 8 hexadecimal digits; any but the label may be empty.
fn is_criteo(dialect: &TextDialect, rows: &[Vec<String>]) -> bool {
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
