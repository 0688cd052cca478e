//! Measures of slices as tables.

use indicatif::HumanCount;
use owo_colors::OwoColorize;
use zagros_eval::{ColumnSlices, SliceMeasures};
use zagros_shell::out;

/// Characters of a value that are shown.
const SHOWN: usize = 24;

pub(crate) fn print(columns: &[ColumnSlices]) {
    for column in columns {
        table(column).into_iter().for_each(|line| out!("{line}"));
    }
}

fn table(column: &ColumnSlices) -> Vec<String> {
    let values = HumanCount(column.values);
    let counted = if column.exact { format!("{values} values") } else { format!("more than {values} values") };
    let title = format!("\nslices by {} ({counted})", column.column);
    let names = ["value", "samples", "AUC", "logloss", "calibration"].map(str::to_owned);
    let head = line(names).dimmed().to_string();
    let mut lines = vec![title, head];
    lines.extend(column.slices.iter().map(|slice| line(cells(slice))));
    if !column.exact {
        lines.push("  too many values: some samples of rare ones are among the others".to_owned());
    }
    lines
}

fn cells(slice: &SliceMeasures) -> [String; 5] {
    let measure = |value: Option<f64>| value.map_or_else(|| "undefined".to_owned(), |value| format!("{value:.4}"));
    let (samples, auc) = (HumanCount(slice.samples).to_string(), measure(slice.auc));
    [shown(slice.value.as_deref()), samples, auc, measure(slice.logloss), measure(slice.calibration)]
}

fn shown(value: Option<&str>) -> String {
    let Some(value) = value else { return "all others".to_owned() };
    let printable = |letter: char| if letter.is_control() { '?' } else { letter };
    let text: String = value.chars().map(printable).take(SHOWN).collect();
    match value.chars().count() {
        0 => "(missing)".to_owned(),
        count if count > SHOWN => format!("{text}…"),
        _ => text,
    }
}

fn line([value, samples, auc, logloss, calibration]: [String; 5]) -> String {
    format!("  {value:<26}{samples:>12}{auc:>11}{logloss:>11}{calibration:>13}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_a_table_of_its_values() {
        let slice = |value: Option<&str>, auc| SliceMeasures {
            value: value.map(str::to_owned),
            samples: 1234,
            positive_rate: Some(0.5),
            auc,
            logloss: Some(0.25),
            calibration: Some(1.5),
        };
        let slices = vec![slice(Some("de\n"), Some(0.75)), slice(Some(""), None), slice(None, None)];
        let column = ColumnSlices { column: "country".to_owned(), values: 9, exact: false, slices };
        let lines = table(&column);
        assert_eq!(lines[0], "\nslices by country (more than 9 values)");
        assert_eq!(lines[2], line(["de?", "1,234", "0.7500", "0.2500", "1.5000"].map(str::to_owned)));
        assert!(lines[3].starts_with("  (missing)") && lines[3].contains("undefined"), "{lines:?}");
        assert!(lines[4].starts_with("  all others") && lines[5].contains("too many values"), "{lines:?}");
        assert_eq!(shown(Some(&"ü".repeat(30))), "ü".repeat(24) + "…");
    }
}
