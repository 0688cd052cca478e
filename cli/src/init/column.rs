//! What a column holds.

use std::collections::{HashMap, HashSet};

use zagros_ingest::LIST_SEPARATOR;

use crate::init::time::{TimeForm, date_parts};

/// Texts that mean "missing", besides none.
const MISSING: [&str; 9] = ["NA", "N/A", "NaN", "nan", "null", "NULL", "None", "\\N", "?"];

/// Separators of values inside a field.
const INNER_SEPARATORS: [char; 3] = ['|', ';', ','];

/// Share of fields with an inner separator from which on a column counts as multi-valued.
const MIN_MULTI_SHARE: f64 = 0.05;

/// How often a part of a multi-valued field occurs on average, at least.
const MIN_REPEATS: usize = 2;

/// Skew from which on numbers have a long tail, if their logarithm has none. That of an exponential distribution is 2.
const MIN_SKEW: f64 = 1.0;

/// Share of distinct values from which on a column names its rows.
const MIN_ROW_NAME_SHARE: f64 = 0.98;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    /// The same in every row.
    Constant,
    /// Another value in nearly every row.
    RowName,
    Time(TimeForm),
    /// A number, with a long tail or not; and a category as well, if its values come again and again.
    Number {
        /// Whether none is negative and its largest value is far from the middle, or its logarithm is symmetric and it is not.
        has_tail: bool,
        /// Whether its values are integers that come again and again.
        is_category: bool,
    },
    /// One of many values.
    Category,
    /// Any number of values with this text between them.
    MultiValued(char),
    /// A list of any number of values.
    List,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ColumnHints {
    pub(crate) is_list: bool,
    /// What is between the fields of a line.
    pub(crate) separator: Option<char>,
    /// Whether the sample has all rows.
    pub(crate) is_whole: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub name: String,
    pub kind: ColumnKind,
    /// Texts found in it that mean "missing".
    pub missing: Vec<&'static str>,
    /// Distinct values in the sample; of a multi-valued column, of its parts.
    pub distinct: usize,
    /// Estimate of the distinct values in all rows (Chao 1984); a lower bound.
    pub estimated: usize,
    /// Whether its values are whole numbers.
    pub is_integer: bool,
    /// Values that occur once in the sample.
    pub single: usize,
    /// Its values and their rows, the most frequent first, if there are no more than [`MOST_CLASSES`].
    pub values: Vec<(String, usize)>,
    /// The parts of its dates that differ between rows.
    pub date_parts: Vec<&'static str>,
}

/// Rows of a table, beyond which values share rows.
const MOST_ROWS: usize = 10_000_000;

/// Values that classes of a label may have.
pub(crate) const MOST_CLASSES: usize = 50;

/// Whether a text means that there is no value.
pub(crate) fn is_missing(text: &str) -> bool {
    text.is_empty() || MISSING.contains(&text)
}

impl Column {
    pub(crate) fn infer(name: &str, values: &[&str], known: ColumnHints) -> Self {
        let missing: Vec<_> = MISSING.into_iter().filter(|mark| values.contains(mark)).collect();
        let present: Vec<&str> =
            values.iter().copied().filter(|value| !value.is_empty() && !MISSING.contains(value)).collect();
        let counts = count(present.iter().copied());
        let kind = kind(name, &present, counts.len(), known);
        let counts = match kind {
            ColumnKind::MultiValued(inner) => count(present.iter().flat_map(|value| value.split(inner))),
            ColumnKind::List => count(present.iter().flat_map(|value| value.split(LIST_SEPARATOR))),
            _ => counts,
        };
        let distinct = counts.len();
        let estimated = if known.is_whole { distinct } else { estimate(&counts) };
        let single = counts.values().filter(|count| **count == 1).count();
        let is_integer = counts.keys().all(|value| value.parse::<i64>().is_ok());
        let date_parts = if let ColumnKind::Time(_) = kind { date_parts(&present) } else { Vec::new() };
        Self {
            name: name.into(),
            kind,
            missing,
            distinct,
            estimated,
            is_integer,
            single,
            values: few(&counts),
            date_parts,
        }
    }

    /// Keys of the feature that say which values have a row of their own, each after a comma; none for all.
    pub(crate) fn table_rows(&self) -> String {
        if self.estimated > MOST_ROWS {
            return format!(", hash_size = {MOST_ROWS}");
        }
        String::new()
    }

    /// Its two values and their rows, the most frequent first, if it has just two.
    pub(crate) fn value_pair(&self) -> Option<&[(String, usize); 2]> {
        self.values.as_slice().try_into().ok()
    }
}

fn count<'a>(values: impl Iterator<Item = &'a str>) -> HashMap<&'a str, usize> {
    let mut counts = HashMap::new();
    values.for_each(|value| *counts.entry(value).or_insert(0) += 1);
    counts
}

/// Chao's estimate of the number of classes: those seen + f₁² / 2f₂, where f₁ values were seen once and f₂ twice
/// (Chao 1984, "Nonparametric estimation of the number of classes in a population").
fn estimate(counts: &HashMap<&str, usize>) -> usize {
    let seen = |times| counts.values().filter(|count| **count == times).count();
    counts.len() + seen(1).pow(2) / (2 * seen(2).max(1))
}

fn few(counts: &HashMap<&str, usize>) -> Vec<(String, usize)> {
    if counts.len() > MOST_CLASSES {
        return Vec::new();
    }
    let mut values: Vec<(String, usize)> = counts.iter().map(|(value, rows)| ((*value).to_owned(), *rows)).collect();
    values.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    values
}

fn kind(name: &str, present: &[&str], distinct: usize, known: ColumnHints) -> ColumnKind {
    if distinct < 2 {
        return ColumnKind::Constant;
    }
    if known.is_list {
        return ColumnKind::List;
    }
    if let Some(form) = TimeForm::infer(name, present.iter().copied()) {
        return ColumnKind::Time(form);
    }
    let is_row_name = distinct as f64 >= MIN_ROW_NAME_SHARE * present.len() as f64;
    let Some(mut numbers) = numbers(present) else {
        let is_inner = |inner: &char| Some(*inner) != known.separator && is_multi_valued(present, *inner);
        let inner = INNER_SEPARATORS.into_iter().find(is_inner);
        return match inner {
            Some(inner) => ColumnKind::MultiValued(inner),
            None if is_row_name => ColumnKind::RowName,
            None => ColumnKind::Category,
        };
    };
    let is_integer = numbers.iter().all(|number| number.fract() == 0.0);
    if is_integer && (is_id(name) || name.is_empty()) {
        return if is_row_name { ColumnKind::RowName } else { ColumnKind::Category };
    }
    numbers.sort_by(f64::total_cmp);
    let (least, middle, most) = (numbers[0], numbers[numbers.len() / 2], numbers[numbers.len() - 1]);
    let has_tail = least >= 0.0 && (most > 20.0 * (middle + 1.0) || is_symmetric_after_log(&numbers));
    ColumnKind::Number { has_tail, is_category: is_integer && is_category(present.len(), distinct) }
}

/// Whether the logarithm that the trainer takes, of 1 + x, makes skewed numbers about symmetric: as those of prices, whose largest is
/// not far beyond the middle.
fn is_symmetric_after_log(numbers: &[f64]) -> bool {
    let skew = skewness(numbers.iter().copied());
    skew > MIN_SKEW && skewness(numbers.iter().map(|number| number.ln_1p())).abs() < skew / 2.0
}

/// The third standardised moment: 0 of a symmetric distribution.
fn skewness(numbers: impl Iterator<Item = f64> + Clone) -> f64 {
    let count = numbers.clone().count() as f64;
    let mean = numbers.clone().sum::<f64>() / count;
    let moment = |power| numbers.clone().map(|number| (number - mean).powi(power)).sum::<f64>() / count;
    moment(3) / moment(2).powf(1.5)
}

/// All values as finite numbers, if they are.
fn numbers(present: &[&str]) -> Option<Vec<f64>> {
    present.iter().map(|value| value.parse().ok().filter(|number: &f64| number.is_finite())).collect()
}

/// Whether many fields hold several values: the parts come again and again, as those of a sentence do not.
fn is_multi_valued(present: &[&str], inner: char) -> bool {
    let several: Vec<&str> = present.iter().copied().filter(|value| value.contains(inner)).collect();
    let parts: Vec<&str> = several.iter().flat_map(|value| value.split(inner)).collect();
    let distinct: HashSet<&str> = parts.iter().copied().collect();
    several.len() as f64 >= MIN_MULTI_SHARE * present.len() as f64 && distinct.len() * MIN_REPEATS <= parts.len()
}

/// Last words of names of columns that hold ids.
const NAMES: &str = "ad ads advertiser album app area article artist banner book brand browser campaign category channel \
    city code country creative customer device document domain film genre gid id ids ip item keyword \
    member merchant movie page postcode product publisher query region seller session shop site sku song \
    store tag uid user username video visitor zip zipcode";

/// Words before them that make an amount of the column: the number of items is no item.
const AMOUNTS: [&str; 10] = ["avg", "count", "max", "mean", "min", "n", "nr", "num", "number", "total"];

/// Distinct integers up to which a number is a category as well.
const MAX_FEW: usize = 128;

/// Rows a value from which on more distinct integers are a category as well: amounts seldom repeat so often.
const MIN_ROWS_A_VALUE: usize = 8;

/// Whether the name of a column of integers says that they are ids: 7 and 8 are as different as 7 and 900.
pub(crate) fn is_id(name: &str) -> bool {
    let words = words(name);
    let lower = name.to_ascii_lowercase();
    let is_name = |word: &str| NAMES.split(' ').any(|known| known == word);
    let is_known = words.last().is_some_and(|last| is_name(last) || last.strip_suffix("id").is_some_and(is_name));
    let is_amount = words.iter().any(|word| AMOUNTS.contains(&word.as_str()));
    is_known && !is_amount || lower.ends_with("id") && lower.len() <= 8 || lower.contains("hash")
}

/// Whether integers come so often that a row of a table can be learned for each: they are a category besides a number.
pub(crate) fn is_category(rows: usize, distinct: usize) -> bool {
    distinct <= MAX_FEW || distinct * MIN_ROWS_A_VALUE <= rows
}

/// Whether a number that is a category as well has so many values that ids are likely.
pub(crate) fn is_either(distinct: usize) -> bool {
    distinct > MAX_FEW
}

/// `adItem_ID` is "ad", "item", "id".
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for letter in name.chars() {
        let starts = !letter.is_alphanumeric() || letter.is_uppercase() && was_lower;
        if starts {
            words.push(String::new());
        }
        was_lower = letter.is_lowercase();
        let word = words.last_mut().expect("there is a first");
        word.extend(letter.is_alphanumeric().then(|| letter.to_ascii_lowercase()));
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
pub(crate) mod tests {
    use zagros_ingest::SampledColumn;

    use super::*;

    pub(crate) const KNOWN: ColumnHints = ColumnHints { is_list: false, separator: Some(','), is_whole: true };

    /// Columns of these texts, and what they are found to be.
    pub(crate) fn infer_columns(columns: &[(&str, Vec<String>)]) -> (Vec<SampledColumn>, Vec<Column>) {
        let (mut sampled, mut found) = (Vec::new(), Vec::new());
        for (name, texts) in columns {
            found.push(Column::infer(name, &texts.iter().map(String::as_str).collect::<Vec<_>>(), KNOWN));
            sampled.push(SampledColumn { name: (*name).into(), is_list: false, texts: texts.clone() });
        }
        (sampled, found)
    }

    fn kind_of(name: &str, values: &[&str]) -> ColumnKind {
        Column::infer(name, values, KNOWN).kind
    }

    #[test]
    fn each_kind_is_recognised() {
        assert_eq!(kind_of("x", &["a", "a"]), ColumnKind::Constant);
        assert_eq!(kind_of("user_id", &["7", "8", "7"]), ColumnKind::Category);
        assert_eq!(kind_of("id", &["7", "8", "9"]), ColumnKind::RowName);
        assert_eq!(kind_of("", &["0", "1", "2"]), ColumnKind::RowName, "an index");
        assert_eq!(kind_of("age", &["30", "31", "30"]), ColumnKind::Number { has_tail: false, is_category: true });
        assert_eq!(kind_of("gain", &["0.5", "0", "9000"]), ColumnKind::Number { has_tail: true, is_category: false });
        assert_eq!(kind_of("genres", &["a|b", "b|a", "a", "b|a|b"]), ColumnKind::MultiValued('|'));
        // More distinct parts than distinct fields, and still parts that repeat.
        let tags = ["a|b", "c|d|e", "a|b", "c|d|e"].repeat(3);
        assert_eq!(kind_of("tags", &tags), ColumnKind::MultiValued('|'));
        assert_eq!(kind_of("title", &["Heat; a film", "Casino; another", "Heat; a film"]), ColumnKind::Category);
        assert_eq!(kind_of("city", &["x", "y", "x"]), ColumnKind::Category);
    }

    #[test]
    fn skewed_numbers_whose_logarithm_is_symmetric_have_a_tail() {
        // Quantiles of the logistic distribution, which is symmetric.
        let logits = (1..1_000).map(|at| (f64::from(at) / f64::from(1_000 - at)).ln());
        let kind = |value: &dyn Fn(f64) -> f64| {
            let texts: Vec<String> = logits.clone().map(|logit| format!("{:.2}", value(logit))).collect();
            kind_of("price", &texts.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let tail = |has_tail| ColumnKind::Number { has_tail, is_category: false };
        assert_eq!(kind(&|logit| 50.0 * (logit / 3.0).exp()), tail(true), "prices");
        assert_eq!(kind(&|logit| 50.0 + 5.0 * logit), tail(false), "about symmetric");
        assert_eq!(kind(&|logit| -50.0 * (logit / 3.0).exp()), tail(false), "negative");
        assert_eq!(kind(&|logit| 0.002 * (logit / 3.0).exp()), tail(false), "too small for the logarithm of 1 + x");
    }

    #[test]
    fn lists_are_lists_and_their_values_are_counted() {
        let column = Column::infer("tags", &["a\u{1f}b", "", "b\u{1f}c", "a"], ColumnHints { is_list: true, ..KNOWN });
        assert_eq!((column.kind, column.distinct), (ColumnKind::List, 3));
    }

    #[test]
    fn missing_marks_are_no_values() {
        let column = Column::infer("age", &["30", "?", "", "NA", "31", "30"], KNOWN);
        assert_eq!(column.missing, ["NA", "?"]);
        assert_eq!(column.distinct, 2);
        assert!(matches!(column.kind, ColumnKind::Number { .. }));
    }

    #[test]
    fn a_sample_that_still_shows_new_values_is_extrapolated() {
        let values = ["a", "a", "b", "b", "c", "d"];
        assert_eq!(Column::infer("x", &values, KNOWN).estimated, 4);
        assert_eq!(Column::infer("x", &values, ColumnHints { is_whole: false, ..KNOWN }).estimated, 4 + 4 / 4);
    }

    #[test]
    fn names_say_what_integers_are() {
        for name in "user userID adItem item-id Campaign movieid customerid ip url_hash ID zip.code".split(' ') {
            assert!(is_id(name), "{name}");
        }
        for name in "price user_age num_items n_user total_item pages_read fnlwgt humidity ".split(' ') {
            assert!(!is_id(name), "{name}");
        }
    }

    #[test]
    fn integers_that_come_again_and_again_are_a_category_as_well() {
        assert!(is_category(200, 128) && is_category(20_000, 500));
        assert!(!is_category(20_000, 5_000));
        assert!(is_either(500) && !is_either(100));
    }
}
