//! What came of a family: lines, `scaling-law.json` and `report.html`.

use std::time::Duration;

use indicatif::{HumanCount, HumanDuration};
use serde_json::{Value, json};
use zagros_experiments::scaling::{ComputeOptimum, ForecastDecision, LawCandidate, LawCell, LossForecast};
use zagros_plumbing::chart::LogChart;
use zagros_plumbing::chart::html::NOTHING;
use zagros_shell::{CommandReport, Failure, ReportTable, note, write_file};

use super::FamilyPlan;
use super::analysis::{FORECAST, FamilyAnalysis, ForecastVerification, KeptForecast, write_json};
use super::charts::charts;
use super::member::MemberPoint;
use super::setup::FamilySetup;
use crate::measures::decimal;
use crate::planning::count;

const JSON: &str = "scaling-law.json";
const PAGE: &str = "report.html";

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
        HumanCount(setup.request.rows),
        setup.base.jobs,
        HumanDuration(Duration::from_secs_f64(family.seconds)),
        setup.base.folder.display()
    );
    for skipped in &family.skipped {
        note!("not within --budget, and skipped: {skipped}");
    }
}

fn report(plan: &FamilyPlan, analysis: &FamilyAnalysis) -> CommandReport {
    let family = &plan.family;
    let time = HumanDuration(Duration::from_secs_f64(family.seconds));
    let measured = analysis.points.iter().filter(|point| Some(&point.share) == family.shares.last()).count();
    let runs = family.runs.len();
    let mut report = CommandReport::default();
    report.add_lead(&format!("{measured} of {runs} runs have come to their end; the plan was {time}"));
    for skipped in &family.skipped {
        report.add_lead(&format!("Skipped, to end within the budget: {skipped}"));
    }
    report.add_title("Sizes, after the most samples").add_table(size_table(analysis));
    report.add_title("Best size and samples for a compute budget").add_table(optima(&analysis.optima()));
    report.add_title("Law and forecast");
    if let Some(problem) = &analysis.problem {
        report.add_note(&format!("No law: {problem}"));
    }
    if let Some(kept) = &analysis.forecast {
        report.add_facts(law_facts(kept, analysis.verification.as_ref()));
    }
    report
}

/// Writes what programs read and the page, and prints the rest.
pub(super) fn write(setup: &FamilySetup, plan: &FamilyPlan, analysis: &FamilyAnalysis) -> Result<(), Failure> {
    write_json(&setup.base.folder.join(JSON), &summary(setup, plan, analysis))?;
    write_file(&setup.base.folder.join(PAGE), page(setup, plan, analysis))?;
    let folder = setup.base.folder.display();
    let mut facts = vec![("page", format!("{folder}/{PAGE}, {folder}/{JSON}"))];
    let is_made = |kept: &KeptForecast| kept.forecast.decision == ForecastDecision::Made;
    if analysis.forecast.as_ref().is_some_and(is_made) {
        facts.insert(0, ("written to", format!("{folder}/{FORECAST}")));
    }
    report(plan, analysis).add_facts(facts).print();
    Ok(())
}

fn page(setup: &FamilySetup, plan: &FamilyPlan, analysis: &FamilyAnalysis) -> String {
    let mut page = report(plan, analysis);
    page.add_title("Curves").add_figures(charts(analysis).iter().map(LogChart::render_figure));
    page.add_title("Laws that were compared").add_table(candidates(analysis));
    page.add_title("All measurements").add_table(runs(&analysis.points));
    page.render_page(&format!("{}: scaling law", setup.base.job.name))
}

/// Sizes with their loss after the most samples, from small to large.
fn size_table(analysis: &FamilyAnalysis) -> ReportTable {
    let Some(measured) = &analysis.measured else { return ReportTable::default() };
    let most = measured.sample_counts().last().copied().unwrap_or(0.0);
    let cells = measured.cells().into_iter().filter(|cell| cell.samples == most);
    let row = |cell: LawCell| {
        let point = analysis.points.iter().find(|point| point.measured.parameters == cell.parameters);
        vec![
            point.map_or_else(String::new, |point| point.size.clone()),
            count(cell.parameters),
            count(cell.samples),
            cell.losses.len().to_string(),
            format!("{:.5}", cell.mean_loss()),
            decimal(cell.seed_deviation(), 5),
        ]
    };
    let head = ["size", "parameters", "samples", "seeds", "log loss", "deviation"];
    ReportTable::new(&head, cells.map(row).collect())
}

fn law_facts(kept: &KeptForecast, verification: Option<&ForecastVerification>) -> Vec<(&'static str, String)> {
    let law = kept.forecast.choice.chosen_law();
    let deviation = kept.forecast.seed_deviation.map_or_else(|| NOTHING.to_owned(), |value| format!("{value:.5} nats"));
    let mut facts = vec![
        ("form", law.form.formula().to_owned()),
        ("fitted", law.to_string()),
        ("deviation of seeds", deviation),
        ("forecast", forecast_text(kept)),
    ];
    facts.extend(verification.map(|truth| ("verification", verification_text(truth))));
    facts
}

fn optima(optima: &[ComputeOptimum]) -> ReportTable {
    let row = |best: &ComputeOptimum| {
        let (compute, loss) = (format!("{:.2e}", best.compute), format!("{:.5}", best.loss));
        vec![compute, count(best.parameters), count(best.samples), loss]
    };
    ReportTable::new(&["FLOP", "parameters", "samples", "log loss"], optima.iter().map(row).collect())
}

/// Each law is also fitted without the largest size, and forecasts it. The chosen one stands out.
fn candidates(analysis: &FamilyAnalysis) -> ReportTable {
    let choice = analysis.forecast.as_ref().map(|kept| &kept.forecast.choice);
    let row = |candidate: &LawCandidate| {
        let error = candidate.error.map_or_else(|| NOTHING.to_owned(), |error| format!("{error:+.5}"));
        vec![candidate.law.to_string(), error]
    };
    let rows = choice.iter().flat_map(|choice| &choice.candidates).map(row).collect();
    let head = ["law", "error of its forecast of the largest size, fitted without that"];
    ReportTable { best: choice.map(|choice| choice.chosen), ..ReportTable::new(&head, rows) }
}

fn runs(points: &[MemberPoint]) -> ReportTable {
    let row = |point: &MemberPoint| {
        vec![
            point.size.clone(),
            point.measured.seed.to_string(),
            count(point.measured.parameters),
            count(point.measured.samples),
            format!("{:.2e}", point.measured.training_flop()),
            format!("{:.5}", point.measured.loss),
            decimal(point.auc, 4),
            format!("{:.1}", point.seconds),
        ]
    };
    let head = ["size", "seed", "parameters", "samples", "FLOP", "log loss", "AUC", "seconds of the run"];
    ReportTable::new(&head, points.iter().map(row).collect())
}

/// The forecast in words, or why there is none.
fn forecast_text(kept: &KeptForecast) -> String {
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

fn verification_text(verification: &ForecastVerification) -> String {
    let side = if verification.inside { "inside" } else { "outside" };
    let line = verification.line_error.map_or_else(|| "-".to_owned(), |value| format!("{value:+.5}"));
    format!(
        "size {} has log loss {:.5}: the forecast is off by {:+.5}, the truth is {side} the interval (the last value is off by {:+.5}, a line in log C by {line})",
        verification.size, verification.loss, verification.error, verification.last_value_error
    )
}

fn summary(setup: &FamilySetup, plan: &FamilyPlan, analysis: &FamilyAnalysis) -> Value {
    json!({
        "job": setup.base.job.name,
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

#[cfg(test)]
mod tests {
    use zagros_experiments::scaling::{Family, FamilyRequest, Measurement, RunCost};
    use zagros_job::{Job, ModelSize};

    use super::super::setup::FamilySize;
    use super::*;
    use crate::experiment::ExperimentSetup;

    /// A family of four sizes with a law that holds.
    fn family(floor: f64) -> (FamilySetup, FamilyPlan, FamilyAnalysis, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job.toml");
        let text = "name = 'ads'\n[data]\nformat = 'criteo'\ntrain = '/a'\n";
        std::fs::write(&file, text).unwrap();
        let job = Job::load(&file, &zagros_job::Overrides::none()).unwrap();
        let size = |parameters: u64| FamilySize { size: ModelSize(parameters), parameters };
        let base =
            ExperimentSetup { name: "family", job, file, sets: Vec::new(), jobs: 2, folder: folder.path().to_owned() };
        let sizes = [10_000, 40_000, 160_000, 640_000].map(size).to_vec();
        let request = FamilyRequest {
            sizes: sizes.iter().map(|size| size.parameters).collect(),
            seeds: 2,
            shares: vec![0.25, 0.5, 1.0],
            run_for_each_share: false,
            rows: 1_638_400,
            held_out: 1000,
            next: Some(2_560_000),
            jobs: 2,
        };
        let setup = FamilySetup { base, sizes, next: size(2_560_000), request, unit: 100 };
        let cost = RunCost { start: 1.0, sample: 1e-5, parameter: 1e-10 };
        let mut points = Vec::new();
        for (size, seed) in setup.sizes.iter().flat_map(|size| [(size, 1), (size, 2)]) {
            for share in &setup.request.shares {
                let (parameters, samples) = (size.parameters as f64, setup.sample_count(setup.step_count(*share)));
                let noise = if seed == 1 { 1e-5 } else { -1e-5 };
                let loss = floor + 3.0 * parameters.powf(-0.4) + 20.0 * samples.powf(-0.5) + noise;
                let measured = Measurement { parameters, samples, seed, loss };
                let size = size.size.to_string();
                points.push(MemberPoint { size, share: *share, measured, auc: None, seconds: 2.0 });
            }
        }
        let plan = FamilyPlan { cost, family: Family::within_budget(&setup.request, &cost, 100_000.0).unwrap() };
        let analysis = FamilyAnalysis::fit(&setup, &plan, points);
        (setup, plan, analysis, folder)
    }

    #[test]
    fn the_page_has_all_parts() {
        let (setup, plan, mut analysis, _folder) = family(0.45);
        let kept = analysis.forecast.clone().unwrap();
        let mut truth = analysis.points[0].clone();
        truth.measured.loss = kept.forecast.loss + 1e-6;
        analysis.verification = Some(ForecastVerification::new(&kept, &truth));
        let text = page(&setup, &plan, &analysis);
        assert_eq!(text.matches("<figure>").count(), 4, "{text}");
        let law = ["Law and forecast", "E + A/N^α + B/D^β", "Lines of equal log loss"];
        for part in law.into_iter().chain(["inside the interval", "All measurements", "640k"]) {
            assert!(text.contains(part), "no {part:?} in the page");
        }
        assert_eq!(analysis.optima().len(), 5);
    }

    #[test]
    fn a_family_without_a_law_says_why() {
        let (setup, plan, analysis, _folder) = family(0.45);
        let few = FamilyAnalysis::fit(&setup, &plan, analysis.points[..3].to_vec());
        assert!(few.forecast.is_some(), "the samples alone have a law");
        let none = FamilyAnalysis::fit(&setup, &plan, analysis.points[..1].to_vec());
        let text = page(&setup, &plan, &none);
        assert!(text.contains("No law: ") && !text.contains("<figure>"), "{text}");
        assert!(none.problem.is_some_and(|problem| problem.contains("needs 3 measurements")));
    }
}
