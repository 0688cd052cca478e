//! The curve of training over time. Its length is bounded: when it is full, each two neighbouring points become one.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use zagros_protocol::control::HistoryPoint;

/// The time that one point covers at first.
const FIRST_STRETCH: Duration = Duration::from_secs(1);
/// The most points: about two per pixel of a phone's width.
const MOST: usize = 600;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TrainingMoment {
    pub(crate) step: u64,
    pub(crate) samples_per_second: f64,
    /// Nats; `None` before the first step.
    pub(crate) loss: Option<f64>,
    pub(crate) staleness: u32,
    pub(crate) auc: Option<f64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TrainingHistory {
    pub(crate) points: Vec<HistoryPoint>,
    most: usize,
    stretch: Duration,
    /// When the last point ended; the start of the run before the first.
    ended: Option<Duration>,
    current: PointSum,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct PointSum {
    rate: RunningMean,
    loss: RunningMean,
    staleness: u32,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct RunningMean {
    sum: f64,
    count: u32,
}

impl RunningMean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    fn mean(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }
}

impl Default for TrainingHistory {
    fn default() -> Self {
        Self::with_capacity(MOST)
    }
}

impl TrainingHistory {
    /// A history of at most `most` points, at least two.
    fn with_capacity(most: usize) -> Self {
        Self { points: Vec::new(), most, stretch: FIRST_STRETCH, ended: None, current: PointSum::default() }
    }

    /// Times do not run backwards.
    pub(crate) fn add(&mut self, now: Duration, moment: TrainingMoment) {
        let began = *self.ended.get_or_insert(now);
        self.current.rate.add(moment.samples_per_second);
        moment.loss.into_iter().for_each(|loss| self.current.loss.add(loss));
        self.current.staleness = self.current.staleness.max(moment.staleness);
        if now.saturating_sub(began) < self.stretch {
            return;
        }
        let PointSum { rate, loss, staleness } = std::mem::take(&mut self.current);
        self.ended = Some(now);
        self.points.push(HistoryPoint {
            seconds: now.as_secs_f64(),
            step: moment.step,
            samples_per_second: rate.mean().unwrap_or_default(),
            loss: loss.mean(),
            staleness,
            auc: moment.auc,
        });
        if self.points.len() > self.most {
            self.thin();
        }
    }

    /// Merges neighbouring points. From now on a point covers twice the time.
    fn thin(&mut self) {
        self.stretch *= 2;
        self.points = self.points.chunks(2).map(merged).collect();
    }
}

/// Merges each two neighbours. The last of an odd number stays as it is.
fn merged(pair: &[HistoryPoint]) -> HistoryPoint {
    let [first, second] = pair else { return pair[0] };
    let mean = |one: f64, other: f64| (one + other) / 2.0;
    HistoryPoint {
        seconds: second.seconds,
        step: second.step,
        samples_per_second: mean(first.samples_per_second, second.samples_per_second),
        loss: match (first.loss, second.loss) {
            (Some(one), Some(other)) => Some(mean(one, other)),
            (one, other) => one.or(other),
        },
        staleness: first.staleness.max(second.staleness),
        auc: second.auc.or(first.auc),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zagros_zip::number_from;

    use super::*;

    fn time(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn moment(step: u64, rate: f64) -> TrainingMoment {
        TrainingMoment { step, samples_per_second: rate, loss: Some(0.5), staleness: 1, auc: None }
    }

    #[test]
    fn a_point_is_the_mean_of_its_second_and_its_largest_staleness() {
        let mut history = TrainingHistory::default();
        history.add(time(0.0), moment(1, 10.0));
        history.add(time(0.5), TrainingMoment { staleness: 4, loss: None, ..moment(2, 30.0) });
        assert!(history.points.is_empty());
        history.add(time(1.0), TrainingMoment { loss: Some(0.25), auc: Some(0.75), ..moment(3, 20.0) });
        let (seconds, step, samples_per_second, loss) = (1.0, 3, 20.0, Some(0.375));
        let point = HistoryPoint { seconds, step, samples_per_second, loss, staleness: 4, auc: Some(0.75) };
        assert_eq!(history.points, [point]);
    }

    proptest! {
        #[test]
        fn a_history_is_bounded_and_covers_the_whole_time_in_order(
            gaps in prop::collection::vec(0.0_f64..5.0, 1..400), most in 2_usize..20
        ) {
            let mut history = TrainingHistory::with_capacity(most);
            let (mut now, mut stalest) = (0.0, 0);
            for (step, gap) in number_from(0, &gaps) {
                now += gap;
                let staleness = (step % 7) as u32;
                stalest = stalest.max(staleness);
                history.add(time(now), TrainingMoment { staleness, ..moment(step, 100.0) });
            }
            let points = history.points;
            prop_assert!(points.len() <= most);
            prop_assert!(points.is_sorted_by(|one, other| one.seconds < other.seconds && one.step < other.step));
            // An average of equal values is that value, however often it is taken.
            prop_assert!(points.iter().all(|point| (point.samples_per_second - 100.0).abs() < 1e-9));
            let largest = points.iter().map(|point| point.staleness).max().unwrap_or(0).max(history.current.staleness);
            prop_assert_eq!(largest, stalest);
            let last = history.ended.unwrap();
            prop_assert!(time(now) - last < history.stretch, "the last stretch is open for longer than one");
        }
    }
}
