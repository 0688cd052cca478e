//! When each step of a run was made, from its `metrics.jsonl`.

use std::ops::Range;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use zagros_shell::{Failure, OrInternal};

/// The last step whose time is recorded whatever its distance from the one before.
pub(super) const LAST_RECORDED: u64 = 1000;

#[derive(Clone, Copy, Debug, Deserialize)]
struct StepTime {
    time: f64,
    step: u64,
    /// Samples trained so far, by all workers.
    samples: u64,
}

#[derive(Debug, Default)]
pub(super) struct StepTimes(Vec<StepTime>);

/// Seconds since the epoch of the clock, as in the record of a run.
pub(super) fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

impl StepTimes {
    /// Reads the record of a run, whose last line may not be whole yet.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        Ok(Self::parse(&std::fs::read_to_string(path).or_internal()?))
    }

    fn parse(text: &str) -> Self {
        let is_step = |line: &&str| line.contains("\"type\":\"step\"");
        Self(text.lines().filter(is_step).filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// The newest step. 0 before the first.
    pub(super) fn last_step(&self) -> u64 {
        self.0.last().map_or(0, |last| last.step)
    }

    /// Samples a second between the steps that surround a span of time.
    pub(super) fn samples_per_second(&self, span: Range<f64>) -> f64 {
        let steps = self.steps_around(span);
        let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return 0.0 };
        let seconds = last.time - first.time;
        if seconds > 0.0 { (last.samples - first.samples) as f64 / seconds } else { 0.0 }
    }

    /// The longest time between two steps, one of which is in a span of time or which surround it.
    pub(super) fn longest_gap(&self, span: Range<f64>) -> f64 {
        self.steps_around(span).windows(2).map(|pair| pair[1].time - pair[0].time).fold(0.0, f64::max)
    }

    /// The steps in a span of time, with the last one before it and the first one after it.
    fn steps_around(&self, span: Range<f64>) -> &[StepTime] {
        let first = self.0.partition_point(|step| step.time < span.start).saturating_sub(1);
        let end = (self.0.partition_point(|step| step.time <= span.end) + 1).min(self.0.len());
        &self.0[first.min(end)..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of 100 samples at these times.
    fn times(at: &[f64]) -> StepTimes {
        let line = |(number, time): (usize, &f64)| {
            let (step, samples) = (number + 1, 100 * (number + 1));
            format!("{{\"type\":\"step\",\"time\":{time},\"step\":{step},\"samples\":{samples},\"loss\":0.5}}\n")
        };
        let lines: String = at.iter().enumerate().map(line).collect();
        StepTimes::parse(&format!("{lines}{{\"type\":\"epoch\",\"time\":9}}\n{{\"type\":\"step\",\"ti"))
    }

    #[test]
    fn a_stop_is_seen_whichever_part_of_it_is_in_the_span() {
        let times = times(&[1.0, 2.0, 3.0, 7.0, 8.0, 9.0]);
        assert_eq!((times.last_step(), times.longest_gap(0.0..2.5)), (6, 1.0));
        for span in [2.5..3.5, 4.0..5.0, 6.0..8.5, 0.0..20.0] {
            assert_eq!(times.longest_gap(span.clone()), 4.0, "{span:?}");
        }
        assert_eq!(times.longest_gap(7.5..20.0), 1.0);
    }

    #[test]
    fn a_rate_is_of_the_steps_around_the_span() {
        let times = times(&[1.0, 2.0, 3.0, 7.0, 8.0, 9.0]);
        assert_eq!((times.samples_per_second(1.0..2.0), times.samples_per_second(4.0..6.0)), (100.0, 25.0));
        assert_eq!(
            (StepTimes::default().samples_per_second(0.0..1.0), StepTimes::default().longest_gap(0.0..1.0)),
            (0.0, 0.0)
        );
    }
}
