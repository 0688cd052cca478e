//! Measures of a held-out part in words, those that the kind of target has, and measures of slices as tables.

use indicatif::HumanCount;
use zagros_dense_worker::{Evaluation, TargetMeasures};
use zagros_eval::{ColumnSlices, SliceMeasures};
use zagros_shell::{CommandReport, ReportTable, out};

pub(crate) type Measure = (&'static str, Option<f64>);

pub(crate) fn of_others(evaluation: &Evaluation) -> Vec<Measure> {
    let Evaluation { mse, rmse, mae, deviance, accuracy, logloss, auc, calibration, .. } = *evaluation;
    if mse.is_some() {
        let counts = [("deviance", deviance), ("calibration", calibration)];
        let all = [("MSE", mse), ("RMSE", rmse), ("MAE", mae)].into_iter();
        return all.chain(counts.into_iter().filter(|(_, value)| value.is_some())).collect();
    }
    match accuracy {
        Some(_) => vec![("accuracy", accuracy), ("logloss", logloss), ("mean AUC", auc)],
        None => Vec::new(),
    }
}

/// The measures of any target, in one line.
pub(crate) fn in_words(evaluation: &Evaluation) -> String {
    let measure = |(name, value): &Measure| format!("{name} {}", format_measure(*value));
    let others = of_others(evaluation);
    let all = if others.is_empty() { vec![("AUC", evaluation.auc), ("logloss", evaluation.logloss)] } else { others };
    all.iter().map(measure).collect::<Vec<_>>().join(", ")
}

/// A line for each target, if there are several.
pub(crate) fn print_targets(targets: &[TargetMeasures]) {
    for TargetMeasures { target, evaluation, calibrated } in targets {
        let samples = HumanCount(evaluation.samples);
        out!("  {target:<14}{} ({samples} samples)", in_words(evaluation));
        if let Some(calibrated) = calibrated {
            out!("  {:<14}{} after calibration", "", in_words(calibrated));
        }
    }
}

/// Four digits after the point.
pub(crate) fn format_measure(value: Option<f64>) -> String {
    value.map_or_else(|| "undefined".to_owned(), |value| format!("{value:.4}"))
}

/// Characters of a value that are shown.
const SHOWN: usize = 24;

pub(crate) fn print_slices(columns: &[ColumnSlices]) {
    for column in columns {
        let values = HumanCount(column.values);
        let counted = if column.exact { format!("{values} values") } else { format!("more than {values} values") };
        let mut report = CommandReport::default();
        report.add_title(&format!("slices by {} ({counted})", column.column)).add_table(slice_table(column));
        if !column.exact {
            report.add_note("  too many values: some samples of rare ones are among the others");
        }
        report.print();
    }
}

fn slice_table(column: &ColumnSlices) -> ReportTable {
    let row = |slice: &SliceMeasures| {
        let [auc, logloss, calibration] = [slice.auc, slice.logloss, slice.calibration].map(format_measure);
        vec![shown(slice.value.as_deref()), HumanCount(slice.samples).to_string(), auc, logloss, calibration]
    };
    let head = ["value", "samples", "AUC", "logloss", "calibration"];
    ReportTable::new(&head, column.slices.iter().map(row).collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_target_has_its_measures() {
        let none = Evaluation::default();
        assert_eq!(in_words(&Evaluation { auc: Some(0.75), ..none }), "AUC 0.7500, logloss undefined");
        let errors = Evaluation { mse: Some(4.0), rmse: Some(2.0), mae: Some(1.5), ..none };
        assert_eq!(in_words(&errors), "MSE 4.0000, RMSE 2.0000, MAE 1.5000");
        let counts = Evaluation { deviance: Some(0.5), calibration: Some(1.25), ..errors };
        assert!(in_words(&counts).ends_with("MAE 1.5000, deviance 0.5000, calibration 1.2500"));
        let classes = Evaluation { accuracy: Some(0.5), logloss: Some(1.0), auc: Some(0.75), ..none };
        assert_eq!(in_words(&classes), "accuracy 0.5000, logloss 1.0000, mean AUC 0.7500");
    }

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
        let rows = slice_table(&column).rows;
        assert_eq!(rows[0], ["de?", "1,234", "0.7500", "0.2500", "1.5000"]);
        assert_eq!((&*rows[1][0], &*rows[1][2], &*rows[2][0]), ("(missing)", "undefined", "all others"));
        assert_eq!(shown(Some(&"ü".repeat(30))), "ü".repeat(24) + "…");
    }
}
