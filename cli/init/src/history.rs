//! Which columns of several values hold what another column holds one of: the items that a user saw before, and the item of
//! the row.

use std::collections::HashSet;

use zagros_ingest::LIST_SEPARATOR;

use crate::table::TableColumn;
use crate::{Column, ColumnKind};

/// Share of the values of the other column that must be among the parts.
const MIN_SHARED: f64 = 0.5;

/// Distinct values that the other column must have: columns of few values share some by chance.
const MIN_VALUES: usize = 20;

/// Places of columns of several values, and of the column of one value whose values they hold.
pub(crate) fn related_histories(columns: &[Column], texts: &[TableColumn], label: usize) -> Vec<(usize, usize)> {
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

fn shared(column: &TableColumn, parts: &HashSet<&str>) -> f64 {
    let values: HashSet<&str> = column.texts.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
    values.iter().filter(|value| parts.contains(*value)).count() as f64 / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use zagros_ingest::ValueForm;

    use super::*;
    use crate::column::ColumnHints;

    fn find_histories(columns: &[(&str, &dyn Fn(usize) -> String)]) -> Vec<(usize, usize)> {
        let known = ColumnHints { form: ValueForm::Text, separator: Some(','), is_whole: true };
        let texts: Vec<TableColumn> = columns
            .iter()
            .map(|(name, text)| TableColumn {
                name: (*name).into(),
                form: ValueForm::Text,
                texts: (0..200).map(text).collect(),
            })
            .collect();
        let column = |column: &TableColumn| {
            Column::infer(&column.name, &column.texts.iter().map(String::as_str).collect::<Vec<_>>(), known)
        };
        related_histories(&texts.iter().map(column).collect::<Vec<_>>(), &texts, 0)
    }

    #[test]
    fn a_column_that_holds_values_of_another_one_is_its_history() {
        let item = |row: usize| format!("m{}", row * 7 % 40);
        let seen = |row: usize| format!("m{}|m{}|m{}", row % 40, row * 3 % 40, row * 11 % 40);
        let genres = |row: usize| format!("g{}|g{}", row % 5, row % 3);
        let click = |row: usize| (row % 2).to_string();
        assert_eq!(
            find_histories(&[("click", &click), ("item", &item), ("seen", &seen), ("genres", &genres)]),
            [(2, 1)]
        );
        assert_eq!(find_histories(&[("click", &click), ("item", &item), ("genres", &genres)]), []);
    }
}
