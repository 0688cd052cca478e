//! `zagros eval`: score data with a saved model, in one process.

use std::sync::Arc;
use std::time::Duration;

use indicatif::HumanCount;
use owo_colors::OwoColorize;
use zagros_dense_worker::{ImportanceOptions, ImportanceReport, PartMeasures, ScoringCommand, TargetImportance};
use zagros_eval::importance::{FeatureImportance, RepeatSpread};
use zagros_plumbing::lifecycle::Shutdown;
use zagros_shell::{Exit, Failure, out, print_figures, watch_signals};

use crate::args::EvalArgs;
use crate::backend::backend;
use crate::saved::{SavedModel, check_trust};
use crate::scored_rows::job_for;
use crate::terminal::Terminal;
use crate::{measures, report};

pub(crate) async fn run(args: EvalArgs) -> Result<Exit, Failure> {
    let saved = SavedModel::find(&args.run, Duration::from_secs(args.timeout))?;
    let job = match args.data.as_slice() {
        [] => saved.load_job(&args.sets)?,
        files => job_for(&saved, &args.sets, files, None)?,
    };
    check_trust(&job, args.trust_module.as_deref())?;
    let shutdown = Shutdown::new();
    let signals = watch_signals(&shutdown)?;
    let terminal = Arc::new(Terminal::new(false));
    let (model, files) = (saved.folder, (!args.data.is_empty()).then_some(args.data));
    let scoring = ScoringCommand { job, model, files, backend: backend(), observer: terminal.clone(), shutdown };
    let found = scoring.evaluate(args.importance.map(|repeats| ImportanceOptions { repeats })).await;
    terminal.finish();
    let found = found.map_err(|error| report::scoring_failure(error, &signals, &[]))?;
    print_figures(&found, args.json, print)
}

fn print(found: &PartMeasures) {
    let PartMeasures { evaluation, targets, slices, .. } = found;
    let measure = measures::format_measure;
    out!("samples              {}", indicatif::HumanCount(evaluation.samples));
    let others = measures::of_others(evaluation);
    if !others.is_empty() {
        others.iter().for_each(|(name, value)| out!("{name:<21}{}", measures::format_measure(*value)));
        print_calibrated(found);
        measures::print_targets(targets);
        found.importance.iter().for_each(print_importance);
        return;
    }
    out!("AUC                  {}", measure(evaluation.auc));
    if let Some(gauc) = report::grouped_auc(evaluation) {
        out!("GAUC                 {gauc}");
    }
    out!("logloss              {}", measure(evaluation.logloss));
    out!("normalised entropy   {}", measure(evaluation.normalised_entropy));
    out!("calibration          {}", measure(evaluation.calibration));
    measures::print_targets(targets);
    out!("calibration error    {}", measure(evaluation.ece));
    print_calibrated(found);
    measures::print_slices(slices);
    found.importance.iter().for_each(print_importance);
}

fn print_calibrated(found: &PartMeasures) {
    if let Some(calibrated) = &found.calibrated {
        out!("after calibration    {}", report::calibrated_text(calibrated));
    }
}

/// What a measure loses without a feature.
type MeasureOf = fn(&FeatureImportance) -> Option<RepeatSpread>;

fn print_importance(importance: &ImportanceReport) {
    importance_table(importance).into_iter().for_each(|line| out!("{line}"));
}

fn importance_table(importance: &ImportanceReport) -> Vec<String> {
    let ImportanceReport { repeats, block_rows, features, targets } = importance;
    let times = if *repeats == 1 { "once".to_owned() } else { format!("{repeats} times") };
    let rows = HumanCount(*block_rows as u64);
    let title = format!("\nimportance: each feature's values exchanged {times} between the rows of blocks of {rows}");
    let others = targets.iter().flat_map(|TargetImportance { target, features }| {
        [format!("\nimportance for {target}")].into_iter().chain(of_target(features))
    });
    [title].into_iter().chain(of_target(features)).chain(others).collect()
}

/// A head and a line for each feature, with the measures that the target has.
fn of_target(features: &[FeatureImportance]) -> Vec<String> {
    let measures: [(&str, MeasureOf); 4] = [
        ("AUC falls by", |of| of.auc_loss),
        ("logloss rises by", |of| of.logloss_rise),
        ("MSE rises by", |of| of.mse_rise),
        ("deviance rises by", |of| of.deviance_rise),
    ];
    let is_defined = |of: MeasureOf| features.iter().any(|feature| of(feature).is_some());
    let measures: Vec<_> = measures.into_iter().filter(|(_, of)| is_defined(*of)).collect();
    let head = measures.iter().flat_map(|(name, _)| [(*name).to_owned(), "±".to_owned()]).collect::<Vec<_>>();
    let head = line("feature", &head).dimmed().to_string();
    let show = |spread: Option<RepeatSpread>| match spread {
        None => ["undefined".to_owned(), "-".to_owned()],
        Some(RepeatSpread { mean, deviation }) => {
            [format!("{mean:.5}"), deviation.map_or_else(|| "-".to_owned(), |deviation| format!("{deviation:.5}"))]
        }
    };
    let row = |feature: &FeatureImportance| {
        let cells = measures.iter().flat_map(|(_, measure)| show(measure(feature)));
        line(&feature.feature, &cells.collect::<Vec<_>>())
    };
    [head].into_iter().chain(features.iter().map(row)).collect()
}

/// Pairs of a measure and its deviation.
fn line(feature: &str, cells: &[String]) -> String {
    let cells = cells.chunks(2).map(|pair| format!("{:>18}{:>10}", pair[0], pair.get(1).map_or("", String::as_str)));
    format!("  {feature:<24}{}", cells.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feature(name: &str) -> FeatureImportance {
        let feature = name.to_owned();
        FeatureImportance { feature, auc_loss: None, logloss_rise: None, mse_rise: None, deviance_rise: None }
    }

    #[test]
    fn a_feature_is_a_line_and_a_target_a_table_with_its_measures() {
        let auc_loss = Some(RepeatSpread { mean: 0.125, deviation: Some(0.001) });
        let logloss_rise = Some(RepeatSpread { mean: -0.5, deviation: None });
        let features = vec![FeatureImportance { auc_loss, logloss_rise, ..feature("user") }, feature("tag")];
        let price = vec![FeatureImportance { mse_rise: auc_loss, ..feature("user") }];
        let targets = vec![TargetImportance { target: "price".to_owned(), features: price }];
        let lines = importance_table(&ImportanceReport { repeats: 5, block_rows: 65_536, features, targets });
        assert!(lines[0].contains("5 times") && lines[0].contains("65,536"), "{lines:?}");
        assert_eq!(lines[2], line("user", &["0.12500", "0.00100", "-0.50000", "-"].map(str::to_owned)));
        assert!(lines[3].contains("tag") && lines[3].contains("undefined"), "{lines:?}");
        assert!(lines[4].contains("importance for price") && lines[5].contains("MSE rises by"), "{lines:?}");
        assert!(!lines[5].contains("AUC") && lines[6].contains("0.12500"), "{lines:?}");
    }
}
