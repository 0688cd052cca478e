//! Numbers with a decimal comma, `3,14`, as files with semicolons or tabs between their fields often have them.

use crate::table::TableColumn;

/// Writes the numbers of columns whose numbers have a decimal comma with a point, and says whether there are such columns.
pub(crate) fn with_points(columns: &mut [TableColumn], is_missing: impl Fn(&str) -> bool) -> bool {
    let mut has_any = false;
    for column in columns {
        let mut present = column.texts.iter().filter(|text| !is_missing(text)).peekable();
        let has_comma = column.texts.iter().any(|text| text.contains(','));
        if has_comma && present.peek().is_some() && present.all(|text| is_number(text)) {
            column.texts.iter_mut().for_each(|text| *text = text.replace(',', "."));
            has_any = true;
        }
    }
    has_any
}

pub(crate) fn has_commas(rows: &[Vec<String>], is_missing: impl Fn(&str) -> bool) -> bool {
    let columns = rows.first().map_or(0, Vec::len);
    (0..columns).any(|column| {
        let mut present = rows.iter().filter_map(|row| row.get(column)).filter(|text| !is_missing(text)).peekable();
        present.peek().is_some()
            && present.clone().any(|text| text.contains(','))
            && present.all(|text| is_number(text))
    })
}

/// Digits with at most one comma between them.
fn is_number(text: &str) -> bool {
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let text = text.strip_prefix(['-', '+']).unwrap_or(text);
    match text.split_once(',') {
        Some((whole, fraction)) => is_digits(whole) && is_digits(fraction),
        None => is_digits(text),
    }
}

#[cfg(test)]
mod tests {
    use zagros_ingest::ValueForm;

    use super::*;

    fn column(texts: &[&str]) -> TableColumn {
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        TableColumn { name: "x".into(), form: ValueForm::Text, texts }
    }

    #[test]
    fn a_column_of_numbers_with_commas_gets_points() {
        let mut columns = [
            column(&["3,14", "-2", "", "0,5"]),
            column(&["a,b", "3,1", "", "1"]),
            column(&["1,2,3", "1,2", "", "1"]),
            column(&["3.5", "2", "", "1"]),
            column(&["", "", "", ""]),
        ];
        assert!(with_points(&mut columns, str::is_empty));
        let texts = columns.map(|column| column.texts.join(" "));
        assert_eq!(texts, ["3.14 -2  0.5", "a,b 3,1  1", "1,2,3 1,2  1", "3.5 2  1", "   "]);
        assert!(!with_points(&mut [column(&["3.5", "2"])], str::is_empty));
    }
}
