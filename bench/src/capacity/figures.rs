//! The figures of all numbers of rows, as lines, as ratios, and as a page that opens offline.

use std::fmt::Write;

use serde::Serialize;
use zagros_plumbing::chart::{LogChart, LogMark, LogSeries};
use zagros_shell::{CommandReport, ReportTable, out};
use zagros_zip::ZipEq;

use super::batches::SAMPLES;
use super::table::{DIM, TableFigures};
use crate::args::{CapacityArgs, IdLaw};

/// The most CPU and wall time of a sample with a tenth of the rows in memory, over those with all of them there.
const CPU_GOAL: f64 = 2.5;
const WALL_GOAL: f64 = 1.25;

#[derive(Clone, Debug, Serialize)]
pub(super) struct CapacityFigures {
    pub(super) ids: IdLaw,
    /// The share of rows in memory.
    pub(super) share: f64,
    pub(super) ahead: u64,
    /// Time of the network for a sample, µs.
    pub(super) compute_us: f64,
    /// Batches before the measured ones, and the measured ones.
    pub(super) batches: (u64, u64),
    pub(super) points: Vec<CapacityPoint>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct CapacityPoint {
    pub(super) rows: usize,
    /// Bytes of memory for rows and for the index of those on disk, where not all are in memory.
    pub(super) budget: usize,
    /// `None` where memory or disk have no room.
    pub(super) in_memory: Option<TableFigures>,
    pub(super) on_disk: Option<TableFigures>,
}

pub(super) const COLUMNS: [&str; 12] = [
    "rows",
    "in memory",
    "memory MB",
    "disk MB",
    "found %",
    "late %",
    "reads",
    "evicted",
    "written ×",
    "wall µs",
    "CPU µs",
    "× memory: wall, CPU",
];

impl CapacityFigures {
    pub(super) fn new(args: &CapacityArgs, batches: (u64, u64)) -> Self {
        let compute_us = if args.quick { 0.0 } else { args.compute };
        Self { ids: args.ids, share: args.share, ahead: args.ahead, compute_us, batches, points: Vec::new() }
    }

    /// The settings of the benchmark, in one line.
    pub(super) fn lead_sentence(&self) -> String {
        let law = match self.ids {
            IdLaw::Zipf => "Zipf ids",
            IdLaw::Uniform => "uniform ids",
        };
        let (warm, measured) = self.batches;
        format!(
            "{law}, dim {DIM} and as much state, f32; {:.0} % of the rows in memory, the others on disk; {} batches ahead; \
             {} µs of network a sample; {warm} batches, then {measured} measured, of {SAMPLES} samples",
            self.share * 100.0,
            self.ahead,
            self.compute_us
        )
    }

    pub(super) fn print_head(&self) {
        out!("{}\n", self.lead_sentence());
        out!("{}", line(&COLUMNS.map(str::to_owned)));
    }

    pub(super) fn print_summary(&self) {
        out!(
            "\nreads and evicted rows are those of a batch; times are those of a sample; every row is what was pushed to it"
        );
        self.goal_sentences().iter().for_each(|goal| out!("{goal}"));
    }

    /// The goals and the measured values, for numbers of rows that were measured in memory too.
    pub(super) fn goal_sentences(&self) -> Vec<String> {
        let both = self.points.iter().filter_map(|point| Some((point.rows, point.times_of_memory()?)));
        let mut goals: Vec<String> = both
            .map(|(rows, (wall, cpu))| {
                format!("{rows} rows: {cpu:.2} × the CPU and {wall:.2} × the wall time of all in memory; goals at a tenth: {CPU_GOAL} and {WALL_GOAL}")
            })
            .collect();
        let on_disk = || self.points.iter().filter_map(|point| Some((point.rows, point.on_disk?)));
        if let (Some((first, few)), Some((last, many))) = (on_disk().next(), on_disk().next_back())
            && first != last
        {
            let (cpu, wall) = (many.cpu_us / few.cpu_us, many.wall_us / few.wall_us);
            goals.push(format!("{last} rows take {cpu:.2} × the CPU and {wall:.2} × the wall time of {first} rows"));
        }
        goals
    }
}

impl CapacityPoint {
    /// Wall and CPU time of a sample with rows on disk, over those with all rows in memory.
    pub(super) fn times_of_memory(&self) -> Option<(f64, f64)> {
        let (few, all) = (self.on_disk?, self.in_memory?);
        Some((few.wall_us / all.wall_us, few.cpu_us / all.cpu_us))
    }

    pub(super) fn print_lines(&self) {
        self.table_lines().iter().for_each(|cells| out!("{}", line(cells)));
    }

    pub(super) fn table_lines(&self) -> Vec<[String; 12]> {
        let times = self.times_of_memory().map_or_else(|| "–".to_owned(), |(wall, cpu)| format!("{wall:.2}, {cpu:.2}"));
        let line = |figures: TableFigures, times: String| {
            let share = |part: u64| format!("{:.1}", 100.0 * part as f64 / figures.ids.max(1) as f64);
            let per_batch = |count: u64| format!("{:.0}", count as f64 / figures.batches.max(1) as f64);
            [
                self.rows.to_string(),
                figures.rows_in_memory.to_string(),
                format!("{:.0}", figures.memory_bytes as f64 / 1e6),
                format!("{:.0}", figures.disk_bytes as f64 / 1e6),
                share(figures.found),
                share(figures.late),
                per_batch(figures.reads),
                per_batch(figures.evicted),
                format!("{:.2}", figures.write_amplification),
                format!("{:.2}", figures.wall_us),
                format!("{:.2}", figures.cpu_us),
                times,
            ]
        };
        let in_memory = self.in_memory.map(|figures| line(figures, "1".to_owned()));
        in_memory.into_iter().chain(self.on_disk.map(|figures| line(figures, times))).collect()
    }
}

fn line(cells: &[String]) -> String {
    const WIDTHS: [usize; 12] = [10, 10, 9, 8, 7, 6, 7, 7, 9, 8, 7, 19];
    let mut text = String::new();
    for (cell, width) in cells.iter().zip_eq(WIDTHS) {
        let _ = write!(text, "{cell:>width$} ");
    }
    text.trim_end().to_owned()
}

pub(super) fn render_page(figures: &CapacityFigures) -> String {
    let mut page = CommandReport::default();
    page.add_lead(&figures.lead_sentence());
    figures.goal_sentences().iter().for_each(|goal| _ = page.add_lead(goal));
    let cpu = chart(figures, "CPU time of a sample", |found| found.cpu_us);
    let wall = chart(figures, "Wall time of a sample", |found| found.wall_us);
    page.add_figures([cpu.render_figure(), wall.render_figure()]);
    let rows = figures.points.iter().flat_map(CapacityPoint::table_lines).map(|cells| cells.to_vec());
    page.add_title("Figures").add_table(ReportTable::new(&COLUMNS, rows.collect()));
    page.render_page("Rows beyond memory")
}

fn chart(figures: &CapacityFigures, title: &str, of: fn(&TableFigures) -> f64) -> LogChart {
    let points = |which: fn(&CapacityPoint) -> Option<TableFigures>| {
        let found = figures.points.iter().filter_map(|point| Some((point.rows as f64, of(&which(point)?))));
        found.collect::<Vec<_>>()
    };
    let line = |name: &str, colour, points| LogSeries { name: name.to_owned(), colour, mark: LogMark::Line, points };
    let series = vec![
        line("all rows in memory", 0, points(|point| point.in_memory)),
        line(&format!("{:.0} % in memory", figures.share * 100.0), 1, points(|point| point.on_disk)),
    ];
    LogChart { title: title.to_owned(), subtitle: "µs".to_owned(), across: "rows".to_owned(), series }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example_figures() -> CapacityFigures {
        let measured =
            |rows, cpu_us, wall_us| TableFigures { rows, cpu_us, wall_us, ids: 10, batches: 1, ..Default::default() };
        let point = |rows, in_memory: Option<f64>, cpu| CapacityPoint {
            rows,
            budget: 1,
            in_memory: in_memory.map(|cpu| measured(rows, cpu, 2.0 * cpu)),
            on_disk: Some(measured(rows, cpu, 3.0 * cpu)),
        };
        let points = vec![point(1000, Some(5.0), 10.0), point(10_000, None, 12.0)];
        CapacityFigures { ids: IdLaw::Zipf, share: 0.1, ahead: 2, compute_us: 25.0, batches: (1, 1), points }
    }

    #[test]
    fn costs_are_compared_with_those_in_memory_and_with_those_of_fewer_rows() {
        let figures = example_figures();
        assert_eq!(figures.points[0].times_of_memory(), Some((3.0, 2.0)));
        assert_eq!(figures.points[1].times_of_memory(), None);
        let goals = figures.goal_sentences();
        assert!(goals[0].starts_with("1000 rows: 2.00 × the CPU and 3.00 × the wall time"), "{goals:?}");
        assert!(goals[1].starts_with("10000 rows take 1.20 × the CPU and 1.20 × the wall time of 1000"), "{goals:?}");
        assert_eq!(figures.points.iter().map(|point| point.table_lines().len()).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn both_curves_are_drawn_and_every_point_is_listed() {
        let page = render_page(&example_figures());
        assert_eq!(page.matches("<figure>").count(), 2);
        assert!(page.contains("all rows in memory") && page.contains("10 % in memory"));
        assert!(page.contains("<td>10000</td>") && page.contains("2.00 × the CPU"));
    }
}
