//! All that is known of the data.

use std::collections::{HashMap, HashSet};

use zagros_ingest::{LIST_SEPARATOR, RowSample, SampledColumn};
use zagros_zip::ZipEq;

use crate::init::column::{ColumnHints, is_missing};
use crate::init::table::with_points;
use crate::init::{Column, ColumnKind, DataLayout, InitError, LabelColumn, LabelForm, NewestParts, TextDialect};

const MIN_ROWS: usize = 10;

#[derive(Clone, Debug)]
pub(crate) struct Sketch {
    pub sample: RowSample,
    pub layout: DataLayout,
    pub columns: Vec<Column>,
    pub label: LabelColumn,
    pub leaks: Vec<LabelLeak>,
    /// Whether these columns are features, because there would be none without them.
    pub keeps_leaks: bool,
    /// Places of columns of several values, and of the column of one value whose values they hold.
    pub histories: Vec<(usize, usize)>,
    /// The newest rows, where a column says when each row was.
    pub newest: Option<NewestParts>,
}

/// Infers what the data is. `label` is the column that the user names.
pub(crate) fn infer_sketch(mut sample: RowSample, label: Option<&str>) -> Result<Sketch, InitError> {
    let mut layout = DataLayout::infer(&mut sample)?;
    let rows = sample.row_count();
    if rows < MIN_ROWS {
        let what = "are needed to tell what its columns hold";
        return Err(InitError::Data(format!("the data has {rows} rows; at least {MIN_ROWS} {what}")));
    }
    if layout == DataLayout::Criteo && label.is_some() {
        layout = DataLayout::Delimited(TextDialect::of_criteo());
    }
    if let DataLayout::Delimited(dialect) = &mut layout {
        dialect.decimal_comma = dialect.separator != ',' && with_points(&mut sample.columns);
    }
    let separator = if let DataLayout::Delimited(dialect) = &layout { Some(dialect.separator) } else { None };
    let (texts, is_whole) = (&sample.columns, sample.is_whole);
    let column = |column: &SampledColumn| {
        let values: Vec<&str> = column.texts.iter().map(String::as_str).collect();
        Column::infer(&column.name, &values, ColumnHints { is_list: column.is_list, separator, is_whole })
    };
    let columns: Vec<Column> = texts.iter().map(column).collect();
    let label = LabelColumn::choose(&columns, label)?;
    // A part of the data that is its start says nothing of what is new.
    let newest = NewestParts::find(&columns, texts, label.column).filter(|_| sample.is_spread);
    let histories = related_histories(&columns, texts, label.column);
    let leaks = find_leaks(&columns, texts, &label);
    let keeps_leaks = false;
    let mut sketch = Sketch { sample, layout, columns, label, leaks, keeps_leaks, histories, newest };
    let has_no_category = sketch.categorical_columns().next().is_none();
    sketch.keeps_leaks = has_no_category;
    if sketch.categorical_columns().next().is_none() {
        return Err(InitError::Data(format!(
            "no column but the label {:?} can be a feature: every other one is constant, differs in each row, or tells the label by itself",
            sketch.columns[sketch.label.column].name
        )));
    }
    Ok(sketch)
}

impl Sketch {
    /// What the user should hear besides the job: what may be wrong in the data.
    pub(crate) fn warnings(&self) -> Vec<String> {
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

/// Share of the values of the other column that must be among the parts.
const MIN_SHARED: f64 = 0.5;

/// Distinct values that the other column must have: columns of few values share some by chance.
const MIN_VALUES: usize = 20;

/// Places of columns of several values, and of the column of one value whose values they hold: the items that a user saw
/// before, and the item of the row.
fn related_histories(columns: &[Column], texts: &[SampledColumn], label: usize) -> Vec<(usize, usize)> {
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

fn shared(column: &SampledColumn, parts: &HashSet<&str>) -> f64 {
    let values: HashSet<&str> = column.texts.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
    values.iter().filter(|value| parts.contains(*value)).count() as f64 / values.len().max(1) as f64
}

/// Rows below which agreement may be chance.
const MIN_LEAK_ROWS: usize = 30;
/// Rows of each value of the label, below which agreement may be chance.
const MIN_OF_A_KIND: usize = 5;
/// Rows a value of a column on average, below which each of its values says little.
const MIN_ROWS_A_VALUE: usize = 8;
/// Share of the rows of a label that must have a value, where those of the other label have none.
const MIN_AGREEMENT: f64 = 0.999;
/// How improbable it must be that all rows with a value have one label, if the values had nothing to do with it.
const MAX_CHANCE: f64 = 1e-9;

/// A column that tells the label by itself, as those do that are written after it: `refund` of a purchase, or the label's complement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LabelLeak {
    pub column: usize,
    /// Share of the sample's rows whose label it tells.
    pub share: f64,
}

impl LabelLeak {
    /// The rows whose label it tells, in words.
    pub(crate) fn row_share(&self) -> String {
        if self.share == 1.0 {
            return "each row of the sample".to_owned();
        }
        // Rounded down: it is not every row.
        format!("{:.2} % of the sample's rows", (10_000.0 * self.share).floor() / 100.0)
    }
}

pub(crate) fn find_leaks(columns: &[Column], texts: &[SampledColumn], label: &LabelColumn) -> Vec<LabelLeak> {
    let of_label: Vec<&str> = texts[label.column].texts.iter().map(String::as_str).collect();
    if of_label.len() < MIN_LEAK_ROWS {
        return Vec::new();
    }
    let share = |at: usize| {
        let of_column: Vec<&str> = texts[at].texts.iter().map(String::as_str).collect();
        let whole = |tells: bool| tells.then_some(1.0);
        match &label.kind {
            LabelForm::Regression { .. } => whole(of_column == of_label),
            LabelForm::Classes { .. } => whole(is_function(&of_column, &of_label)),
            LabelForm::Click { positive, .. } => {
                let truths: Vec<bool> = of_label.iter().map(|text| text == positive).collect();
                let found = || {
                    let function = whole(is_function(&of_column, &of_label));
                    function
                        .or_else(|| threshold_share(&of_column, &truths))
                        .or_else(|| presence_share(&of_column, &truths))
                };
                has_both(&truths).then(found).flatten()
            }
        }
    };
    let may_tell = |at: &usize| *at != label.column && columns[*at].kind != ColumnKind::Constant;
    (0..columns.len()).filter(may_tell).filter_map(|column| Some(LabelLeak { column, share: share(column)? })).collect()
}

fn has_both(truths: &[bool]) -> bool {
    let positives = truths.iter().filter(|truth| **truth).count();
    positives.min(truths.len() - positives) >= MIN_OF_A_KIND
}

/// Whether rows with one value have one label, and values come again.
fn is_function<'a>(of_column: &[&'a str], of_label: &[&'a str]) -> bool {
    let mut labels: HashMap<&'a str, &'a str> = HashMap::new();
    for (value, label) in of_column.iter().zip_eq(of_label) {
        if labels.entry(*value).or_insert(*label) != label {
            return false;
        }
    }
    labels.len() * MIN_ROWS_A_VALUE <= of_column.len()
}

/// The share of the rows that have a number, if all numbers of positive rows are on one side of those of negative rows.
fn threshold_share(of_column: &[&str], truths: &[bool]) -> Option<f64> {
    let mut ends = [(f64::INFINITY, f64::NEG_INFINITY); 2];
    let present = of_column.iter().zip_eq(truths).filter(|(text, _)| !is_missing(text));
    let (texts, of_present): (Vec<&str>, Vec<bool>) = present.map(|(text, truth)| (*text, *truth)).unzip();
    for (text, truth) in texts.iter().zip_eq(&of_present) {
        let number = text.parse::<f64>().ok()?;
        let (least, most) = &mut ends[usize::from(*truth)];
        (*least, *most) = (least.min(number), most.max(number));
    }
    let [negative, positive] = ends;
    let is_divided = negative.1 < positive.0 || positive.1 < negative.0;
    let is_chance = texts.len() < MIN_LEAK_ROWS || !has_both(&of_present);
    (is_divided && !is_chance).then(|| texts.len() as f64 / truths.len() as f64)
}

/// The share of the rows whose label is known by whether the column has a value, if it is: all rows where those of one label have a
/// value and the others have none; else the rows with a value, where these have one label and are too many for chance.
fn presence_share(of_column: &[&str], truths: &[bool]) -> Option<f64> {
    // Rows without and with a value, of the negative and of the positive label.
    let mut rows = [[0.0_f64; 2]; 2];
    for (text, truth) in of_column.iter().zip_eq(truths) {
        rows[usize::from(*truth)][usize::from(!is_missing(text))] += 1.0;
    }
    let [[no_negative, negative], [no_positive, positive]] = rows;
    let (negatives, positives) = (no_negative + negative, no_positive + positive);
    let all = negatives + positives;
    for (with, without) in
        [(positive / positives, no_negative / negatives), (no_positive / positives, negative / negatives)]
    {
        if with.min(without) >= MIN_AGREEMENT {
            return Some((with * positives + without * negatives) / all);
        }
    }
    let (present, share, other) =
        if positive > negative { (positive, positives / all, negative) } else { (negative, negatives / all, positive) };
    (other == 0.0 && share.powf(present) < MAX_CHANCE).then(|| present / all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::column::tests::infer_columns;
    use crate::init::table::tests::sample_of_lines;

    fn find_histories(columns: &[(&str, &dyn Fn(usize) -> String)]) -> Vec<(usize, usize)> {
        let columns: Vec<(&str, Vec<String>)> =
            columns.iter().map(|(name, text)| (*name, (0..200).map(text).collect())).collect();
        let (texts, columns) = infer_columns(&columns);
        related_histories(&columns, &texts, 0)
    }

    #[test]
    fn a_column_that_holds_values_of_another_one_is_its_history() {
        let item = |row: usize| format!("m{}", row * 7 % 40);
        let seen = |row: usize| format!("m{}|m{}|m{}", row % 40, row * 3 % 40, row * 11 % 40);
        let genres = |row: usize| format!("g{}|g{}", row % 5, row % 3);
        let click = |row: usize| (row % 2).to_string();
        let found = find_histories(&[("click", &click), ("item", &item), ("seen", &seen), ("genres", &genres)]);
        assert_eq!(found, [(2, 1)]);
        assert_eq!(find_histories(&[("click", &click), ("item", &item), ("genres", &genres)]), []);
    }

    /// Names of the leaks of 200 rows whose label is 1 in every third.
    fn found(column: impl Fn(usize) -> String) -> Vec<String> {
        let row = |i: usize| format!("{},{},{}", u8::from(i.is_multiple_of(3)), i * 7 % 5, column(i));
        let lines = std::iter::once("click,ad,x".to_owned()).chain((0..200).map(row));
        let sketch = infer_sketch(sample_of_lines(lines), None).unwrap();
        sketch.leaks.iter().map(|leak| format!("{} {}", sketch.columns[leak.column].name, leak.row_share())).collect()
    }

    #[test]
    fn a_column_that_tells_the_label_is_found() {
        let is_positive = |i: usize| i.is_multiple_of(3);
        let if_true = |is_there: bool, text: String| if is_there { text } else { String::new() };
        let order = |i: usize| format!("order-{i}");
        let larger = |i: usize| (if is_positive(i) { 100 + i } else { i % 100 }).to_string();
        let each = "x each row of the sample";
        type Cell<'a> = &'a dyn Fn(usize) -> String;
        let columns: [(Cell<'_>, &[&str], &str); 12] = [
            (&|i| u8::from(is_positive(i)).to_string(), &[each], "the label itself"),
            (&|i| u8::from(!is_positive(i)).to_string(), &[each], "its complement"),
            (&|i| ["paid", "open", "lost"][i % 3].to_owned(), &[each], "one of its values is the positive one"),
            (&larger, &[each], "larger in positive rows"),
            (&|i| u8::from(is_positive(i) && i != 30).to_string(), &[], "one row differs"),
            (&|i| format!("row-{i}"), &[], "a name of the row"),
            (&|i| (i % 20).to_string(), &[], "something else"),
            (&|i| if_true(is_positive(i), order(i)), &[each], "names of rows, only in positive ones"),
            (&|i| if_true(is_positive(i), i.to_string()), &[each], "numbers, only in positive rows"),
            (&|i| if is_positive(i) { "\\N".into() } else { order(i) }, &[each], "names of rows, only in others"),
            (&|i| if_true(i.is_multiple_of(6), order(i)), &["x 17.00 % of the sample's rows"], "some of them"),
            (
                &|i| if_true(!i.is_multiple_of(7), larger(i)),
                &["x 85.50 % of the sample's rows"],
                "larger in positive rows, where it is known",
            ),
        ];
        for (column, expected, what) in columns {
            assert_eq!(found(column), expected, "{what}");
        }
    }

    #[test]
    fn gaps_that_have_little_to_do_with_the_label_tell_nothing() {
        let gaps = |every: usize| found(move |i| if i % every == 1 { format!("v{i}") } else { String::new() });
        assert!(gaps(2).is_empty() && gaps(30).is_empty(), "few values of one label may be chance");
        let one_differs = |i: usize| i.is_multiple_of(3) && i != 30 && i != 60 || i == 1;
        assert!(found(|i| if one_differs(i) { format!("v{i}") } else { String::new() }).is_empty());
    }
}
