//! What a run costs on this machine, from two short runs: of the smallest size and of the largest.

use tokio::time::Instant;
use zagros_scaling::RunCost;
use zagros_shell::{Exit, Failure, OrInternal, note};

use super::member::process_sets;
use super::setup::{FamilySetup, FamilySize};
use crate::page::RunRecord;
use crate::train_process::{EndKind, TrainProcess, failure_reason, hopeless_failure, newest_run};

/// Compute of a short run, FLOP: some seconds of a core.
const COMPUTE: f64 = 1e11;
/// Steps of a short run, whatever its compute. The first ones are slow: few would make a small network look slow.
const STEPS: (f64, f64) = (10.0, 400.0);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MeasuredSpeed {
    pub(super) cost: RunCost,
    pub(super) held_out: u64,
}

struct ShortRun {
    sample: f64,
    /// Seconds of the process besides training.
    rest: f64,
    held_out: u64,
}

/// Trains both for a few steps.
pub(super) async fn measure(setup: &FamilySetup) -> Result<MeasuredSpeed, Failure> {
    let (small, large) = (&setup.sizes[0], &setup.sizes[setup.sizes.len() - 1]);
    note!("measuring the speed of the sizes {} and {}", small.size, large.size);
    let (first, second) = (short_run(setup, small).await?, short_run(setup, large).await?);
    let line = |size: &FamilySize, run: &ShortRun| (size.parameters as f64, run.sample);
    let cost = RunCost::from_runs(0.0, line(small, &first), line(large, &second));
    // The rest of the process is its start and the scoring of the held-out part.
    let scoring = cost.run_seconds(small.parameters as f64, 0.0, first.held_out as f64);
    let start = (first.rest - scoring).max(0.0);
    Ok(MeasuredSpeed { cost: RunCost { start, ..cost }, held_out: first.held_out })
}

async fn short_run(setup: &FamilySetup, size: &FamilySize) -> Result<ShortRun, Failure> {
    let folder = std::path::absolute(setup.folder.join(format!("speed-{}", size.size))).or_internal()?;
    let steps =
        steps(size.parameters, setup.job.train.batch_size).min(setup.step_count(setup.shares[setup.shares.len() - 1]));
    let sets = process_sets(setup, size.size, &folder, steps);
    let started = Instant::now();
    let process = TrainProcess::start(&setup.file, &folder, &sets, &["--fresh".to_owned()]).or_internal()?;
    let (status, _) = process.wait_end().await;
    let wall = started.elapsed().as_secs_f64();
    let status = status.or_internal()?;
    let name = format!("a short run of size {}", size.size);
    match EndKind::from_status(status) {
        EndKind::Well => {}
        EndKind::Failed => {
            let what = format!("{name} failed: {}", failure_reason(&folder, status));
            return Err(Failure::with_help(Exit::Usage, what, format!("its output is in {}", folder.display())));
        }
        EndKind::Interrupted | EndKind::Hopeless => return Err(hopeless_failure(&name, "family", &folder, status)),
    }
    let record = newest_run(&folder).and_then(|run| RunRecord::read(&run).ok());
    let summary = record.as_ref().and_then(|record| record.summary.as_ref());
    let Some(summary) = summary.filter(|summary| summary.samples > 0) else {
        return Err(Failure::with_help(
            Exit::Data,
            format!("{name} trained on no sample"),
            "look at the data of the job",
        ));
    };
    let scored = summary.validation.as_ref().or(summary.evaluation.as_ref());
    let Some(scored) = scored.filter(|scored| scored.logloss.is_some()) else {
        let what = format!("{name} has no log loss of a held-out part");
        return Err(Failure::with_help(
            Exit::Usage,
            what,
            "a scaling law is one of the log loss: of labels of kind click or classes",
        ));
    };
    Ok(ShortRun {
        sample: summary.seconds / summary.samples as f64,
        rest: (wall - summary.seconds).max(0.0),
        held_out: scored.samples,
    })
}

/// Steps of a short run of a size.
fn steps(parameters: u64, batch: usize) -> u64 {
    let step = 6.0 * parameters as f64 * batch as f64;
    (COMPUTE / step.max(1.0)).clamp(STEPS.0, STEPS.1) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_network_makes_few_steps_and_a_small_one_many() {
        assert_eq!([steps(1_000, 128), steps(100_000, 1024), steps(100_000_000, 4096)], [400, 162, 10]);
    }
}
