//! What came of a sweep: lines while it runs, the table, `sweep.json`, `sweep.html` and `best.toml`.

use indicatif::{HumanCount, HumanDuration};
use serde_json::{Value, json};
use zagros_experiments::sweep::{Metric, Sampler, Sweep, SweepRecord, Trial, TrialMeasures};
use zagros_plumbing::chart::html::NOTHING;
use zagros_plumbing::chart::{Chart, ChartSeries};
use zagros_shell::{CommandReport, Failure, ReportTable, load_job, note, write_file};
use zagros_zip::ZipEq;

use super::setup::{SweepSetup, unit_name};
use super::{test_measures, trial_folder};
use crate::measures::decimal;

pub(super) const JSON: &str = "sweep.json";
pub(super) const PAGE: &str = "sweep.html";
const BEST: &str = "best.toml";
const LONGEST: usize = 60;

pub(super) fn print_start(setup: &SweepSetup, sweep: &Sweep) {
    let plan = &setup.plan;
    let how = match plan.sampler {
        Sampler::Grid => "a grid",
        Sampler::Random => "by chance",
        Sampler::Tpe => "by TPE",
    };
    note!("{} trials, {how}, {} side by side, in {}", plan.trials, setup.base.jobs, setup.base.folder.display());
    if let Some(rungs) = &plan.rungs {
        let levels: Vec<String> = rungs.levels.iter().map(|level| HumanCount(*level).to_string()).collect();
        note!("the best third goes on after {} {}", levels.join(", "), unit_name(rungs.unit));
    }
    let scored = sweep.trials().iter().filter(|trial| !trial.scores.is_empty()).count();
    if !sweep.trials().is_empty() {
        note!("going on: {} trials were chosen, {scored} of them scored", sweep.trials().len());
    }
}

pub(super) fn print_record(setup: &SweepSetup, sweep: &Sweep, record: &SweepRecord) {
    let values = |trial: usize| pairs(setup, &sweep.trials()[trial]);
    match record {
        SweepRecord::Chosen { .. } => {}
        SweepRecord::Scored { trial, rung, measures, .. } => {
            let metric = setup.plan.metric;
            let level = match &setup.plan.rungs {
                Some(rungs) => format!(" after {} {}", HumanCount(rungs.levels[*rung]), unit_name(rungs.unit)),
                None => String::new(),
            };
            let best = sweep.best_trial().map_or_else(String::new, |best| format!(" (best: trial {best})"));
            note!(
                "trial {trial}{level}: {} {}{best}  {}",
                metric.name(),
                decimal(metric.value(measures), 4),
                values(*trial)
            );
        }
        SweepRecord::Failed { trial, reason } => note!("trial {trial} failed: {reason}  {}", values(*trial)),
    }
}

/// `lr=0.01 dim=8`
fn pairs(setup: &SweepSetup, trial: &Trial) -> String {
    let pairs = setup.plan.space.parameters().iter().zip_eq(&trial.values);
    pairs.map(|(parameter, value)| format!("{}={value}", parameter.key)).collect::<Vec<_>>().join(" ")
}

/// The best trial is the last.
fn trial_table(setup: &SweepSetup, sweep: &Sweep) -> ReportTable {
    let keys = setup.plan.space.parameters().iter().map(|parameter| parameter.key.clone());
    let measures = metrics(setup).map(|metric| metric.name().to_owned());
    let head = ["trial".to_owned()].into_iter().chain(keys).chain(measures);
    let head = head.chain(["steps", "seconds", "note"].map(str::to_owned)).collect();
    let rows: Vec<_> = sweep.ranked_trials().into_iter().rev().map(|number| row(setup, sweep, number)).collect();
    let best = sweep.best_trial().and_then(|_| rows.len().checked_sub(1));
    ReportTable { head, rows, best, shows_end: true }
}

/// The measures of the table: that of the choice first.
fn metrics(setup: &SweepSetup) -> impl Iterator<Item = Metric> {
    let chosen = setup.plan.metric;
    let grouped = setup.base.job.eval.group_by.is_some();
    let all = [Metric::Auc, Metric::Logloss, Metric::Gauc].into_iter();
    let others = all.filter(move |metric| *metric != chosen && (*metric != Metric::Gauc || grouped));
    std::iter::once(chosen).chain(others)
}

fn row(setup: &SweepSetup, sweep: &Sweep, number: usize) -> Vec<String> {
    let trial = &sweep.trials()[number];
    let score = trial.scores.last();
    let measures = metrics(setup).map(|metric| decimal(score.and_then(|score| metric.value(&score.measures)), 4));
    let steps = score.map_or_else(|| NOTHING.to_owned(), |score| HumanCount(score.steps).to_string());
    let seconds = decimal(score.map(|score| score.seconds), 1);
    let head = [number.to_string()].into_iter().chain(trial.values.iter().cloned());
    head.chain(measures).chain([steps, seconds, remark(setup, trial)]).collect()
}

/// What is to be said of a trial that is not trained to its end.
fn remark(setup: &SweepSetup, trial: &Trial) -> String {
    let rungs = setup.plan.rungs.as_ref().map_or(1, |rungs| rungs.levels.len());
    match (&trial.failure, trial.scores.len()) {
        (Some(reason), _) => format!("failed: {}", reason.chars().take(LONGEST).collect::<String>()),
        (None, scored) if scored == rungs => String::new(),
        (None, 0) => "not scored".to_owned(),
        (None, scored) => format!("rung {scored} of {rungs}"),
    }
}

/// The trials and what to do with the best one, for a terminal and for the page.
pub(super) fn report(setup: &SweepSetup, sweep: &Sweep) -> CommandReport {
    let mut report = CommandReport::default();
    report.add_lead(&lead(setup, sweep)).add_title("Trials, the best last").add_table(trial_table(setup, sweep));
    report.add_figures([chart(setup, sweep).render_figure()]);
    let folder = setup.base.folder.display();
    let Some(best) = sweep.best_trial() else {
        report.add_note(&format!("no trial was scored; what the trials printed is in {folder}/trial-*/log.txt"));
        return report;
    };
    let seconds: f64 = sweep.trials().iter().filter_map(|trial| trial.scores.last()).map(|score| score.seconds).sum();
    let tested = test_measures(&trial_folder(&setup.base.folder, best)).map(|tested| {
        ("its test part", format!("AUC {}, logloss {}", decimal(tested.auc, 4), decimal(tested.logloss, 4)))
    });
    let mut facts =
        vec![("the best job", format!("{folder}/{BEST}: trial {best}, {}", pairs(setup, &sweep.trials()[best])))];
    facts.extend(tested);
    facts.extend([
        ("all trials", format!("{folder}/{PAGE}, {folder}/{JSON}")),
        ("time of all trials", HumanDuration(std::time::Duration::from_secs_f64(seconds)).to_string()),
        ("train it", format!("zagros train {folder}/{BEST}")),
    ]);
    report.add_title(&format!("The best: trial {best}")).add_facts(facts);
    report
}

pub(super) fn write(setup: &SweepSetup, sweep: &Sweep) -> Result<(), Failure> {
    let page = report(setup, sweep).render_page(&format!("{}: sweep", setup.base.job.name));
    write_file(&setup.base.folder.join(PAGE), page)?;
    let json = serde_json::to_vec_pretty(&summary(setup, sweep));
    write_file(&setup.base.folder.join(JSON), json.unwrap_or_default())?;
    let Some(best) = sweep.best_trial() else { return Ok(()) };
    let trial = &sweep.trials()[best];
    let job = load_job(&setup.base.file, &setup.trial_sets(&trial.values))?;
    let metric = setup.plan.metric;
    let value = trial.scores.last().and_then(|score| metric.value(&score.measures));
    let head = format!(
        "# The best of {} trials: trial {best}, {} {} on the validation part.\n# {}\n",
        sweep.trials().len(),
        metric.name(),
        decimal(value, 4),
        pairs(setup, trial).replace('\n', " ")
    );
    write_file(&setup.base.folder.join(BEST), head + &job.to_toml())
}

fn summary(setup: &SweepSetup, sweep: &Sweep) -> Value {
    let plan = &setup.plan;
    let trials: Vec<Value> =
        sweep.ranked_trials().into_iter().map(|number| trial_summary(setup, sweep, number)).collect();
    json!({
        "job": setup.base.job.name,
        "sampler": plan.sampler,
        "space": setup.texts,
        "seed": plan.seed,
        "metric": plan.metric,
        "rungs": plan.rungs,
        "best": sweep.best_trial(),
        "trials": trials,
    })
}

fn trial_summary(setup: &SweepSetup, sweep: &Sweep, number: usize) -> Value {
    let trial = &sweep.trials()[number];
    let pairs = setup.plan.space.parameters().iter().zip_eq(&trial.values);
    let values: serde_json::Map<String, Value> =
        pairs.map(|(parameter, value)| (parameter.key.clone(), Value::from(value.as_str()))).collect();
    let score = trial.scores.last();
    let TrialMeasures { auc, logloss, gauc } = score.map(|score| score.measures).unwrap_or_default();
    json!({
        "trial": number,
        "values": values,
        "rungs": trial.scores.len(),
        "auc": auc,
        "logloss": logloss,
        "gauc": gauc,
        "steps": score.map(|score| score.steps),
        "seconds": score.map(|score| score.seconds),
        "failed": trial.failure,
    })
}

fn lead(setup: &SweepSetup, sweep: &Sweep) -> String {
    let failed = sweep.trials().iter().filter(|trial| trial.failure.is_some()).count();
    let failed = if failed == 0 { String::new() } else { format!(", {failed} of them failed") };
    let plan = &setup.plan;
    format!("{} of {} trials{failed}; searched: {}", sweep.trials().len(), plan.trials, setup.texts.join(", "))
}

/// Each trial's measure in the order of the trials, and the best so far.
fn chart(setup: &SweepSetup, sweep: &Sweep) -> Chart {
    let metric = setup.plan.metric;
    let scored = sweep.trials().iter().enumerate().filter_map(|(number, trial)| {
        let score = trial.scores.last()?;
        Some((number as f64, metric.value(&score.measures)?, metric.merit(&score.measures)?))
    });
    let scored: Vec<(f64, f64, f64)> = scored.collect();
    let mut best: Option<(f64, f64)> = None;
    let mut so_far = Vec::new();
    for (number, value, merit) in &scored {
        if best.is_none_or(|(_, most)| *merit > most) {
            best = Some((*value, *merit));
        }
        so_far.extend(best.map(|(value, _)| (*number, value)));
    }
    let points = scored.iter().map(|(number, value, _)| (*number, *value)).collect();
    let title = match metric {
        Metric::Auc => "AUC",
        Metric::Logloss => "Logloss",
        Metric::Gauc => "GAUC",
    };
    Chart {
        title,
        subtitle: "on the validation part, of each trial as far as it was trained",
        across: "trials",
        series: vec![
            ChartSeries { name: "best so far", colour: 1, dots: false, points: so_far },
            ChartSeries { name: "trial", colour: 0, dots: true, points },
        ],
        ..Chart::default()
    }
}
