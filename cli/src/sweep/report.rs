//! What came of a sweep: lines while it runs, the table, `sweep.json`, `sweep.html` and `best.toml`.

use indicatif::{HumanCount, HumanDuration};
use owo_colors::OwoColorize;
use serde_json::{Value, json};
use zagros_experiments::sweep::{Metric, Sampler, Sweep, SweepRecord, Trial, TrialMeasures};
use zagros_plumbing::chart::html::{escape_html, render_document, render_facts, render_table};
use zagros_plumbing::chart::{Chart, ChartSeries};
use zagros_shell::{Failure, load_job, note, out, write_file};
use zagros_zip::ZipEq;

use super::setup::{SweepSetup, unit_name};
use super::trial;

pub(super) const JSON: &str = "sweep.json";
pub(super) const PAGE: &str = "sweep.html";
const BEST: &str = "best.toml";
/// Characters of a reason in the table.
const LONGEST: usize = 60;

/// A cell without a value.
const NOTHING: &str = "-";

pub(super) fn print_start(setup: &SweepSetup, sweep: &Sweep) {
    let plan = &setup.plan;
    let how = match plan.sampler {
        Sampler::Grid => "a grid",
        Sampler::Random => "by chance",
        Sampler::Tpe => "by TPE",
    };
    note!("{} trials, {how}, {} side by side, in {}", plan.trials, setup.jobs, setup.folder.display());
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
                number(metric.value(measures)),
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

pub(super) struct TrialTable {
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl TrialTable {
    pub(super) fn new(setup: &SweepSetup, sweep: &Sweep) -> Self {
        let keys = setup.plan.space.parameters().iter().map(|parameter| parameter.key.clone());
        let measures = metrics(setup).map(|metric| metric.name().to_owned());
        let head = ["trial".to_owned()].into_iter().chain(keys).chain(measures);
        let head = head.chain(["steps", "seconds", "note"].map(str::to_owned)).collect();
        Self { head, rows: sweep.ranked_trials().into_iter().map(|number| row(setup, sweep, number)).collect() }
    }
}

/// The measures of the table: that of the choice first.
fn metrics(setup: &SweepSetup) -> impl Iterator<Item = Metric> {
    let chosen = setup.plan.metric;
    let grouped = setup.job.eval.group_by.is_some();
    let all = [Metric::Auc, Metric::Logloss, Metric::Gauc].into_iter();
    let others = all.filter(move |metric| *metric != chosen && (*metric != Metric::Gauc || grouped));
    std::iter::once(chosen).chain(others)
}

fn row(setup: &SweepSetup, sweep: &Sweep, number: usize) -> Vec<String> {
    let trial = &sweep.trials()[number];
    let score = trial.scores.last();
    let measures = metrics(setup).map(|metric| self::number(score.and_then(|score| metric.value(&score.measures))));
    let steps = score.map_or_else(|| NOTHING.to_owned(), |score| HumanCount(score.steps).to_string());
    let seconds = score.map_or_else(|| NOTHING.to_owned(), |score| format!("{:.1}", score.seconds));
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

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| NOTHING.to_owned(), |value| format!("{value:.4}"))
}

pub(super) fn print(setup: &SweepSetup, sweep: &Sweep) {
    let TrialTable { head, rows } = TrialTable::new(setup, sweep);
    let width = |column: usize| {
        let cells = rows.iter().chain([&head]).map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip_eq(&widths).enumerate();
        let text = |(column, (cell, width)): (usize, (&String, &usize))| match column + 1 == head.len() {
            true => cell.clone(),
            false => format!("{cell:>width$}  "),
        };
        cells.map(text).collect::<String>().trim_end().to_owned()
    };
    out!("{}", line(&head).dimmed());
    rows.iter().for_each(|row| out!("{}", line(row)));
    let folder = setup.folder.display();
    let Some(best) = sweep.best_trial() else {
        out!("\nno trial was scored; what the trials printed is in {folder}/trial-*/log.txt");
        return;
    };
    let seconds: f64 = sweep.trials().iter().filter_map(|trial| trial.scores.last()).map(|score| score.seconds).sum();
    out!("\n  the best job          {folder}/{BEST}: trial {best}, {}", pairs(setup, &sweep.trials()[best]));
    if let Some(tested) = trial::tested(&setup.folder, best) {
        out!("  its test part         AUC {}, logloss {}", number(tested.auc), number(tested.logloss));
    }
    out!("  all trials            {folder}/{PAGE}, {folder}/{JSON}");
    out!("  time of all trials    {}", HumanDuration(std::time::Duration::from_secs_f64(seconds)));
    out!("  train it              zagros train {folder}/{BEST}");
}

pub(super) fn write(setup: &SweepSetup, sweep: &Sweep) -> Result<(), Failure> {
    write_file(&setup.folder.join(PAGE), page(setup, sweep))?;
    let json = serde_json::to_vec_pretty(&summary(setup, sweep));
    write_file(&setup.folder.join(JSON), json.unwrap_or_default())?;
    let Some(best) = sweep.best_trial() else { return Ok(()) };
    let trial = &sweep.trials()[best];
    let job = load_job(&setup.file, &setup.trial_sets(&trial.values))?;
    let metric = setup.plan.metric;
    let value = trial.scores.last().and_then(|score| metric.value(&score.measures));
    let head = format!(
        "# The best of {} trials: trial {best}, {} {} on the validation part.\n# {}\n",
        sweep.trials().len(),
        metric.name(),
        number(value),
        pairs(setup, trial).replace('\n', " ")
    );
    write_file(&setup.folder.join(BEST), head + &job.to_toml())
}

fn summary(setup: &SweepSetup, sweep: &Sweep) -> Value {
    let plan = &setup.plan;
    let trials: Vec<Value> =
        sweep.ranked_trials().into_iter().map(|number| trial_summary(setup, sweep, number)).collect();
    json!({
        "job": setup.job.name,
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

fn page(setup: &SweepSetup, sweep: &Sweep) -> String {
    let name = &setup.job.name;
    let heading =
        format!("<h1>{}: sweep</h1>\n<p class=\"lead\">{}</p>\n", escape_html(name), escape_html(&lead(setup, sweep)));
    let charts = format!(
        "<h2>Trials</h2>\n<div class=\"charts\">{}</div>\n",
        chart(setup, sweep).render_figure().unwrap_or_default()
    );
    render_document(
        &format!("{name}: sweep · Zagros"),
        &[heading, best(setup, sweep), charts, trials(setup, sweep)].concat(),
    )
}

fn lead(setup: &SweepSetup, sweep: &Sweep) -> String {
    let failed = sweep.trials().iter().filter(|trial| trial.failure.is_some()).count();
    let failed = if failed == 0 { String::new() } else { format!(", {failed} of them failed") };
    let plan = &setup.plan;
    format!("{} of {} trials{failed}; searched: {}", sweep.trials().len(), plan.trials, setup.texts.join(", "))
}

fn best(setup: &SweepSetup, sweep: &Sweep) -> String {
    let Some(best) = sweep.best_trial() else { return String::new() };
    let TrialTable { head, rows } = TrialTable::new(setup, sweep);
    let Some(row) = rows.first() else { return String::new() };
    let cells = head.iter().map(String::as_str).zip_eq(row.iter().cloned()).filter(|(_, cell)| !cell.is_empty());
    format!("<h2>The best: trial {best}</h2>\n{}\n", render_facts(&cells.collect::<Vec<_>>()))
}

/// Each trial's measure in the order of the trials, and the best so far.
fn chart(setup: &SweepSetup, sweep: &Sweep) -> Chart {
    let metric = setup.plan.metric;
    let scored = sweep.trials().iter().enumerate().filter_map(|(number, trial)| {
        let score = trial.scores.last()?;
        Some((number as f64, metric.value(&score.measures)?, metric.merit(&score.measures)?))
    });
    let scored: Vec<(f64, f64, f64)> = scored.collect();
    let mut most = f64::NEG_INFINITY;
    let mut so_far = Vec::new();
    for (number, value, merit) in &scored {
        if *merit > most {
            most = *merit;
            so_far.push((*number, *value));
        } else if let Some((_, value)) = so_far.last().copied() {
            so_far.push((*number, value));
        }
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

/// All trials, the best last: a long table shows its last rows.
fn trials(setup: &SweepSetup, sweep: &Sweep) -> String {
    let TrialTable { head, rows } = TrialTable::new(setup, sweep);
    let best = sweep.best_trial().map(|best| best.to_string());
    let class = |row: &Vec<String>| if row.first() == best.as_ref() { "best" } else { "" };
    let rows: Vec<_> = rows.iter().rev().map(|row| (class(row), row.clone())).collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    format!("<p class=\"lead\">The best is the last.</p>{}", render_table(&head, &rows))
}
