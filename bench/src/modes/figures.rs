//! The figures of each mode, compared with the first, and as a page that opens offline: speed and AUC by staleness.

use serde::Serialize;
use zagros_plumbing::chart::{Chart, ChartSeries};
use zagros_shell::{CommandReport, ReportTable};
use zagros_zip::ZipEq;

use super::cluster::RunResult;
use super::workload::ModeSetting;

/// The least ratio of sync's samples per second to those of the fastest hybrid, at a millisecond each way.
const SPEED_GOAL: f64 = 0.9;
/// The most test AUC that hybrid may lose against sync.
const AUC_GOAL: f64 = 0.001;

#[derive(Clone, Debug, Serialize)]
pub(super) struct ModeCase {
    pub(super) mode: &'static str,
    pub(super) staleness: usize,
    pub(super) runs: Vec<RunResult>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct ModeMeans {
    pub(super) samples_per_second: f64,
    /// For each pair of runs with one seed: samples per second divided by those of sync.
    pub(super) times_sync: f64,
    pub(super) cpu_us_per_sample: f64,
    pub(super) auc: Option<f64>,
    /// AUC minus that of sync with the same seed.
    pub(super) auc_gap: Option<f64>,
    pub(super) staleness_mean: f64,
    pub(super) staleness_max: u32,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ModeFigures {
    pub(super) job: String,
    pub(super) delay_ms: f64,
    pub(super) rate_mbit: Option<f64>,
    pub(super) workers: u32,
    pub(super) servers: u32,
    pub(super) batch_per_worker: usize,
    pub(super) seeds: u64,
    pub(super) cases: Vec<ModeCase>,
    pub(super) means: Vec<ModeMeans>,
}

impl ModeCase {
    pub(super) fn new(setting: ModeSetting) -> Self {
        Self { mode: setting.name(), staleness: setting.staleness, runs: Vec::new() }
    }

    /// The means of the runs so far, compared with those of `sync`, which are equally many.
    pub(super) fn mean_figures(&self, sync: &Self) -> ModeMeans {
        let count = self.runs.len().max(1) as f64;
        let mean = |of: &dyn Fn(&RunResult) -> f64| self.runs.iter().map(of).sum::<f64>() / count;
        let pairs = || self.runs.iter().zip_eq(&sync.runs);
        let gaps: Option<Vec<f64>> = pairs().map(|(own, other)| Some(own.auc? - other.auc?)).collect();
        let aucs: Option<Vec<f64>> = self.runs.iter().map(|ran| ran.auc).collect();
        ModeMeans {
            samples_per_second: mean(&|ran| ran.samples_per_second),
            times_sync: pairs().map(|(own, other)| own.samples_per_second / other.samples_per_second).sum::<f64>()
                / count,
            cpu_us_per_sample: mean(&|ran| ran.cpu_us_per_sample),
            auc: aucs.map(|aucs| aucs.iter().sum::<f64>() / count),
            auc_gap: gaps.map(|gaps| gaps.iter().sum::<f64>() / count),
            staleness_mean: mean(&|ran| ran.staleness_mean),
            staleness_max: self.runs.iter().map(|ran| ran.staleness_max).max().unwrap_or(0),
        }
    }

    fn table_cells(&self, means: &ModeMeans) -> Vec<String> {
        let auc = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| format!("{value:.4}"));
        let gap = means.auc_gap.map_or_else(|| "–".to_owned(), |gap| format!("{gap:+.4}"));
        vec![
            self.mode.to_owned(),
            self.staleness.to_string(),
            format!("{:.0}", means.samples_per_second),
            format!("{:.2}", means.times_sync),
            format!("{:.1}", means.cpu_us_per_sample),
            auc(means.auc),
            gap,
            format!("{:.2}", means.staleness_mean),
            means.staleness_max.to_string(),
        ]
    }
}

const COLUMNS: [&str; 9] =
    ["mode", "τ", "samples/s", "× sync", "CPU µs/sample", "test AUC", "− sync", "staleness mean", "max"];

impl ModeFigures {
    /// The settings of the benchmark, in one line.
    fn lead_sentence(&self) -> String {
        let rate = self.rate_mbit.map_or_else(String::new, |rate| format!(", {rate} Mbit/s"));
        format!(
            "{}: {} workers × {} servers as processes, batch {} each, {} ms each way between them{rate}; means of {} seed(s)",
            self.job, self.workers, self.servers, self.batch_per_worker, self.delay_ms, self.seeds
        )
    }

    /// The goals and the measured values; none for a mode that was not run.
    fn goal_sentences(&self) -> Vec<String> {
        let hybrid = || self.cases.iter().zip_eq(&self.means).filter(|(case, _)| case.mode == "hybrid");
        let fastest = hybrid().max_by(|one, other| one.1.times_sync.total_cmp(&other.1.times_sync));
        let speed = fastest.map(|(case, means)| {
            let (share, staleness) = (1.0 / means.times_sync, case.staleness);
            format!("sync has {share:.2} × the samples/s of hybrid at τ = {staleness}; goal at 1 ms: at least {SPEED_GOAL} ×")
        });
        let gaps = hybrid().filter_map(|(case, means)| Some((means.auc_gap?, case.staleness)));
        let widest = gaps.max_by(|one, other| one.0.abs().total_cmp(&other.0.abs()));
        let gap = widest.map(|(gap, staleness)| {
            format!("hybrid's widest gap of test AUC to sync is {gap:+.4} at τ = {staleness}; goal: below {AUC_GOAL}")
        });
        speed.into_iter().chain(gap).collect()
    }

    /// The settings, the goals and a row for each case, for a terminal and for a page.
    pub(super) fn report(&self) -> CommandReport {
        let mut report = CommandReport::default();
        report.add_lead(&self.lead_sentence());
        self.goal_sentences().iter().for_each(|goal| _ = report.add_lead(goal));
        let speed = chart(self, "Samples a second", "over those of sync", |means| Some(means.times_sync));
        let auc = chart(self, "Test AUC", "less that of sync, by pairs with one seed", |means| means.auc_gap);
        report.add_figures([speed.render_figure(), auc.render_figure()]);
        let rows = self.cases.iter().zip_eq(&self.means).map(|(case, means)| case.table_cells(means));
        report.add_title("Figures").add_table(ReportTable::new(&COLUMNS, rows.collect()));
        report
    }
}

/// The heading of the page.
pub(super) const HEADING: &str = "Modes of training";

/// Hybrid as a curve over τ, the other modes as points.
fn chart(
    figures: &ModeFigures,
    title: &'static str,
    subtitle: &'static str,
    of: fn(&ModeMeans) -> Option<f64>,
) -> Chart {
    let points = |mode: &str| {
        let of_mode = figures.cases.iter().zip_eq(&figures.means).filter(|(case, _)| case.mode == mode);
        of_mode.filter_map(|(case, means)| Some((case.staleness as f64, of(means)?))).collect()
    };
    let series = [("hybrid", 0), ("sync", 1), ("async", 2)];
    let series = series.map(|(name, colour)| ChartSeries { name, colour, dots: true, points: points(name) });
    Chart { title, subtitle, across: "staleness τ", series: series.into(), ..Chart::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example_figures() -> ModeFigures {
        let ran = |samples_per_second, auc| RunResult {
            samples_per_second,
            cpu_us_per_sample: 5.0,
            auc: Some(auc),
            staleness_max: 2,
            staleness_mean: 1.5,
            samples: 10,
        };
        let case = |mode, staleness, runs: &[(f64, f64)]| ModeCase {
            mode,
            staleness,
            runs: runs.iter().map(|(speed, auc)| ran(*speed, *auc)).collect(),
        };
        let cases = vec![
            case("sync", 0, &[(100.0, 0.75), (200.0, 0.76)]),
            case("hybrid", 1, &[(200.0, 0.7505), (200.0, 0.7605)]),
            case("hybrid", 4, &[(300.0, 0.748), (600.0, 0.762)]),
            case("async", 4, &[(400.0, 0.74), (800.0, 0.75)]),
        ];
        let means = cases.iter().map(|other| other.mean_figures(&cases[0])).collect();
        let job = "modes".to_owned();
        let (delay_ms, rate_mbit, workers, servers, batch_per_worker, seeds) = (1.0, None, 2, 2, 512, 2);
        ModeFigures { job, delay_ms, rate_mbit, workers, servers, batch_per_worker, seeds, cases, means }
    }

    #[test]
    fn ratios_and_gaps_are_those_of_pairs_with_one_seed() {
        let figures = example_figures();
        let ratio_and_gap = |index: usize| (figures.means[index].times_sync, figures.means[index].auc_gap.unwrap());
        assert_eq!(ratio_and_gap(0), (1.0, 0.0));
        let near =
            |(one, other): (f64, f64), (speed, gap): (f64, f64)| (one - speed).abs() + (other - gap).abs() < 1e-9;
        for (index, expected) in [(1, (1.5, 0.0005)), (2, (3.0, 0.0)), (3, (4.0, -0.01))] {
            assert!(near(ratio_and_gap(index), expected), "{index} {figures:?}");
        }
        let goals = figures.goal_sentences();
        assert!(goals[0].starts_with("sync has 0.33 × the samples/s of hybrid at τ = 4"), "{goals:?}");
        assert!(goals[1].contains("+0.0005 at τ = 1"), "{goals:?}");
    }

    #[test]
    fn a_job_without_a_test_part_has_no_gap() {
        let mut figures = example_figures();
        figures.cases[1].runs[0].auc = None;
        let means = figures.cases[1].mean_figures(&figures.cases[0]);
        assert_eq!((means.auc, means.auc_gap), (None, None));
        assert_eq!(figures.cases[1].table_cells(&means)[5..7], ["–", "–"]);
    }

    #[test]
    fn every_mode_is_drawn_and_listed() {
        let page = example_figures().report().render_page(HEADING);
        assert_eq!(page.matches("<figure>").count(), 2);
        // Two points of hybrid and one of each other mode, in each chart.
        assert_eq!(page.matches("<circle").count(), 8);
        assert!(
            page.contains("staleness τ</text>") && page.contains("<td>async</td>") && page.contains("goal at 1 ms")
        );
    }
}
