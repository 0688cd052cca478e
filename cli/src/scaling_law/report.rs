//! What came of a family: lines, `scaling-law.json` and `report.html`.

use std::time::Duration;

use indicatif::{HumanCount, HumanDuration};
use serde_json::{Value, json};
use zagros_experiments::scaling::{ForecastDecision, LawCell, LossForecast};
use zagros_shell::{Failure, note, out};

use super::analysis::{FORECAST, FamilyAnalysis, FamilyPlan, ForecastVerification, KeptForecast, write_json};
use super::setup::FamilySetup;

const JSON: &str = "scaling-law.json";
pub(super) const PAGE: &str = "report.html";

/// Says what is about to be trained, and what is not.
pub(super) fn print_plan(setup: &FamilySetup, plan: &FamilyPlan) {
    let family = &plan.family;
    let sizes: Vec<String> = setup.sizes[..family.sizes].iter().map(|size| size.size.to_string()).collect();
    let shares: Vec<String> = family.shares.iter().map(ToString::to_string).collect();
    note!(
        "{} runs: sizes {}, {} seed(s), measured after {} of {} rows, {} side by side, about {}, in {}",
        family.runs.len(),
        sizes.join(", "),
        family.seeds,
        shares.join(", "),
        HumanCount(setup.rows),
        setup.jobs,
        HumanDuration(Duration::from_secs_f64(family.seconds)),
        setup.folder.display()
    );
    for skipped in &family.skipped {
        note!("not within --budget, and skipped: {skipped}");
    }
}

/// Sizes with their loss after the most samples, from small to large: size, parameters, samples, seeds, mean, deviation.
pub(super) fn size_rows(analysis: &FamilyAnalysis) -> Vec<Vec<String>> {
    let Some(measured) = &analysis.measured else { return Vec::new() };
    let most = measured.sample_counts().last().copied().unwrap_or(0.0);
    let cells = measured.cells().into_iter().filter(|cell| cell.samples == most);
    let row = |cell: LawCell| {
        let point = analysis.points.iter().find(|point| point.measured.parameters == cell.parameters);
        let deviation = match cell.losses.len() {
            1 => "-".to_owned(),
            count => {
                let squares: f64 = cell.losses.iter().map(|loss| (loss - cell.mean_loss()).powi(2)).sum();
                format!("{:.5}", (squares / (count - 1) as f64).sqrt())
            }
        };
        vec![
            point.map_or_else(String::new, |point| point.size.clone()),
            HumanCount(cell.parameters as u64).to_string(),
            HumanCount(cell.samples as u64).to_string(),
            cell.losses.len().to_string(),
            format!("{:.5}", cell.mean_loss()),
            deviation,
        ]
    };
    cells.map(row).collect()
}

/// Heads of [`size_rows`].
pub(super) const SIZE_HEAD: [&str; 6] = ["size", "parameters", "samples", "seeds", "log loss", "deviation"];

pub(super) fn print(setup: &FamilySetup, analysis: &FamilyAnalysis) {
    let line = |cells: &[String]| cells.iter().map(|cell| format!("{cell:>13}")).collect::<String>();
    out!("{}", line(&SIZE_HEAD.map(str::to_owned)));
    size_rows(analysis).iter().for_each(|row| out!("{}", line(row)));
    let folder = setup.folder.display();
    if let Some(problem) = &analysis.problem {
        out!("\n  no law                {problem}");
    }
    if let Some(kept) = &analysis.forecast {
        let form = kept.forecast.chosen_law().form.formula();
        out!("\n  law                   {}   ({form})", kept.forecast.chosen_law());
        out!("  forecast              {}", forecast_text(kept));
        if kept.forecast.decision == ForecastDecision::Made {
            out!("  written to            {folder}/{FORECAST}");
        }
    }
    if let Some(verification) = &analysis.verification {
        out!("  verification          {}", verification_text(verification));
    }
    for best in analysis.optima().iter().skip(1).take(2) {
        out!(
            "  best for {:.1e} FLOP  {} parameters on {} samples: log loss {:.5}",
            best.compute,
            HumanCount(best.parameters as u64),
            HumanCount(best.samples as u64),
            best.loss
        );
    }
    out!("  page                  {folder}/{PAGE}, {folder}/{JSON}");
}

/// The forecast in words, or why there is none.
pub(super) fn forecast_text(kept: &KeptForecast) -> String {
    let LossForecast { target, level, loss, low, high, last, decision, .. } = &kept.forecast;
    match decision {
        ForecastDecision::Made => format!(
            "size {} on {} samples: log loss {loss:.5}, {:.0} % interval {low:.5} to {high:.5} (the largest trained size has {last:.5})",
            kept.size,
            HumanCount(target.samples as u64),
            level * 100.0
        ),
        ForecastDecision::Refused { reason } => format!("none of size {}: {reason}", kept.size),
    }
}

pub(super) fn verification_text(verification: &ForecastVerification) -> String {
    let side = if verification.inside { "inside" } else { "outside" };
    let error = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:+.5}"));
    format!(
        "size {} has log loss {:.5}: the forecast is off by {:+.5}, the truth is {side} the interval (the last value is off by {}, a line in log C by {})",
        verification.size,
        verification.loss,
        verification.error,
        error(verification.last_value_error),
        error(verification.line_error)
    )
}

/// Writes what programs read.
pub(super) fn write_summary(setup: &FamilySetup, plan: &FamilyPlan, analysis: &FamilyAnalysis) -> Result<(), Failure> {
    write_json(&setup.folder.join(JSON), &summary(setup, plan, analysis))
}

fn summary(setup: &FamilySetup, plan: &FamilyPlan, analysis: &FamilyAnalysis) -> Value {
    json!({
        "job": setup.job.name,
        "family": plan.family,
        "cost": plan.cost,
        "runs": analysis.points,
        "law": analysis.chosen_law(),
        "problem": analysis.problem,
        "forecast": analysis.forecast,
        "optima": analysis.optima(),
        "verification": analysis.verification,
    })
}
