//! The page of a family, `report.html`: one file that opens offline.

use indicatif::{HumanCount, HumanDuration};
use zagros_experiments::scaling::{ComputeOptimum, LawCandidate};
use zagros_plumbing::chart::LogChart;
use zagros_plumbing::chart::html::{NOTHING, escape_html, render_document, render_facts, render_table};
use zagros_shell::{Failure, write_file};

use super::analysis::{FamilyAnalysis, FamilyPlan};
use super::charts::charts;
use super::member::MemberPoint;
use super::report::{PAGE, SIZE_HEAD, forecast_text, size_rows, verification_text};
use super::setup::FamilySetup;
use crate::page::{section, table};

pub(super) fn write_page(setup: &FamilySetup, plan: &FamilyPlan, analysis: &FamilyAnalysis) -> Result<(), Failure> {
    write_file(&setup.folder.join(PAGE), page(setup, plan, analysis))
}

fn page(setup: &FamilySetup, plan: &FamilyPlan, analysis: &FamilyAnalysis) -> String {
    let name = &setup.job.name;
    let figures: String = charts(analysis).iter().filter_map(LogChart::render_figure).collect();
    let figures = if figures.is_empty() { figures } else { format!("<div class=\"charts\">{figures}</div>\n") };
    let parts = [
        heading(name, plan, analysis),
        section("Law and forecast", law(analysis)),
        section("Curves", figures),
        section("Best size and samples for a compute budget", optima(&analysis.optima())),
        section("Sizes, after the most samples", sizes(analysis)),
        section("Laws that were compared", candidates(analysis)),
        section("All measurements", runs(&analysis.points)),
    ];
    render_document(&format!("{name}: scaling law · Zagros"), &parts.concat())
}

fn heading(name: &str, plan: &FamilyPlan, analysis: &FamilyAnalysis) -> String {
    let family = &plan.family;
    let time = HumanDuration(std::time::Duration::from_secs_f64(family.seconds));
    let runs = family.runs.len();
    let measured = analysis.points.iter().filter(|point| Some(&point.share) == family.shares.last()).count();
    let lead = format!("{measured} of {runs} runs have come to their end; the plan was {time}");
    let note =
        |skipped: &String| format!("<p class=\"lead\">Skipped, to end within the budget: {}</p>", escape_html(skipped));
    let skipped: String = family.skipped.iter().map(note).collect();
    format!("<h1>{}: scaling law</h1>\n<p class=\"lead\">{}</p>{skipped}\n", escape_html(name), escape_html(&lead))
}

fn law(analysis: &FamilyAnalysis) -> String {
    if let Some(problem) = &analysis.problem {
        return format!("<p class=\"note\">No law: {}</p>", escape_html(problem));
    }
    let Some(kept) = &analysis.forecast else { return String::new() };
    let law = kept.forecast.chosen_law();
    let deviation = kept.forecast.seed_deviation.map_or_else(|| NOTHING.to_owned(), |value| format!("{value:.5} nats"));
    let mut rows = vec![
        ("form", law.form.formula().to_owned()),
        ("fitted", law.to_string()),
        ("deviation between seeds", deviation),
        ("forecast", forecast_text(kept)),
    ];
    rows.extend(analysis.verification.as_ref().map(|truth| ("verification", verification_text(truth))));
    render_facts(&rows)
}

fn optima(optima: &[ComputeOptimum]) -> String {
    let row = |best: &ComputeOptimum| {
        let count = |value: f64| HumanCount(value as u64).to_string();
        let (compute, loss) = (format!("{:.2e}", best.compute), format!("{:.5}", best.loss));
        ("", vec![compute, count(best.parameters), count(best.samples), loss])
    };
    table(&["FLOP", "parameters", "samples", "log loss"], &optima.iter().map(row).collect::<Vec<_>>())
}

fn sizes(analysis: &FamilyAnalysis) -> String {
    table(&SIZE_HEAD, &size_rows(analysis).into_iter().map(|row| ("", row)).collect::<Vec<_>>())
}

fn candidates(analysis: &FamilyAnalysis) -> String {
    let Some(kept) = &analysis.forecast else { return String::new() };
    let choice = &kept.forecast.choice;
    let row = |(number, candidate): (usize, &LawCandidate)| {
        let class = if number == choice.chosen { "best" } else { "" };
        let error = candidate.error.map_or_else(|| NOTHING.to_owned(), |error| format!("{error:+.5}"));
        (class, vec![candidate.law.to_string(), error])
    };
    let lead = "<p class=\"lead\">Each law is also fitted without the largest size, and forecasts it. The chosen law is bold.</p>";
    let rows: Vec<_> = choice.candidates.iter().enumerate().map(row).collect();
    format!("{lead}{}", render_table(&["law", "error of the largest size"], &rows))
}

fn runs(points: &[MemberPoint]) -> String {
    let row = |point: &MemberPoint| {
        let count = |value: f64| HumanCount(value as u64).to_string();
        let cells = vec![
            point.size.clone(),
            point.measured.seed.to_string(),
            count(point.measured.parameters),
            count(point.measured.samples),
            format!("{:.2e}", point.measured.training_flop()),
            format!("{:.5}", point.measured.loss),
            point.auc.map_or_else(|| NOTHING.to_owned(), |auc| format!("{auc:.4}")),
            format!("{:.1}", point.seconds),
        ];
        ("", cells)
    };
    let head = ["size", "seed", "parameters", "samples", "FLOP", "log loss", "AUC", "seconds of the run"];
    table(&head, &points.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use zagros_experiments::scaling::{Family, Measurement, RunCost};
    use zagros_job::{Job, ModelSize};

    use super::super::analysis::ForecastVerification;
    use super::super::setup::FamilySize;
    use super::*;

    /// A family of four sizes with a law that holds.
    fn family(floor: f64) -> (FamilySetup, FamilyPlan, FamilyAnalysis, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job.toml");
        let text = "name = 'ads'\n[data]\nformat = 'criteo'\ntrain = '/a'\n";
        std::fs::write(&file, text).unwrap();
        let job = Job::load(&file, &zagros_job::Overrides::none()).unwrap();
        let size = |parameters: u64| FamilySize { size: ModelSize(parameters), parameters };
        let setup = FamilySetup {
            job,
            file,
            sets: Vec::new(),
            sizes: [10_000, 40_000, 160_000, 640_000].map(size).to_vec(),
            next: size(2_560_000),
            seeds: 2,
            shares: vec![0.25, 0.5, 1.0],
            unit: 100,
            rows: 1_638_400,
            run_for_each_share: false,
            jobs: 2,
            folder: folder.path().to_owned(),
        };
        let cost = RunCost { start: 1.0, sample: 1e-5, parameter: 1e-10 };
        let request = setup.family_request(1000, true);
        let mut points = Vec::new();
        for (size, seed) in setup.sizes.iter().flat_map(|size| [(size, 1), (size, 2)]) {
            for share in &setup.shares {
                let (parameters, samples) = (size.parameters as f64, setup.sample_count(setup.step_count(*share)));
                let noise = if seed == 1 { 1e-5 } else { -1e-5 };
                let loss = floor + 3.0 * parameters.powf(-0.4) + 20.0 * samples.powf(-0.5) + noise;
                let measured = Measurement { parameters, samples, seed, loss };
                let size = size.size.to_string();
                points.push(MemberPoint { size, share: *share, measured, auc: None, seconds: 2.0 });
            }
        }
        let plan =
            FamilyPlan::write(&setup, cost, 1000, Family::within_budget(&request, &cost, 100_000.0).unwrap()).unwrap();
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
        for part in law.into_iter().chain(["inside the interval", "all 24 rows", "640k"]) {
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
