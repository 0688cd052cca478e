//! Columns of Parquet and Arrow files.

use std::path::Path;

use super::{PLACES, RowSample, SampleLimits, SampledColumn, SampledRows, ValueForm, shortened, spread_indices};
use crate::IngestError;
use crate::columnar::ColumnFile;
use crate::columnar::groups::{RowGroups, RowSlice, UsedColumn};
use crate::columnar::kind::ValueKind;
use crate::columnar::texts::column_texts;
use crate::formats::DataContent;

/// Columns of all files. The first file says which there are.
pub(super) fn sample_rows(files: &[&Path], format: DataContent, each: SampleLimits) -> Result<RowSample, IngestError> {
    let (mut columns, mut unusable, mut is_whole) = (Vec::new(), Vec::new(), true);
    for (index, path) in files.iter().enumerate() {
        let Some(footer) = ColumnFile::open(path, format).transpose()? else { continue };
        if index == 0 {
            (columns, unusable) = usable_columns(&footer, path);
        }
        let positions = columns.iter().map(|column: &SampledColumn| column_position(&footer, path, &column.name));
        let positions = positions.collect::<Result<Vec<_>, _>>()?;
        let row_groups = footer.row_groups(path, positions)?;
        let slices = sampled_slices(&row_groups, each.rows);
        let rows: u64 = row_groups.groups.iter().map(|group| group.rows).sum();
        is_whole &= slices.iter().map(|slice| slice.rows as u64).sum::<u64>() == rows;
        for (index, column) in columns.iter_mut().enumerate() {
            column_texts(path, &row_groups, index, &slices, |text| column.texts.push(shortened(text)))?;
        }
    }
    let rows = SampledRows::Columns { format, columns, unusable };
    Ok(RowSample { files: files.len(), names: Vec::new(), is_whole, is_spread: true, rows })
}

/// The columns that the trainer can read, without rows, and the others with the reason.
fn usable_columns(footer: &ColumnFile, path: &Path) -> (Vec<SampledColumn>, Vec<(String, String)>) {
    let (mut columns, mut unusable) = (Vec::new(), Vec::new());
    let names = footer.column_names();
    for (position, name) in names.iter().enumerate() {
        if names.iter().filter(|other| *other == name).count() > 1 {
            unusable.push((name.clone(), "two columns have this name".to_owned()));
            continue;
        }
        match footer.row_groups(path, [position]) {
            Ok(found) => {
                let form = found.columns.first().map_or(ValueForm::Text, value_form);
                columns.push(SampledColumn { name: name.clone(), form, texts: Vec::new() });
            }
            Err(IngestError::UnusableColumn { reason, .. } | IngestError::DamagedColumn { reason, .. }) => {
                unusable.push((name.clone(), reason));
            }
            Err(error) => unusable.push((name.clone(), error.to_string())),
        }
    }
    (columns, unusable)
}

fn column_position(footer: &ColumnFile, path: &Path, name: &String) -> Result<usize, IngestError> {
    footer.column_names().iter().position(|other| other == name).ok_or_else(|| IngestError::MissingColumn {
        path: path.into(),
        column: name.clone(),
        similar: None,
        found: footer.column_names().to_vec(),
    })
}

fn value_form(column: &UsedColumn) -> ValueForm {
    if column.is_list() {
        return ValueForm::List;
    }
    match column.kind {
        ValueKind::Bool => ValueForm::Bool,
        ValueKind::Integer
        | ValueKind::Unsigned(_)
        | ValueKind::Half
        | ValueKind::Single
        | ValueKind::Double
        | ValueKind::Decimal(_) => ValueForm::Number,
        ValueKind::Text | ValueKind::Uuid | ValueKind::Nothing => ValueForm::Text,
        ValueKind::Date | ValueKind::Time(_) | ValueKind::Timestamp(_) => ValueForm::Time,
    }
}

/// At most so many rows in slices: all rows, or those of evenly spaced places.
fn sampled_slices(row_groups: &RowGroups, most: usize) -> Vec<RowSlice> {
    let groups = || row_groups.groups.iter().enumerate();
    let all: u64 = row_groups.groups.iter().map(|group| group.rows).sum();
    if all <= most as u64 {
        return groups().map(|(group, of)| RowSlice { group, start: 0, rows: of.rows as usize }).collect();
    }
    let length = (most / PLACES).max(1) as u64;
    let mut found: Vec<RowSlice> = Vec::with_capacity(PLACES);
    for place in spread_indices((all - length) as usize + 1, PLACES) {
        let row = place as u64;
        let holder = groups().find(|(_, group)| (group.first_row..group.first_row + group.rows).contains(&row));
        let Some((group, of)) = holder else { continue };
        let start = row - of.first_row;
        found.push(RowSlice { group, start, rows: length.min(of.rows - start) as usize });
    }
    found
}
