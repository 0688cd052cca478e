//! The charts of a family: what is above the floor against size, samples and compute, and lines of equal loss.

use zagros_experiments::scaling::{ComputeOptimum, Law, LawCell, Measurements};
use zagros_plumbing::chart::{LogChart, LogMark, LogSeries};

use super::analysis::FamilyAnalysis;

const POINTS: usize = 60;
const LEVELS: usize = 6;
/// How far beyond the measurements curves are drawn, as a factor.
const BEYOND: f64 = 8.0;

pub(super) fn charts(analysis: &FamilyAnalysis) -> Vec<LogChart> {
    let (Some(law), Some(measured)) = (analysis.chosen_law(), &analysis.measured) else { return Vec::new() };
    let family = FamilyCharts { analysis, law, measured };
    let mut charts = vec![family.by_size(), family.by_samples(), family.by_compute()];
    charts.extend(family.equal_loss());
    charts
}

struct FamilyCharts<'a> {
    analysis: &'a FamilyAnalysis,
    law: &'a Law,
    measured: &'a Measurements,
}

impl FamilyCharts<'_> {
    fn above_floor(&self, loss: f64) -> f64 {
        loss - self.law.floor
    }

    fn chart(&self, of: &str, across: &str, series: Vec<LogSeries>) -> LogChart {
        LogChart {
            title: format!("Log loss above the floor, by {of}"),
            subtitle: format!("loss − E, nats, with E = {:.4}", self.law.floor),
            across: across.to_owned(),
            series,
        }
    }

    /// Name of a size, as it was asked for.
    fn name(&self, parameters: f64) -> String {
        let of_size = self.analysis.points.iter().find(|point| point.measured.parameters == parameters);
        of_size.map_or_else(|| format!("{parameters}"), |point| point.size.clone())
    }

    fn by_size(&self) -> LogChart {
        let most = self.measured.sample_counts().last().copied().unwrap_or(1.0);
        let points_at = |samples: f64| {
            let here = self.measured.as_slice().iter().filter(move |one| one.samples == samples);
            here.map(|one| (one.parameters, self.above_floor(one.loss))).collect::<Vec<_>>()
        };
        let line = |parameters: f64| (parameters, self.above_floor(self.law.loss(parameters, most)));
        let mut series = vec![
            new_series("law, most samples", 0, LogMark::Line, curve(&self.sizes(), line)),
            new_series("each run", 0, LogMark::Dots, points_at(most)),
        ];
        series.extend(self.forecast_series(|parameters, _| parameters));
        self.chart("size", "dense parameters N", series)
    }

    /// Forecast and truth of the next size, at a place on the axis.
    fn forecast_series(&self, place: fn(f64, f64) -> f64) -> Vec<LogSeries> {
        let Some(kept) = &self.analysis.forecast else { return Vec::new() };
        let (target, forecast) = (kept.forecast.target, &kept.forecast);
        let x = place(target.parameters, target.samples);
        let point = |loss: f64| (x, self.above_floor(loss));
        let mut series = vec![
            new_series("interval", 1, LogMark::Line, [forecast.low, forecast.high].map(point).to_vec()),
            new_series("forecast", 1, LogMark::Dots, vec![point(forecast.loss)]),
        ];
        let truth = self.analysis.verification.as_ref();
        series.extend(truth.map(|truth| new_series("truth", 2, LogMark::Dots, vec![point(truth.loss)])));
        series
    }

    fn size_series(&self, place: fn(&LawCell) -> f64) -> Vec<LogSeries> {
        let series = |(colour, parameters): (usize, f64)| {
            let of_size = self.cells().filter(|cell| cell.parameters == parameters);
            let points = of_size.map(|cell| (place(&cell), self.above_floor(cell.mean_loss()))).collect();
            new_series(&self.name(parameters), colour, LogMark::Dots, points)
        };
        self.measured.sizes().into_iter().enumerate().map(series).collect()
    }

    fn by_samples(&self) -> LogChart {
        let mut series = self.size_series(|cell| cell.samples);
        for (colour, parameters) in self.measured.sizes().into_iter().enumerate() {
            let line = |samples: f64| (samples, self.above_floor(self.law.loss(parameters, samples)));
            series.push(new_series("", colour, LogMark::Line, curve(&self.measured.sample_counts(), line)));
        }
        self.chart("samples", "samples D", series)
    }

    fn by_compute(&self) -> LogChart {
        let mut series = self.size_series(LawCell::training_flop);
        let best = self.best_points(|best| (best.compute, self.above_floor(best.loss)));
        series.push(new_series("best for the compute", 0, LogMark::Dashes, best));
        series.extend(self.forecast_series(|parameters, samples| 6.0 * parameters * samples));
        self.chart("compute", "training compute C = 6·N·D, FLOP", series)
    }

    /// The best sizes for computes of the measured range.
    fn best_points(&self, point: impl Fn(ComputeOptimum) -> (f64, f64)) -> Vec<(f64, f64)> {
        let computes: Vec<f64> = self.cells().map(|cell| cell.training_flop()).collect();
        spaced(&computes).into_iter().filter_map(|compute| self.law.optimum(compute)).map(point).collect()
    }

    /// Lines of equal loss over size and samples, of a law of both.
    fn equal_loss(&self) -> Option<LogChart> {
        let sizes = self.sizes();
        let samples = self.measured.sample_counts();
        let (least, most) = (samples.first()? / 2.0, samples.last()? * BEYOND);
        let mut series = Vec::new();
        let worst = self.law.loss(*sizes.first()?, *samples.first()?);
        let best = self.law.loss(sizes.last()? * BEYOND, most);
        for level in 0..LEVELS {
            // Evenly in the logarithm of what is above the floor.
            let share = (level as f64 + 0.5) / LEVELS as f64;
            let excess = self.above_floor(worst).powf(1.0 - share) * self.above_floor(best).powf(share);
            let loss = self.law.floor + excess;
            let point = |parameters: f64| Some((parameters, self.law.samples_for(loss, parameters)?));
            let line = spaced(&sizes).into_iter().filter_map(point);
            let points = line.filter(|point| (least..=most).contains(&point.1)).collect();
            series.push(LogSeries { name: format!("{loss:.4}"), colour: level, mark: LogMark::Line, points });
        }
        let mut best = self.best_points(|best| (best.parameters, best.samples));
        best.retain(|point| (least..=most).contains(&point.1));
        if best.is_empty() {
            return None;
        }
        series.push(new_series("best for the compute", 6, LogMark::Dashes, best));
        let runs = self.cells().map(|cell| (cell.parameters, cell.samples)).collect();
        series.push(new_series("measured", 7, LogMark::Dots, runs));
        Some(LogChart {
            title: "Lines of equal log loss".to_owned(),
            subtitle: "samples D that a size needs for a log loss, by the law".to_owned(),
            across: "dense parameters N".to_owned(),
            series,
        })
    }

    fn sizes(&self) -> Vec<f64> {
        let next = self.analysis.forecast.as_ref().map(|kept| kept.forecast.target.parameters);
        self.measured.sizes().into_iter().chain(next).collect()
    }

    fn cells(&self) -> impl Iterator<Item = LawCell> {
        self.measured.cells().into_iter()
    }
}

fn new_series(name: &str, colour: usize, mark: LogMark, points: Vec<(f64, f64)>) -> LogSeries {
    LogSeries { name: name.to_owned(), colour, mark, points }
}

fn curve(places: &[f64], point: impl Fn(f64) -> (f64, f64)) -> Vec<(f64, f64)> {
    spaced(places).into_iter().map(point).collect()
}

/// Places from the smallest to the largest, evenly in the logarithm.
fn spaced(places: &[f64]) -> Vec<f64> {
    let least = places.iter().copied().fold(f64::INFINITY, f64::min);
    let most = places.iter().copied().fold(0.0, f64::max);
    (0..=POINTS).map(|place| least * (most / least).powf(place as f64 / POINTS as f64)).collect()
}
