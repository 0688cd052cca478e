//! Curves and dots over two logarithmic axes, on which a power law is a straight line.

use std::fmt::Write;

use crate::chart::axis::AxisRange;
use crate::chart::html::escape_html;
use crate::chart::{ChartFrame, render_legend};

/// Size of the drawing in its own units, which are pixels on a phone.
const SIZE: (f64, f64) = (420.0, 250.0);
/// Room for labels: left, top, right, bottom.
const ROOM: (f64, f64, f64, f64) = (52.0, 12.0, 12.0, 34.0);
/// Colours of the style sheet.
pub const COLOURS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogMark {
    Line,
    Dashes,
    Dots,
}

/// One curve, or dots of one kind.
#[derive(Clone, Debug)]
pub struct LogSeries {
    /// In the legend, unless it is empty.
    pub name: String,
    /// Number of its colour, from 0; the colours begin again after the last one.
    pub colour: usize,
    pub mark: LogMark,
    /// Positive numbers. Others are not drawn.
    pub points: Vec<(f64, f64)>,
}

#[derive(Clone, Debug, Default)]
pub struct LogChart {
    pub title: String,
    /// What is drawn, and its unit.
    pub subtitle: String,
    /// What the horizontal axis counts.
    pub across: String,
    pub series: Vec<LogSeries>,
}

impl LogChart {
    pub fn render_figure(&self) -> Option<String> {
        let all = || self.series.iter().flat_map(LogSeries::logs);
        // Ranges of the decadic logarithms.
        let across = AxisRange::from_values(all().map(|point| point.0))?.with_margin(0.04);
        let up = AxisRange::from_values(all().map(|point| point.1))?.with_margin(0.06);
        let frame = ChartFrame { size: SIZE, room: ROOM, across, up };
        let ticks = [across, up].map(|range| log_ticks(range).into_iter().map(|log| (log, log_label(log))).collect());
        // A series without a name belongs to the one before it.
        let named = self.series.iter().filter(|series| !series.name.is_empty() && series.logs().next().is_some());
        let legend = render_legend(named.map(|of| (of.colour % COLOURS, of.name.as_str(), of.mark == LogMark::Dots)));
        let across = escape_html(&self.across);
        Some(frame.render_figure([&self.title, &self.subtitle], &legend, (&across, ticks), |svg| {
            self.series.iter().for_each(|series| series.draw(&frame, svg));
        }))
    }
}

impl LogSeries {
    /// Decadic logarithms of the points that have them.
    fn logs(&self) -> impl Iterator<Item = (f64, f64)> {
        let logs = self.points.iter().map(|(x, y)| (x.log10(), y.log10()));
        logs.filter(|(x, y)| x.is_finite() && y.is_finite())
    }

    fn draw(&self, frame: &ChartFrame, svg: &mut String) {
        let colour = self.colour % COLOURS;
        if self.mark == LogMark::Dots {
            for (x, y) in self.logs() {
                let (cx, cy, name) = (frame.x(x), frame.y(y), escape_html(&self.name));
                let (across, up) = (log_label(x), log_label(y));
                let _ = writeln!(
                    svg,
                    r#"<circle class="c{colour}" cx="{cx:.1}" cy="{cy:.1}" r="3"><title>{name}: {across}, {up}</title></circle>"#
                );
            }
            return;
        }
        let path: String = self.logs().map(|(x, y)| format!("{:.1},{:.1} ", frame.x(x), frame.y(y))).collect();
        let dashes = if self.mark == LogMark::Dashes { r#" stroke-dasharray="5 4""# } else { "" };
        let _ = writeln!(svg, r#"<polyline class="curve c{colour}"{dashes} points="{}"/>"#, path.trim_end());
    }
}

/// Logarithms of the round values inside a range of logarithms: powers of ten; where these are few, also twice and five times as much, and
/// where the range is less than a factor of two, evenly spaced values.
///
/// ```
/// use zagros_plumbing::chart::axis::AxisRange;
/// use zagros_plumbing::chart::log_ticks;
///
/// let values = |low: f64, high: f64| -> Vec<f64> {
///     log_ticks(AxisRange { low: low.log10(), high: high.log10() }).into_iter().map(|log| (10_f64.powf(log) * 1e6).round() / 1e6).collect()
/// };
/// assert_eq!(values(50.0, 2e6), [100.0, 1e3, 1e4, 1e5, 1e6]);
/// assert_eq!(values(0.03, 0.6), [0.05, 0.1, 0.2, 0.5]);
/// assert_eq!(values(0.42, 0.47), [0.42, 0.44, 0.46]);
/// ```
pub fn log_ticks(range: AxisRange) -> Vec<f64> {
    let slack = 1e-9;
    let inside = |log: &f64| (range.low - slack..=range.high + slack).contains(log);
    let decades = (range.low.floor() as i32..=range.high.ceil() as i32).map(f64::from);
    let ticks = |factors: &[f64]| -> Vec<f64> {
        decades
            .clone()
            .flat_map(|decade| factors.iter().map(move |factor| decade + factor.log10()))
            .filter(inside)
            .collect()
    };
    let tens = ticks(&[1.0]);
    if tens.len() >= 3 {
        // At most eight, so that their labels do not touch.
        return tens.iter().copied().step_by(tens.len().div_ceil(8)).collect();
    }
    let fives = ticks(&[1.0, 2.0, 5.0]);
    if fives.len() >= 3 {
        return fives;
    }
    let values = AxisRange { low: 10_f64.powf(range.low - slack), high: 10_f64.powf(range.high + slack) };
    values.round_ticks(5).into_iter().filter(|value| *value > 0.0).map(f64::log10).collect()
}

/// The number of a logarithm, in short: `1M`, `0.05`, `1e-5`.
fn log_label(log: f64) -> String {
    let value = 10_f64.powf(log);
    let short = |value: f64| {
        let text = format!("{value:.3}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match value {
        value if !(0.999e-3..0.999e15).contains(&value) => {
            let decade = (log + 1e-9).floor();
            format!("{}e{decade}", short(10_f64.powf(log - decade)))
        }
        value if value >= 0.999e12 => short(value / 1e12) + "T",
        value if value >= 0.999e9 => short(value / 1e9) + "G",
        value if value >= 0.999e6 => short(value / 1e6) + "M",
        value if value >= 0.999e3 => short(value / 1e3) + "k",
        value => short(value),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn series(mark: LogMark, points: &[(f64, f64)]) -> LogSeries {
        LogSeries { name: "a <size>".to_owned(), colour: 9, mark, points: points.to_vec() }
    }

    #[test]
    fn a_power_law_is_a_straight_line() {
        let law: Vec<(f64, f64)> = (3..8).map(|power| (10_f64.powi(power), 10_f64.powi(power).powf(-0.3))).collect();
        let chart = LogChart { series: vec![series(LogMark::Line, &law)], ..LogChart::default() };
        let figure = chart.render_figure().unwrap();
        let places = figure.split(r#"points=""#).nth(1).unwrap().split('"').next().unwrap();
        let numbers: Vec<f64> = places.split([' ', ',']).map(|number| number.parse().unwrap()).collect();
        let slope = |from: usize| (numbers[from + 3] - numbers[from + 1]) / (numbers[from + 2] - numbers[from]);
        assert!((slope(0) - slope(6)).abs() < 0.01, "{places}");
    }

    #[test]
    fn what_has_no_logarithm_is_not_drawn() {
        assert!(LogChart::default().render_figure().is_none());
        let none = series(LogMark::Dots, &[(0.0, 1.0), (1.0, -1.0), (f64::NAN, 1.0)]);
        assert!(LogChart { series: vec![none.clone()], ..LogChart::default() }.render_figure().is_none());
        let one = series(LogMark::Dots, &[(1e5, 0.05), (1e6, 0.0)]);
        let drawn = LogChart { series: vec![none, one], across: "N".to_owned(), ..LogChart::default() };
        let figure = drawn.render_figure().unwrap();
        assert_eq!((figure.matches("<circle").count(), figure.matches(r#"class="c1""#).count()), (1, 1));
        assert!(figure.contains("<title>a &lt;size&gt;: 100k, 0.05</title>"), "{figure}");
        assert_eq!(figure.matches("<span>").count(), 1);
    }

    #[test]
    fn labels_are_short() {
        let labels = [1e6, 2.5e5, 0.05, 1e-5, 3e13, 2e16].map(|value: f64| log_label(value.log10()));
        assert_eq!(labels, ["1M", "250k", "0.05", "1e-5", "30T", "2e16"]);
    }

    proptest! {
        #[test]
        fn every_range_has_a_few_ticks_inside(low in 1e-6_f64..1e12, factor in 1.05_f64..1e9) {
            let range = AxisRange { low: low.log10(), high: (low * factor).log10() };
            let ticks = log_ticks(range);
            prop_assert!((1..=9).contains(&ticks.len()), "{ticks:?}");
            prop_assert!(ticks.iter().all(|log| *log >= range.low - 1e-6 && *log <= range.high + 1e-6), "{ticks:?}");
        }
    }
}
