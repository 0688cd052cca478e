//! Rows and steps of an epoch, before a run and in its plan, and a smaller batch where steps are few.

use indicatif::HumanCount;
use zagros_dense_worker::ResumePoint;
use zagros_ingest::{FileInfo, RowCount, find_files, training_rows};
use zagros_job::{Job, Mode};
use zagros_shell::{Exit, Failure, OrFailure, note};

/// With fewer steps an epoch a network hardly learns in it.
const FEW_STEPS: u64 = 100;
/// Steps an epoch that a proposed batch has, about.
const GOOD_STEPS: u64 = 400;
const LEAST_BATCH: u64 = 32;

#[derive(Clone, Copy, Debug)]
pub(crate) struct EpochPlan {
    rows: RowCount,
    batch: u64,
    workers: u64,
    /// Whether each worker drops its last batch, if that is not full.
    drop_last: bool,
    epochs: u64,
    max_steps: Option<u64>,
}

impl EpochPlan {
    /// That of a job with these training files. `None` if they cannot be read twice or in part.
    pub(crate) fn new(job: &Job, found: &[FileInfo]) -> Option<Self> {
        if job.data.reads_stdin() {
            return None;
        }
        let rows = training_rows(job, found).ok()?;
        Some(Self {
            rows,
            batch: job.train.batch_size as u64,
            workers: u64::from(job.cluster.workers.max(1)),
            drop_last: job.data.drop_last,
            epochs: u64::from(job.train.epochs),
            max_steps: job.train.max_steps,
        })
    }

    /// Rows of the training part; where they are estimated, so few that there are surely as many.
    pub(crate) fn least_rows(&self) -> u64 {
        match self.rows {
            RowCount::Counted(rows) => rows,
            RowCount::Estimated(rows) => rows - rows / 20,
        }
    }

    /// Steps of all workers together; in mode `async`, of each.
    fn steps(&self) -> u64 {
        self.steps_with(self.batch)
    }

    fn steps_with(&self, batch: u64) -> u64 {
        let of_each = self.rows.rows().div_ceil(self.workers);
        if self.drop_last { of_each / batch.max(1) } else { of_each.div_ceil(batch.max(1)) }
    }

    pub(crate) fn in_words(&self) -> String {
        let how = match self.rows {
            RowCount::Counted(_) => "counted",
            RowCount::Estimated(_) => "estimated by the first rows",
        };
        let all = self.steps().saturating_mul(self.epochs);
        let all = self.max_steps.map_or(all, |most| all.min(most));
        format!(
            "{} rows ({how}), {} steps an epoch, {} in all",
            HumanCount(self.rows.rows()),
            HumanCount(self.steps()),
            HumanCount(all)
        )
    }

    /// What to say where an epoch has few steps, and a smaller batch would give it more.
    pub(crate) fn warning(&self) -> Option<String> {
        let steps = self.steps();
        let wanted = self.rows.rows() / (GOOD_STEPS * self.workers);
        let batch = (wanted.max(1).ilog2()..=wanted.max(1).ilog2() + 1).map(|power| 1 << power);
        let batch = batch.min_by_key(|batch: &u64| batch.abs_diff(wanted)).unwrap_or(LEAST_BATCH).max(LEAST_BATCH);
        let better = self.steps_with(batch);
        (steps < FEW_STEPS && batch < self.batch && better >= FEW_STEPS).then(|| {
            format!(
                "an epoch has only {steps} steps of {} samples, and a network learns little from so few; try \
                 train.batch_size = {batch} ({} steps an epoch)",
                HumanCount(self.batch * self.workers),
                HumanCount(better)
            )
        })
    }
}

/// Whether the training files can be looked at before a run: they are neither standard input nor in a store.
pub(crate) fn is_on_disk(job: &Job) -> bool {
    let is_elsewhere = job.data.train.iter().any(|path| path.to_string_lossy().contains("://"));
    !is_elsewhere && !job.data.reads_stdin()
}

/// Says before a run how many rows and steps it has. Data elsewhere are not read for it.
pub(crate) fn announce_steps(job: &Job) {
    if !is_on_disk(job) {
        return;
    }
    // A file that cannot be read is reported by the worker.
    let Some(plan) = find_files(job, &job.data.train).ok().and_then(|found| EpochPlan::new(job, &found)) else {
        return;
    };
    let whose = if job.train.mode == Mode::Async && plan.workers > 1 { " of each worker" } else { "" };
    note!("data: {}{whose}", plan.in_words());
    if let Some(warning) = plan.warning() {
        tracing::warn!("{warning}");
    }
}

/// Gives a job with keys in epochs the steps of one: those that the run which it resumes began with, otherwise of its training rows.
pub(crate) fn count_epochs(job: &mut Job, point: Option<&ResumePoint>) -> Result<(), Failure> {
    let keys = job.uncounted_keys();
    let Some(first) = keys.first() else { return Ok(()) };
    let steps = match point.and_then(ResumePoint::epoch_steps) {
        Some(steps) => steps,
        None => {
            let found = find_files(job, &job.data.train).or_exit(Exit::Data)?;
            let plan = EpochPlan::new(job, &found).filter(|plan| plan.steps() > 0);
            plan.ok_or_else(|| uncounted(first))?.steps()
        }
    };
    job.count_epochs(steps);
    note!("{}: an epoch is {} steps (train.epoch_steps)", keys.join(", "), HumanCount(steps));
    Ok(())
}

fn uncounted(key: &str) -> Failure {
    let what = format!("{key} is in epochs, and the rows of one can neither be counted nor estimated before training");
    Failure::usage(what, "say how many steps an epoch has: --set train.epoch_steps=1000; or give the key in steps")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(rows: u64, batch: u64, workers: u64) -> EpochPlan {
        EpochPlan { rows: RowCount::Counted(rows), batch, workers, drop_last: false, epochs: 3, max_steps: None }
    }

    #[test]
    fn an_epoch_of_few_steps_gets_a_batch_that_gives_it_more() {
        let few = plan(110_000, 4096, 1);
        assert_eq!(few.in_words(), "110,000 rows (counted), 27 steps an epoch, 81 in all");
        let warning = few.warning().unwrap();
        let parts = ["only 27 steps", "train.batch_size = 256 (430 steps"];
        assert!(parts.iter().all(|part| warning.contains(part)), "{warning}");
        assert_eq!(plan(110_000, 256, 1).warning(), None);
        assert!(plan(110_000, 4096, 2).warning().unwrap().contains("train.batch_size = 128 (430 steps"));
        // Nothing helps so few rows, and a small batch is small enough.
        assert_eq!((plan(900, 256, 1).warning(), plan(2_000, 32, 1).warning()), (None, None));
    }

    #[test]
    fn steps_are_those_of_the_rows_of_each_worker() {
        let whole = plan(1001, 100, 2);
        assert_eq!((whole.steps(), EpochPlan { drop_last: true, ..whole }.steps()), (6, 5));
        let short = EpochPlan { max_steps: Some(7), rows: RowCount::Estimated(1000), ..whole };
        assert_eq!(short.in_words(), "1,000 rows (estimated by the first rows), 5 steps an epoch, 7 in all");
    }
}
