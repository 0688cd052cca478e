//! `zagros eval`: score data with a saved model, in one process.

use std::time::Duration;

use indicatif::HumanCount;
use zagros_dense_worker::{ImportanceReport, PartMeasures, TargetImportance};
use zagros_eval::importance::{FeatureImportance, RepeatSpread};
use zagros_plumbing::lifecycle::Shutdown;
use zagros_shell::{CommandReport, Exit, Failure, ReportTable, print_figures, watch_signals};

use crate::args::EvalArgs;
use crate::measures;
use crate::report::scoring_failure;
use crate::saved::{SavedModel, check_trust};
use crate::scored_rows::job_for;

pub(crate) async fn run(args: EvalArgs) -> Result<Exit, Failure> {
    let saved = SavedModel::find(&args.run, Duration::from_secs(args.timeout))?;
    let job = match args.data.as_slice() {
        [] => saved.load_job(&args.sets)?,
        files => job_for(&saved, &args.sets, files, None)?,
    };
    check_trust(&job, args.trust_module.as_deref())?;
    let shutdown = Shutdown::new();
    let signals = watch_signals(&shutdown)?;
    let files = (!args.data.is_empty()).then_some(args.data);
    let found = saved.evaluate(job, files, args.importance, shutdown).await;
    let found = found.map_err(|error| scoring_failure(error, &signals, &[]))?;
    print_figures(&found, args.json, |found| report(found).print())
}

fn report(found: &PartMeasures) -> CommandReport {
    let PartMeasures { evaluation, calibrated, targets, slices, importance, .. } = found;
    let mut facts = vec![("samples", HumanCount(evaluation.samples).to_string())];
    facts.extend(measures::facts(evaluation));
    facts.extend(calibrated.as_ref().map(|after| ("after calibration", measures::calibrated_text(after))));
    let mut report = CommandReport::default();
    report.add_facts(facts);
    report.add_title("labels").add_table(measures::target_table(targets));
    measures::add_slices(&mut report, slices);
    importance.iter().for_each(|importance| add_importance(&mut report, importance));
    report
}

/// What a measure loses without a feature.
type MeasureOf = fn(&FeatureImportance) -> Option<RepeatSpread>;

fn add_importance(report: &mut CommandReport, importance: &ImportanceReport) {
    let ImportanceReport { repeats, block_rows, features, targets } = importance;
    let times = if *repeats == 1 { "once".to_owned() } else { format!("{repeats} times") };
    let rows = HumanCount(*block_rows as u64);
    let title = format!("importance: each feature's values exchanged {times} between the rows of blocks of {rows}");
    report.add_title(&title).add_table(importance_table(features));
    for TargetImportance { target, features } in targets {
        report.add_title(&format!("importance for {target}")).add_table(importance_table(features));
    }
}

/// A line for each feature, with the measures that the target has and their deviations.
fn importance_table(features: &[FeatureImportance]) -> ReportTable {
    let measures: [(&str, MeasureOf); 4] = [
        ("AUC falls by", |of| of.auc_loss),
        ("logloss rises by", |of| of.logloss_rise),
        ("MSE rises by", |of| of.mse_rise),
        ("deviance rises by", |of| of.deviance_rise),
    ];
    let is_defined = |of: MeasureOf| features.iter().any(|feature| of(feature).is_some());
    let measures: Vec<_> = measures.into_iter().filter(|(_, of)| is_defined(*of)).collect();
    let text = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.5}"));
    let row = |feature: &FeatureImportance| {
        let spreads = measures.iter().map(|(_, measure)| measure(feature));
        let cells = spreads.flat_map(|spread| {
            [text(spread.map(|spread| spread.mean)), text(spread.and_then(|spread| spread.deviation))]
        });
        [feature.feature.clone()].into_iter().chain(cells).collect()
    };
    let head: Vec<&str> = ["feature"].into_iter().chain(measures.iter().flat_map(|(name, _)| [*name, "±"])).collect();
    ReportTable::new(&head, features.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feature(name: &str) -> FeatureImportance {
        let feature = name.to_owned();
        FeatureImportance { feature, auc_loss: None, logloss_rise: None, mse_rise: None, deviance_rise: None }
    }

    #[test]
    fn a_feature_is_a_line_with_the_measures_of_its_target() {
        let auc_loss = Some(RepeatSpread { mean: 0.125, deviation: Some(0.001) });
        let logloss_rise = Some(RepeatSpread { mean: -0.5, deviation: None });
        let features = vec![FeatureImportance { auc_loss, logloss_rise, ..feature("user") }, feature("tag")];
        let table = importance_table(&features);
        assert_eq!(table.head, ["feature", "AUC falls by", "±", "logloss rises by", "±"]);
        assert_eq!(table.rows[0], ["user", "0.12500", "0.00100", "-0.50000", "-"]);
        assert_eq!(table.rows[1], ["tag", "-", "-", "-", "-"]);
        let price = FeatureImportance { mse_rise: auc_loss, ..feature("user") };
        assert_eq!(importance_table(&[price]).head, ["feature", "MSE rises by", "±"]);
    }
}
