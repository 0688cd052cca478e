//! Which column is learned.

use crate::{Column, InitError};

/// Names that labels have, the likelier first.
const NAMES: [&str; 14] = [
    "label",
    "click",
    "clicked",
    "is_click",
    "target",
    "y",
    "conversion",
    "converted",
    "is_conversion",
    "purchase",
    "purchased",
    "income",
    "install",
    "outcome",
];

/// Pairs of texts of which the first means a positive sample.
const POSITIVE: [&str; 8] = ["1", "true", "yes", "y", "t", "click", "clicked", "positive"];

/// The column that is learned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Its place.
    pub column: usize,
    /// Its text for a positive sample.
    pub positive: String,
    /// Its text for a negative sample.
    pub negative: String,
    /// Rows of the sample that are positive.
    pub positive_rows: usize,
    /// Whether it is a guess which of its texts is the positive one.
    pub is_value_guessed: bool,
    /// Whether the column is a guess, and which others were possible.
    pub other_candidates: Vec<String>,
}

impl Label {
    /// The column that the user named, or the likeliest.
    pub(crate) fn choose(columns: &[Column], named: Option<&str>) -> Result<Self, InitError> {
        if let Some(name) = named {
            let column = columns.iter().position(|column| column.name == name).ok_or_else(|| {
                let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
                InitError::NoSuchColumn { name: name.into(), columns: names.join(", ") }
            })?;
            let values = columns[column].distinct;
            return Self::of(columns, column, Vec::new())
                .ok_or_else(|| InitError::NotALabel { name: name.into(), values });
        }
        let mut candidates: Vec<usize> = (0..columns.len()).filter(|&at| columns[at].pair.is_some()).collect();
        candidates.sort_by_key(|&at| likelihood(columns, at));
        let Some((&column, others)) = candidates.split_first() else {
            let seen: Vec<String> =
                columns.iter().map(|column| format!("{} ({})", column.name, column.distinct)).collect();
            return Err(InitError::NoLabel { columns: seen.join(", ") });
        };
        let is_known = NAMES.contains(&columns[column].name.to_ascii_lowercase().as_str());
        let others = if is_known { &[] } else { others };
        let others = others.iter().map(|&at| columns[at].name.clone()).collect();
        Self::of(columns, column, others).ok_or(InitError::NoLabel { columns: columns[column].name.clone() })
    }

    fn of(columns: &[Column], column: usize, other_candidates: Vec<String>) -> Option<Self> {
        let [more, fewer] = columns[column].pair.clone()?;
        let is_positive = |text: &str| POSITIVE.contains(&text.to_ascii_lowercase().as_str());
        let (is_more, is_fewer) = (is_positive(&more.0), is_positive(&fewer.0));
        // Of two texts that say nothing, the rarer one is the event.
        let (positive, negative) = if is_more && !is_fewer { (more, fewer) } else { (fewer, more) };
        Some(Self {
            column,
            positive: positive.0,
            negative: negative.0,
            positive_rows: positive.1,
            is_value_guessed: is_more == is_fewer,
            other_candidates,
        })
    }
}

/// Sorts candidates: by a known name, then 0 and 1, then the last column, then the first.
fn likelihood(columns: &[Column], at: usize) -> (usize, bool, bool, bool, usize) {
    let name = columns[at].name.to_ascii_lowercase();
    let known = NAMES.iter().position(|known| *known == name).unwrap_or(NAMES.len());
    let is_binary =
        columns[at].pair.as_ref().is_some_and(|pair| pair.iter().all(|(text, _)| text == "0" || text == "1"));
    (known, !is_binary, at + 1 != columns.len(), at != 0, at)
}

#[cfg(test)]
mod tests {
    use zagros_ingest::ValueForm;

    use super::*;
    use crate::column::Known;

    fn columns(of: &[(&str, &[&str])]) -> Vec<Column> {
        let known = Known { form: ValueForm::Text, separator: Some(','), is_whole: true };
        of.iter().map(|(name, values)| Column::of(name, values, known)).collect()
    }

    #[test]
    fn a_known_name_wins_and_is_no_guess() {
        let columns = columns(&[("sex", &["0", "1", "1"]), ("clicked", &["1", "0", "0"]), ("z", &["a", "b", "a"])]);
        let label = Label::choose(&columns, None).unwrap();
        assert_eq!((label.column, label.positive.as_str(), label.positive_rows), (1, "1", 1));
        assert!(label.other_candidates.is_empty() && !label.is_value_guessed);
    }

    #[test]
    fn without_a_name_the_last_two_valued_column_is_a_guess() {
        let columns = columns(&[("c1", &["m", "f", "m"]), ("c2", &["<=50K", ">50K", "<=50K"])]);
        let label = Label::choose(&columns, None).unwrap();
        assert_eq!((label.column, label.positive.as_str()), (1, ">50K"));
        assert_eq!(label.other_candidates, ["c1"]);
        assert!(label.is_value_guessed);
        assert_eq!(Label::choose(&columns, Some("c1")).unwrap().positive, "f");
    }

    #[test]
    fn no_candidate_names_the_columns() {
        let columns = columns(&[("a", &["1", "2", "3"]), ("b", &["x", "x", "x"])]);
        let error = Label::choose(&columns, None).unwrap_err().to_string();
        assert!(error.contains("a (3), b (1)") && error.contains("--label COLUMN"), "{error}");
        assert!(matches!(Label::choose(&columns, Some("a")), Err(InitError::NotALabel { values: 3, .. })));
        assert!(matches!(Label::choose(&columns, Some("q")), Err(InitError::NoSuchColumn { .. })));
    }
}
