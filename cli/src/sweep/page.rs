//! The page of a sweep, `sweep.html`: one file that opens offline.

use zagros_plumbing::chart::html::{escape_html, render_document, render_facts, render_table};
use zagros_plumbing::chart::{Chart, ChartSeries};
use zagros_shell::Failure;
use zagros_sweep::{Metric, Sweep};
use zagros_zip::ZipEq;

use super::report::{PAGE, TrialTable, write_file};
use super::setup::SweepSetup;

pub(super) fn write_page(setup: &SweepSetup, sweep: &Sweep) -> Result<(), Failure> {
    write_file(&setup.folder.join(PAGE), page(setup, sweep).as_bytes())
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
    let failed =
        sweep.trials().iter().filter(|trial| matches!(trial.state, zagros_sweep::TrialState::Failed(_))).count();
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
