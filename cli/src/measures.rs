//! Measures of a held-out part in words, those that the kind of target has, and measures of targets and slices as tables.

use indicatif::HumanCount;
use zagros_dense_worker::{Evaluation, TargetMeasures};
use zagros_eval::{ColumnSlices, SliceMeasures};
use zagros_plumbing::chart::html::NOTHING;
use zagros_shell::{CommandReport, ReportTable};

/// The measures of a part, by the kind of its target. Those of clicks have their groups as well, if there are any.
fn measures_of_kind(evaluation: &Evaluation) -> Vec<(&'static str, Option<f64>)> {
    let Evaluation { mse, rmse, mae, deviance, accuracy, logloss, auc, gauc, calibration, .. } = *evaluation;
    if mse.is_some() {
        let counts = [("deviance", deviance), ("calibration", calibration)];
        let all = [("MSE", mse), ("RMSE", rmse), ("MAE", mae)].into_iter();
        return all.chain(counts.into_iter().filter(|(_, value)| value.is_some())).collect();
    }
    match (accuracy, evaluation.groups) {
        (Some(_), _) => vec![("accuracy", accuracy), ("logloss", logloss), ("mean AUC", auc)],
        (None, Some(_)) => vec![("AUC", auc), ("GAUC", gauc), ("logloss", logloss)],
        (None, None) => vec![("AUC", auc), ("logloss", logloss)],
    }
}

pub(crate) fn is_of_clicks(evaluation: &Evaluation) -> bool {
    evaluation.mse.is_none() && evaluation.accuracy.is_none()
}

/// The measures of any target, in one line.
pub(crate) fn in_words(evaluation: &Evaluation) -> String {
    let measures = measures_of_kind(evaluation).into_iter();
    measures.map(|(name, value)| format!("{name} {}", format_measure(value))).collect::<Vec<_>>().join(", ")
}

pub(crate) fn facts(evaluation: &Evaluation) -> Vec<(&'static str, String)> {
    let Evaluation { auc, logloss, normalised_entropy, calibration, ece, .. } = *evaluation;
    let text = |(name, value)| (name, format_measure(value));
    if !is_of_clicks(evaluation) {
        return measures_of_kind(evaluation).into_iter().map(text).collect();
    }
    let others = [
        ("logloss", logloss),
        ("normalised entropy", normalised_entropy),
        ("calibration", calibration),
        ("calibration error", ece),
    ];
    let grouped = grouped_auc(evaluation).map(|gauc| ("GAUC", gauc));
    [text(("AUC", auc))].into_iter().chain(grouped).chain(others.map(text)).collect()
}

/// The AUC within groups, and the number of groups; `None` if no groups were asked for.
pub(crate) fn grouped_auc(evaluation: &Evaluation) -> Option<String> {
    let groups = evaluation.groups?;
    let Some(gauc) = evaluation.gauc else { return Some("undefined (no group has both classes)".to_owned()) };
    let share = evaluation.group_share.filter(|share| *share < 1.0);
    let sampled = share.map_or_else(String::new, |share| format!(", a sample of {:.3} % of all", share * 100.0));
    Some(format!("{gauc:.4} (mean over {} groups with both classes{sampled})", HumanCount(groups)))
}

pub(crate) fn calibrated_text(after: &Evaluation) -> String {
    if !is_of_clicks(after) {
        return in_words(after);
    }
    let Evaluation { logloss, calibration, ece, auc, .. } = *after;
    let [logloss, calibration, ece, auc] = [logloss, calibration, ece, auc].map(format_measure);
    format!("logloss {logloss}, calibration {calibration}, calibration error {ece}, AUC {auc}")
}

/// A line for each target, if there are several.
pub(crate) fn target_table(targets: &[TargetMeasures]) -> ReportTable {
    let row = |name: &str, evaluation: &Evaluation, note: &str| {
        let samples = HumanCount(evaluation.samples).to_string();
        vec![name.to_owned(), format!("{}{note}", in_words(evaluation)), samples]
    };
    let mut rows = Vec::new();
    for TargetMeasures { target, evaluation, calibrated } in targets {
        rows.push(row(target, evaluation, ""));
        rows.extend(calibrated.as_ref().map(|calibrated| row("", calibrated, " after calibration")));
    }
    ReportTable::new(&["label", "measures", "samples"], rows)
}

/// A number in a table, or that there is none.
pub(crate) fn decimal(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| NOTHING.to_owned(), |value| format!("{value:.digits$}"))
}

/// Four digits after the point.
pub(crate) fn format_measure(value: Option<f64>) -> String {
    value.map_or_else(|| "undefined".to_owned(), |value| format!("{value:.4}"))
}

/// Characters of a value that are shown.
const SHOWN: usize = 24;

pub(crate) fn add_slices(report: &mut CommandReport, columns: &[ColumnSlices]) {
    for column in columns {
        let values = HumanCount(column.values);
        let counted = if column.exact { format!("{values} values") } else { format!("more than {values} values") };
        report.add_title(&format!("slices by {} ({counted})", column.column)).add_table(slice_table(column));
        if !column.exact {
            report.add_note("  too many values: some samples of rare ones are among the others");
        }
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
