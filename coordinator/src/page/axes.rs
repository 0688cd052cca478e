//! Ranges and ticks of the page's charts. The script draws them; it computes none.

use serde::Serialize;
use zagros_plumbing::chart::axis::{AxisRange, tick_label};

use crate::{HistoryReport, StatusReport};

/// About so many ticks on each axis.
const VALUES: usize = 4;
const TIMES: usize = 6;
/// Room between the curve and the frame, as a share of its range.
const ROOM: f64 = 0.08;

/// The axes of all charts; `null` where there is nothing to draw.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct PageAxes {
    time: Option<PageAxis>,
    throughput: Option<PageAxis>,
    loss: Option<PageAxis>,
    auc: Option<PageAxis>,
    staleness: Option<PageAxis>,
}

/// Of values, or of the time since the start of the coordinator, seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct PageAxis {
    low: f64,
    high: f64,
    unit: &'static str,
    ticks: Vec<AxisTick>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct AxisTick {
    at: f64,
    label: String,
}

impl PageAxes {
    pub(super) fn new(report: &StatusReport) -> Self {
        let StatusReport { history, evaluations, .. } = report;
        let values = |value: fn(&HistoryReport) -> Option<f64>| history.iter().filter_map(value).collect::<Vec<_>>();
        let bound = f64::from(report.staleness_bound);
        let scored = |value: fn(&crate::EvaluationReport) -> f64| evaluations.iter().map(value).collect::<Vec<_>>();
        Self {
            time: PageAxis::from_history(history),
            throughput: PageAxis::from_zero(values(|point| Some(point.samples_per_second))),
            loss: PageAxis::from_values([values(|point| point.loss), scored(|one| one.logloss)].concat()),
            auc: PageAxis::from_values([values(|point| point.auc), scored(|one| one.auc)].concat()),
            staleness: PageAxis::from_zero([values(|point| Some(f64::from(point.staleness))), vec![bound]].concat()),
        }
    }
}

impl PageAxis {
    fn from_values(values: Vec<f64>) -> Option<Self> {
        AxisRange::from_values(values).map(|range| Self::with_ticks(range.with_margin(ROOM)))
    }

    fn from_zero(values: Vec<f64>) -> Option<Self> {
        let high = values.into_iter().filter(|value| value.is_finite()).reduce(f64::max)?;
        let high = if high > 0.0 { high * (1.0 + ROOM) } else { 1.0 };
        Some(Self::with_ticks(AxisRange { low: 0.0, high }))
    }

    fn with_ticks(range: AxisRange) -> Self {
        let AxisRange { low, high } = range;
        Self { low, high, unit: "", ticks: ticks(range, VALUES, 1.0) }
    }

    fn from_history(history: &[HistoryReport]) -> Option<Self> {
        let (low, last) = (history.first()?.seconds, history.last()?.seconds);
        let high = last.max(low + 1.0);
        let (unit, length) = match high {
            seconds if seconds < 180.0 => ("seconds", 1.0),
            seconds if seconds < 3.0 * 3600.0 => ("minutes", 60.0),
            _ => ("hours", 3600.0),
        };
        let ticks = ticks(AxisRange { low: low / length, high: high / length }, TIMES, length);
        Some(Self { low, high, unit, ticks })
    }
}

/// Round values of a range in a unit, each where it lies in seconds or in the value itself.
fn ticks(range: AxisRange, wanted: usize, length: f64) -> Vec<AxisTick> {
    let values = range.round_ticks(wanted);
    let step = match values[..] {
        [first, second, ..] => second - first,
        _ => range.high - range.low,
    };
    values.into_iter().map(|value| AxisTick { at: value * length, label: tick_label(value, step) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EvaluationReport;

    fn labels(ticks: &[AxisTick]) -> Vec<&str> {
        ticks.iter().map(|tick| tick.label.as_str()).collect()
    }

    fn report(points: &[(f64, f64, Option<f64>)]) -> StatusReport {
        let point = |(seconds, rate, loss): &(f64, f64, Option<f64>)| HistoryReport {
            seconds: *seconds,
            samples_per_second: *rate,
            loss: *loss,
            ..HistoryReport::default()
        };
        StatusReport { history: points.iter().map(point).collect(), staleness_bound: 4, ..StatusReport::default() }
    }

    #[test]
    fn a_run_without_a_step_has_no_axes_but_that_of_the_bound() {
        let axes = PageAxes::new(&report(&[]));
        assert_eq!((&axes.time, &axes.loss, &axes.throughput), (&None, &None, &None));
        assert_eq!(labels(&axes.staleness.unwrap().ticks), ["0", "2", "4"]);
    }

    #[test]
    fn an_axis_from_zero_has_room_where_all_is_zero() {
        let zero = PageAxis::from_zero(vec![0.0, 0.0]).unwrap();
        assert_eq!((zero.low, zero.high), (0.0, 1.0));
        assert_eq!(PageAxis::from_zero(vec![f64::NAN]), None);
    }

    #[test]
    fn axes_cover_every_point_and_every_evaluation_and_skip_what_is_no_number() {
        let mut report = report(&[(1.0, 100.0, Some(0.5)), (90.0, 40_000.0, Some(f64::NAN)), (170.0, 0.0, None)]);
        report.evaluations.push(EvaluationReport { logloss: 0.7, auc: 0.75, ..EvaluationReport::default() });
        let axes = PageAxes::new(&report);
        let (loss, rate, time) = (axes.loss.unwrap(), axes.throughput.unwrap(), axes.time.unwrap());
        assert!(loss.low < 0.5 && loss.high > 0.7 && loss.high < 0.8, "{loss:?}");
        assert_eq!(labels(&rate.ticks), ["0", "20k", "40k"]);
        assert!(rate.low == 0.0 && rate.high > 40_000.0, "{rate:?}");
        assert_eq!((time.low, time.high, time.unit), (1.0, 170.0, "seconds"));
        assert_eq!(labels(&time.ticks), ["50", "100", "150"]);
        // One evaluation and no AUC of training.
        let auc = axes.auc.unwrap();
        assert!(auc.low < 0.75 && 0.75 < auc.high, "{auc:?}");
    }

    #[test]
    fn long_runs_count_in_minutes_and_hours() {
        let time =
            |seconds: f64| PageAxis::from_history(&report(&[(0.0, 1.0, None), (seconds, 1.0, None)]).history).unwrap();
        let minutes = time(600.0);
        assert_eq!((minutes.unit, labels(&minutes.ticks)), ("minutes", vec!["0", "2", "4", "6", "8", "10"]));
        assert_eq!(minutes.ticks[1].at, 120.0);
        assert_eq!(time(20_000.0).unit, "hours");
        let one = PageAxis::from_history(&report(&[(5.0, 1.0, None)]).history).unwrap();
        assert_eq!((one.low, one.high), (5.0, 6.0));
    }
}
