//! Columns that tell the label by themselves, as those do that are written after it: `refund` of a purchase, or the label's complement.

use std::collections::HashMap;

use zagros_zip::ZipEq;

use crate::table::TableColumn;
use crate::{Column, ColumnKind, Label, LabelForm};

/// Rows below which agreement may be chance.
const MIN_ROWS: usize = 30;
/// Rows of each value of the label, below which agreement may be chance.
const MIN_OF_A_KIND: usize = 5;
/// Rows a value of a column on average, below which each of its values says little.
const MIN_ROWS_A_VALUE: usize = 8;

/// Places of the columns by which alone the label of each row of the sample is known.
pub(crate) fn leaks(columns: &[Column], texts: &[TableColumn], label: &Label) -> Vec<usize> {
    let of_label: Vec<&str> = texts[label.column].texts.iter().map(String::as_str).collect();
    if of_label.len() < MIN_ROWS {
        return Vec::new();
    }
    let tells = |at: &usize| {
        let of_column: Vec<&str> = texts[*at].texts.iter().map(String::as_str).collect();
        if *at == label.column || columns[*at].kind == ColumnKind::Constant {
            return false;
        }
        match &label.kind {
            LabelForm::Regression { .. } => of_column == of_label,
            LabelForm::Classes { .. } => is_function(&of_column, &of_label),
            LabelForm::Click { positive, .. } => {
                let truths: Vec<bool> = of_label.iter().map(|text| text == positive).collect();
                let positives = truths.iter().filter(|truth| **truth).count();
                let has_both = positives.min(truths.len() - positives) >= MIN_OF_A_KIND;
                has_both && (is_function(&of_column, &of_label) || is_threshold(&of_column, &truths))
            }
        }
    };
    (0..columns.len()).filter(tells).collect()
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

/// Whether all numbers of positive rows are on one side of those of negative rows.
fn is_threshold(of_column: &[&str], truths: &[bool]) -> bool {
    let mut ends = [(f64::INFINITY, f64::NEG_INFINITY); 2];
    for (text, truth) in of_column.iter().zip_eq(truths) {
        let Ok(number) = text.parse::<f64>() else { return false };
        let (least, most) = &mut ends[usize::from(*truth)];
        (*least, *most) = (least.min(number), most.max(number));
    }
    let [negative, positive] = ends;
    negative.1 < positive.0 || positive.1 < negative.0
}

#[cfg(test)]
mod tests {
    use zagros_ingest::{RowSample, SampledRows};

    use crate::sketch;

    /// Names of the leaks of 200 rows whose label is 1 in every third.
    fn found(column: impl Fn(usize) -> String) -> Vec<String> {
        let row = |i: usize| format!("{},{},{}", u8::from(i.is_multiple_of(3)), i * 7 % 5, column(i));
        let lines: Vec<String> = std::iter::once("click,ad,x".to_owned()).chain((0..200).map(row)).collect();
        let sample =
            RowSample { files: 1, names: Vec::new(), is_whole: true, is_spread: true, rows: SampledRows::Lines(lines) };
        let sketch = sketch(sample, None).unwrap();
        sketch.leaks.iter().map(|at| sketch.columns[*at].name.clone()).collect()
    }

    #[test]
    fn a_column_that_tells_the_label_is_found() {
        assert_eq!(found(|i| u8::from(i.is_multiple_of(3)).to_string()), ["x"], "the label itself");
        assert_eq!(found(|i| u8::from(!i.is_multiple_of(3)).to_string()), ["x"], "its complement");
        assert_eq!(
            found(|i| ["paid", "open", "lost"][i % 3].to_owned()),
            ["x"],
            "one of its values is the positive one"
        );
        assert_eq!(
            found(|i| if i.is_multiple_of(3) { 100 + i } else { i % 100 }.to_string()),
            ["x"],
            "larger in positive rows"
        );
    }

    #[test]
    fn columns_that_say_something_or_name_rows_are_none() {
        assert!(found(|i| u8::from(i.is_multiple_of(3) && i != 30).to_string()).is_empty(), "one row differs");
        assert!(found(|i| format!("row-{i}")).is_empty(), "a name of the row");
        assert!(found(|i| (i % 20).to_string()).is_empty());
    }
}
