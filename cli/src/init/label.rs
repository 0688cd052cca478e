//! Which column is learned.

use crate::init::column::MOST_CLASSES;
use crate::init::{Column, ColumnKind, InitError};

/// Distinct integers up to which they are classes, as stars are; more are a number.
const MOST_NUMBER_CLASSES: usize = 10;

/// Names that labels have, the likelier first.
const NAMES: &str = "label click clicked is_click target y conversion converted is_conversion purchase purchased income \
    install outcome";

/// Pairs of texts of which the first means a positive sample.
const POSITIVE: [&str; 8] = ["1", "true", "yes", "y", "t", "click", "clicked", "positive"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LabelColumn {
    pub column: usize,
    pub kind: LabelForm,
    /// Whether the column is a guess, and which others were possible.
    pub other_candidates: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LabelForm {
    /// One of two texts.
    Click {
        positive: String,
        negative: String,
        positive_rows: usize,
        /// Whether it is a guess which of its texts is the positive one.
        is_value_guessed: bool,
    },
    Classes {
        /// The texts, the most frequent first.
        classes: Vec<String>,
        /// Whether they are numbers, so that a regression is possible too.
        are_numbers: bool,
    },
    Regression {
        /// Whether the numbers are counts with a long tail.
        are_counts: bool,
    },
}

impl LabelColumn {
    /// The column that the user named, or the likeliest.
    pub(crate) fn choose(columns: &[Column], named: Option<&str>) -> Result<Self, InitError> {
        if let Some(name) = named {
            let column = columns.iter().position(|column| column.name == name).ok_or_else(|| {
                let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
                InitError::Label(format!("there is no column {name:?}; the columns are {}", names.join(", ")))
            })?;
            let kind = LabelForm::from_column(&columns[column]).ok_or_else(|| {
                let values = columns[column].distinct;
                InitError::Label(format!(
                    "column {name:?} has {values} values in the sample, and a label is one of two texts, a number or one of up to {MOST_CLASSES} \
                     classes: name another column, or write a column that says whether a row is positive, such as `rating >= 4`"
                ))
            })?;
            return Ok(Self { column, kind, other_candidates: Vec::new() });
        }
        let mut candidates: Vec<usize> = (0..columns.len()).filter(|&at| columns[at].value_pair().is_some()).collect();
        candidates.sort_by_key(|&at| likelihood(columns, at));
        let seen = || {
            let seen = columns.iter().map(|column| format!("{} ({})", column.name, column.distinct));
            InitError::Label(format!(
                "no column has exactly two values, so none is likely the label; columns and their values in the sample: {}; name one with \
                 `--label COLUMN`: a number becomes a regression, and a few texts become classes",
                seen.collect::<Vec<_>>().join(", ")
            ))
        };
        let (&column, others) = candidates.split_first().ok_or_else(seen)?;
        // Beside a column with the name of a label, those are candidates that are written as labels.
        let is_other =
            |at: &&usize| !is_known(&columns[column]) || is_known(&columns[**at]) || is_zero_one(&columns[**at]);
        let other_candidates = others.iter().filter(is_other).map(|&at| columns[at].name.clone()).collect();
        Ok(Self { column, kind: LabelForm::from_column(&columns[column]).ok_or_else(seen)?, other_candidates })
    }
}

impl LabelForm {
    /// What the values of a column are as a label, if they can be one.
    fn from_column(column: &Column) -> Option<Self> {
        if let Some(pair) = column.value_pair() {
            return Some(Self::click(pair));
        }
        let are_integers = column.values.iter().all(|(text, _)| text.parse::<i64>().is_ok());
        match column.kind {
            ColumnKind::Constant | ColumnKind::Time(_) | ColumnKind::MultiValued(_) | ColumnKind::List => None,
            ColumnKind::Number { has_tail, .. } if column.distinct > MOST_NUMBER_CLASSES || !are_integers => {
                Some(Self::Regression { are_counts: has_tail && column.is_integer })
            }
            _ if column.values.is_empty() => None,
            _ => Some(Self::Classes {
                classes: column.values.iter().map(|(text, _)| text.clone()).collect(),
                are_numbers: are_integers,
            }),
        }
    }

    fn click([more, fewer]: &[(String, usize); 2]) -> Self {
        let is_positive = |text: &str| POSITIVE.contains(&text.to_ascii_lowercase().as_str());
        let (is_more, is_fewer) = (is_positive(&more.0), is_positive(&fewer.0));
        let numbers = [more, fewer].map(|(text, _)| text.parse::<f64>().ok());
        let (is_swapped, is_value_guessed) = match numbers {
            // 1 and 2, -1 and 1, 0.0 and 1.0: the larger one. That 0 or -1 is negative is no guess.
            [Some(more), Some(fewer)] => (more > fewer, more.min(fewer) > 0.0),
            // Of two texts that say nothing, the rarer one is the event.
            _ => (is_more && !is_fewer, is_more == is_fewer),
        };
        let (positive, negative) = if is_swapped { (more, fewer) } else { (fewer, more) };
        Self::Click {
            positive: positive.0.clone(),
            negative: negative.0.clone(),
            positive_rows: positive.1,
            is_value_guessed,
        }
    }
}

/// Sorts candidates: by a known name, then 0 and 1, then the last column, then the first.
fn likelihood(columns: &[Column], at: usize) -> (usize, bool, bool, bool, usize) {
    let name = columns[at].name.to_ascii_lowercase();
    let known = NAMES.split(' ').position(|known| known == name).unwrap_or(usize::MAX);
    (known, !is_zero_one(&columns[at]), at + 1 != columns.len(), at != 0, at)
}

fn is_known(column: &Column) -> bool {
    NAMES.split(' ').any(|known| column.name.eq_ignore_ascii_case(known))
}

fn is_zero_one(column: &Column) -> bool {
    column.value_pair().is_some_and(|pair| pair.iter().all(|(text, _)| text == "0" || text == "1"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::column::tests::KNOWN;

    fn columns(of: &[(&str, &[&str])]) -> Vec<Column> {
        of.iter().map(|(name, values)| Column::infer(name, values, KNOWN)).collect()
    }

    fn positive(label: &LabelColumn) -> (&str, usize, bool) {
        let LabelForm::Click { positive, positive_rows, is_value_guessed, .. } = &label.kind else {
            panic!("{label:?}")
        };
        (positive, *positive_rows, *is_value_guessed)
    }

    #[test]
    fn a_known_name_wins_and_others_that_are_written_as_labels_are_named() {
        let numbers: [(&str, &[&str]); 2] = [("sex", &["0", "1", "1"]), ("clicked", &["1", "0", "0"])];
        let texts: [(&str, &[&str]); 2] = [("z", &["a", "b", "a"]), ("outcome", &["x", "y", "x"])];
        let columns = columns(&[numbers, texts].concat());
        let label = LabelColumn::choose(&columns, None).unwrap();
        assert_eq!((label.column, positive(&label)), (1, ("1", 1, false)));
        assert_eq!(label.other_candidates, ["outcome", "sex"]);
    }

    #[test]
    fn of_two_numbers_the_larger_one_is_positive() {
        for (values, expected) in [
            (["1", "2", "2"], ("2", 2, true)),
            (["-1", "1", "-1"], ("1", 1, false)),
            (["1.0", "0.0", "1.0"], ("1.0", 2, false)),
            (["1", "0", "1"], ("1", 2, false)),
        ] {
            let label = LabelColumn::choose(&columns(&[("click", &values)]), None).unwrap();
            assert_eq!(positive(&label), expected, "{values:?}");
        }
    }

    #[test]
    fn without_a_name_the_last_two_valued_column_is_a_guess() {
        let columns = columns(&[("c1", &["m", "f", "m"]), ("c2", &["<=50K", ">50K", "<=50K"])]);
        let label = LabelColumn::choose(&columns, None).unwrap();
        assert_eq!((label.column, positive(&label)), (1, (">50K", 1, true)));
        assert_eq!(label.other_candidates, ["c1"]);
        assert_eq!(positive(&LabelColumn::choose(&columns, Some("c1")).unwrap()).0, "f");
    }

    #[test]
    fn a_named_label_is_what_its_values_say() {
        let text = |number: usize| number.to_string();
        let many: Vec<String> = (0..60).map(text).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let columns = columns(&[
            ("stars", &["1", "5", "3", "5"]),
            ("price", &["1.5", "2.25", "9", "9"]),
            ("views", &[&many[..], &["100000"]].concat()),
            ("class", &["a", "b", "c", "a"]),
            ("at", &["2026-11-23", "2026-11-24", "2026-11-25"]),
        ]);
        let kind = |name| LabelColumn::choose(&columns, Some(name)).map(|label| label.kind);
        let classes = |texts: [&str; 3]| texts.map(String::from).to_vec();
        for (name, expected) in [
            ("stars", LabelForm::Classes { classes: classes(["5", "1", "3"]), are_numbers: true }),
            ("class", LabelForm::Classes { classes: classes(["a", "b", "c"]), are_numbers: false }),
            ("price", LabelForm::Regression { are_counts: false }),
            ("views", LabelForm::Regression { are_counts: true }),
        ] {
            assert_eq!(kind(name).unwrap(), expected, "{name}");
        }
        let error = kind("at").unwrap_err().to_string();
        assert!(error.contains("column \"at\"") && error.contains("a number or one of up to 50"), "{error}");
    }

    #[test]
    fn no_candidate_names_the_columns_and_the_other_kinds() {
        let columns = columns(&[("a", &["1", "2", "3"]), ("b", &["x", "x", "x"])]);
        let error = LabelColumn::choose(&columns, None).unwrap_err().to_string();
        assert!(error.contains("a (3), b (1)") && error.contains("--label COLUMN"), "{error}");
        assert!(error.contains("regression") && error.contains("classes"), "{error}");
        for (name, expected) in [("b", "column \"b\" has 1 values"), ("q", "no column \"q\"; the columns are a, b")] {
            let error = LabelColumn::choose(&columns, Some(name)).unwrap_err();
            assert!(matches!(&error, InitError::Label(what) if what.contains(expected)), "{error}");
        }
    }
}
