//! Adds up what training did.

use std::time::{Duration, Instant};

use serde::{Deserialize, Deserializer, Serialize};
use zagros_plumbing::energy::EnergyMeter;
use zagros_protocol::control::{Progress, StageSeconds as Stages};

use super::CostMeter;
use super::MainTarget;
use super::WorkerCounts;
use crate::event::{Evaluation, StepReport};
use crate::progress::{OverallMeasures, RecentMeasures, SampleSpeed, SmoothedMean};
use crate::summary::{StageSeconds, StepStaleness, TrainingCost};

const LOSS_STEPS: f64 = 100.0;
const RECENT_SAMPLES: usize = 100_000;
const SPEED_WINDOW: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct TrainingTracker {
    /// Of this worker, and of the processes before it that it goes on from. Its time is that up to the last pause.
    pub(crate) done: TrackerState,
    pub(crate) others: WorkerCounts,
    speed: SampleSpeed,
    /// Samples of this worker since the process started, and how fast they come.
    own_samples: u64,
    own_speed: SampleSpeed,
    running_since: Option<Instant>,
    cost: CostMeter,
    /// Samples of all workers before the process started.
    samples_before: u64,
    total_bytes: u64,
}

/// What a run that goes on must know of what was done before. Only the speed starts anew: it may be another machine's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TrackerState {
    #[serde(flatten)]
    pub(crate) counts: WorkerCounts,
    loss: SmoothedMean,
    #[serde(deserialize_with = "known_recent")]
    recent: RecentMeasures,
    /// The predictions of the epoch so far, each sample scored before it was learned from.
    pub(crate) overall: OverallMeasures,
    epoch: u32,
    epoch_bytes: u64,
}

/// Recent measures in another form, as earlier checkpoints have them, are measured anew.
fn known_recent<'de, D: Deserializer<'de>>(from: D) -> Result<RecentMeasures, D::Error> {
    let found = serde_json::Value::deserialize(from)?;
    Ok(serde_json::from_value(found).unwrap_or_else(|_| RecentMeasures::new(RECENT_SAMPLES)))
}

impl TrackerState {
    /// Of a worker that has done nothing and counts its steps from here.
    pub(crate) fn starting_at(steps: u64) -> Self {
        Self {
            counts: WorkerCounts { steps, ..WorkerCounts::default() },
            loss: SmoothedMean::new(LOSS_STEPS),
            recent: RecentMeasures::new(RECENT_SAMPLES),
            overall: OverallMeasures::new(),
            epoch: 0,
            epoch_bytes: 0,
        }
    }

    pub(crate) fn in_epoch_of(self, other: &Self) -> Self {
        Self { epoch: other.epoch, epoch_bytes: other.epoch_bytes, ..self }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct MadeStep<'a> {
    /// Of all workers.
    pub(crate) samples: u64,
    /// Of this one's batch, `[samples, targets]`.
    pub(crate) labels: &'a [f32],
    /// `[samples, outputs]`.
    pub(crate) logits: &'a [f32],
    pub(crate) main: MainTarget,
    pub(crate) loss: f32,
    pub(crate) staleness: u32,
    /// Of all workers.
    pub(crate) bytes: u64,
}

impl TrainingTracker {
    /// `total_bytes` are those of one epoch.
    pub(crate) fn new(total_bytes: u64) -> Self {
        Self {
            done: TrackerState::starting_at(0),
            others: WorkerCounts::default(),
            speed: SampleSpeed::new(SPEED_WINDOW),
            own_samples: 0,
            own_speed: SampleSpeed::new(SPEED_WINDOW),
            running_since: None,
            cost: CostMeter::new(EnergyMeter::of_this_machine()),
            samples_before: 0,
            total_bytes,
        }
    }

    /// Counts are those of this worker and the other asynchronous workers.
    pub(crate) fn state(&self) -> TrackerState {
        TrackerState { counts: self.all_counts(), ..self.done.clone() }
    }

    /// Counts are those of this worker alone.
    pub(crate) fn own_state(&self) -> TrackerState {
        TrackerState { counts: self.own_counts(), ..self.done.clone() }
    }

    pub(crate) fn restore(&mut self, state: TrackerState) {
        self.samples_before = state.counts.samples;
        self.done = state;
    }

    pub(crate) fn is_untouched(&self) -> bool {
        self.own_steps() == 0 && self.done.epoch_bytes == 0
    }

    pub(crate) fn epoch_started(&mut self, epoch: u32) {
        let overall = OverallMeasures::new();
        (self.done.epoch, self.done.epoch_bytes, self.done.overall) = (epoch, 0, overall);
    }

    /// This worker's predictions of about the last 100,000 samples, each scored before it was learned from.
    pub(crate) fn recent_measures(&self) -> Evaluation {
        self.done.recent.report()
    }

    pub(crate) fn resume_clock(&mut self) {
        self.running_since.get_or_insert_with(Instant::now);
        self.cost.start();
        let now = Instant::now();
        self.speed.add(now, self.done.counts.samples);
        self.own_speed.add(now, self.own_samples);
    }

    pub(crate) fn pause_clock(&mut self) {
        self.done.counts = self.own_counts();
        self.running_since = None;
        self.cost.stop();
        self.speed.pause();
        self.own_speed.pause();
    }

    pub(crate) fn count_step(&mut self, step: MadeStep<'_>) -> StepReport {
        let done = &mut self.done;
        done.counts.steps += 1;
        done.counts.samples += step.samples;
        done.counts.staleness_max = done.counts.staleness_max.max(u64::from(step.staleness));
        done.counts.staleness_sum += u64::from(step.staleness);
        done.epoch_bytes += step.bytes;
        done.loss.add(f64::from(step.loss));
        let predicted = step.main.batch_predictions(step.labels, step.logits, step.loss);
        done.recent.add(&predicted);
        done.overall.add(&predicted);
        let recent = done.recent.report();
        self.own_samples += step.main.sample_count(step.labels) as u64;
        let now = Instant::now();
        self.speed.add(now, self.done.counts.samples);
        self.own_speed.add(now, self.own_samples);
        self.cost.update();
        StepReport {
            step: self.own_steps(),
            epoch: self.done.epoch,
            epoch_fraction: self.epoch_fraction(),
            samples: self.done.counts.samples,
            samples_per_second: self.speed.per_second(),
            own_samples_per_second: self.own_speed.per_second(),
            loss: f64::from(step.loss),
            loss_smoothed: self.smoothed_loss(),
            auc_so_far: recent.auc,
            logloss_recent: recent.logloss,
            normalised_entropy: recent.normalised_entropy,
            calibration: recent.calibration,
            staleness: step.staleness,
        }
    }

    /// A step that was skipped: its samples taught nothing. Answers how many there were.
    pub(crate) fn count_skipped(&mut self, bytes: u64) -> u64 {
        self.done.counts.steps += 1;
        self.done.counts.skipped += 1;
        self.done.epoch_bytes += bytes;
        self.done.counts.skipped
    }

    /// Of training alone, seconds; of asynchronous workers, the longest.
    pub(crate) fn training_seconds(&self) -> f64 {
        Duration::from_micros(self.all_counts().micros).as_secs_f64()
    }

    pub(crate) fn cost(&self) -> TrainingCost {
        self.cost.cost(self.all_counts().samples.saturating_sub(self.samples_before), self.own_samples)
    }

    pub(crate) fn smoothed_loss(&self) -> f64 {
        self.done.loss.mean()
    }

    pub(crate) fn staleness(&self) -> StepStaleness {
        let all = self.all_counts();
        StepStaleness {
            max: u32::try_from(all.staleness_max).unwrap_or(u32::MAX),
            mean: all.staleness_sum as f64 / (all.steps - all.skipped).max(1) as f64,
        }
    }

    pub(crate) fn own_steps(&self) -> u64 {
        self.done.counts.steps
    }

    /// With the time until now.
    pub(crate) fn own_counts(&self) -> WorkerCounts {
        let running = self.running_since.map_or(0, |since| since.elapsed().as_micros() as u64);
        WorkerCounts { micros: self.done.counts.micros + running, ..self.done.counts }
    }

    /// Of this worker and the other asynchronous workers; of a process group, each step once.
    pub(crate) fn all_counts(&self) -> WorkerCounts {
        self.own_counts().plus(self.others)
    }

    fn epoch_fraction(&self) -> f64 {
        (self.done.epoch_bytes as f64 / self.total_bytes.max(1) as f64).min(1.0)
    }
}

/// A step as the coordinator hears of it.
pub(crate) fn reported_progress(
    report: &StepReport,
    checkpoint_step: u64,
    stale: StepStaleness,
    stages: &StageSeconds,
) -> Progress {
    let &StageSeconds { parse, dedup, lookup, gather, dense, scatter, push, waiting, reduce, .. } = stages;
    Progress {
        staleness_max: stale.max,
        auc: report.auc_so_far,
        stages: Some(Stages { parse, dedup, lookup, gather, dense, scatter, push, waiting, reduce }),
        checkpoint_step,
        step: report.step,
        epoch: report.epoch,
        samples: report.samples,
        samples_per_second: report.own_samples_per_second,
        loss: report.loss_smoothed,
        staleness: report.staleness,
        trained: false,
        batch: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: MadeStep<'_> = MadeStep {
        samples: 2,
        labels: &[0.0, 1.0],
        logits: &[-1.0, 1.0],
        main: MainTarget::CLICK,
        loss: 0.5,
        staleness: 0,
        bytes: 40,
    };

    #[test]
    fn steps_add_up_and_epochs_start_over() {
        let mut tracker = TrainingTracker::new(100);
        let step = |staleness| MadeStep { staleness, ..STEP };
        tracker.count_step(step(0));
        let second = tracker.count_step(step(3));
        assert_eq!((second.step, second.samples, second.epoch_fraction), (2, 4, 0.8));
        assert_eq!((second.loss_smoothed, second.auc_so_far), (0.5, Some(1.0)));
        assert_eq!((tracker.done.overall.report().samples, tracker.done.overall.report().logloss), (4, Some(0.5)));
        tracker.epoch_started(1);
        assert_eq!((tracker.done.overall.report().samples, tracker.recent_measures().samples), (0, 4));
        assert_eq!(tracker.count_step(step(0)).epoch_fraction, 0.4);
        assert_eq!(tracker.staleness(), StepStaleness { max: 3, mean: 1.0 });
        let skipped = tracker.count_skipped(20);
        assert_eq!(
            (skipped, tracker.own_steps(), tracker.done.counts.samples, tracker.epoch_fraction()),
            (1, 4, 6, 0.6)
        );
    }

    #[test]
    fn what_was_done_before_is_gone_on_from() {
        let mut first = TrainingTracker::new(100);
        let step = MadeStep { samples: 2, loss: 0.25, staleness: 3, bytes: 40, ..STEP };
        first.epoch_started(1);
        first.count_step(step);
        first.count_skipped(10);
        let kept = serde_json::to_string(&first.state()).unwrap();
        let mut resumed = TrainingTracker::new(100);
        resumed.restore(serde_json::from_str(&kept).unwrap());
        let counts = resumed.own_counts();
        assert_eq!((counts.steps, counts.samples, counts.skipped, resumed.epoch_fraction()), (2, 2, 1, 0.5));
        assert_eq!((resumed.smoothed_loss(), resumed.staleness()), (0.25, first.staleness()));
        assert_eq!(resumed.done.overall.report(), first.done.overall.report());
        assert_eq!((resumed.recent_measures(), resumed.recent_measures().samples), (first.recent_measures(), 2));
        assert_eq!((first.cost().samples, resumed.cost().samples), (2, 0));
        assert_eq!(resumed.count_step(step).step, first.count_step(step).step);
        assert_eq!(resumed.cost().samples, 2);
    }

    #[test]
    fn of_asynchronous_workers_each_step_is_counted_once() {
        let step = MadeStep { samples: 2, loss: 0.25, staleness: 3, bytes: 40, ..STEP };
        let [mut first, mut second] = [TrainingTracker::new(100), TrainingTracker::new(100)];
        first.epoch_started(1);
        first.count_step(step);
        second.count_step(step);
        second.count_step(step);
        first.others = second.own_counts();
        let state = first.state();
        let counts = state.counts;
        assert_eq!((counts.steps, counts.samples, first.all_counts().steps, first.own_steps()), (3, 6, 3, 1));
        let [mut again, mut beside] = [TrainingTracker::new(100), TrainingTracker::new(100)];
        again.restore(state.clone());
        beside.restore(TrackerState::starting_at(0).in_epoch_of(&state));
        again.others = beside.own_counts();
        let all = again.all_counts();
        assert_eq!((all.steps, all.samples, again.staleness()), (3, 6, first.staleness()));
        assert_eq!((beside.own_steps(), beside.epoch_fraction(), beside.is_untouched()), (0, 0.4, false));
        beside.others = again.own_counts();
        assert_eq!(beside.count_step(step).step + again.own_steps(), beside.all_counts().steps);
    }

    /// Of two workers of unequal batches: the whole run's samples, and its own speed.
    #[test]
    fn a_worker_reports_its_own_speed_beside_the_runs() {
        let mut tracker = TrainingTracker::new(100);
        tracker.resume_clock();
        let step = MadeStep { samples: 6, loss: 0.5, staleness: 0, bytes: 1, ..STEP };
        std::thread::sleep(Duration::from_millis(20));
        let report = tracker.count_step(step);
        let ratio = report.samples_per_second / report.own_samples_per_second;
        assert!((2.5..3.5).contains(&ratio), "{report:?}");
        let sent = reported_progress(&report, 0, tracker.staleness(), &StageSeconds::default());
        assert_eq!((sent.samples_per_second, sent.samples), (report.own_samples_per_second, 6));
    }

    #[test]
    fn the_coordinator_hears_of_staleness_and_stages_besides_the_step() {
        let report = StepReport { step: 7, auc_so_far: Some(0.75), ..StepReport::default() };
        let stages = StageSeconds { dense: 2.5, ..StageSeconds::default() };
        let sent = reported_progress(&report, 4, StepStaleness { max: 3, mean: 1.0 }, &stages);
        assert_eq!((sent.step, sent.checkpoint_step, sent.staleness_max, sent.auc), (7, 4, 3, Some(0.75)));
        assert_eq!(sent.stages.map(|stages| stages.dense), Some(2.5));
    }

    #[test]
    fn the_clock_stands_still_in_a_pause() {
        let mut tracker = TrainingTracker::new(1);
        tracker.resume_clock();
        tracker.pause_clock();
        let seconds = tracker.training_seconds();
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(tracker.training_seconds(), seconds);
    }
}
