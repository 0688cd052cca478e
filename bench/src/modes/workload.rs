//! The job, and the modes in which it is run.

use std::path::Path;

use zagros_ingest::synthetic::{SyntheticSpec, generate_criteo};
use zagros_job::{Job, Mode, Overrides};
use zagros_shell::{Exit, Failure, OrFailure, load_job};

use crate::args::ModesArgs;

pub(super) const WORKERS: u32 = 2;
pub(super) const SERVERS: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ModeSetting {
    pub(super) mode: Mode,
    pub(super) staleness: usize,
}

impl ModeSetting {
    /// `sync`, hybrid with each staleness, and `async` with the largest of the default ones.
    pub(super) fn all_settings(staleness: &[usize], of_async: usize) -> Vec<Self> {
        let sync = Self { mode: Mode::Sync, staleness: 0 };
        let hybrid = staleness.iter().map(|staleness| Self { mode: Mode::Hybrid, staleness: *staleness });
        let asynchronous = Self { mode: Mode::Async, staleness: of_async };
        std::iter::once(sync).chain(hybrid).chain([asynchronous]).collect()
    }

    pub(super) fn name(self) -> &'static str {
        match self.mode {
            Mode::Sync => "sync",
            Mode::Hybrid => "hybrid",
            Mode::Async => "async",
        }
    }

    /// For two workers with one thread each, which share its batch. Asynchronous workers share no steps, so these are
    /// not limited.
    pub(super) fn apply_to(self, job: &Job, seed: u64) -> Job {
        let mut job = job.clone();
        (job.train.mode, job.train.staleness) = (self.mode, self.staleness);
        (job.train.max_steps, job.train.evaluate_every) = (None, None);
        job.train.seed = seed;
        job.train.batch_size = (job.train.batch_size / WORKERS as usize).max(1);
        (job.train.threads, job.data.threads) = (1, 1);
        (job.cluster.workers, job.cluster.servers) = (WORKERS, SERVERS);
        job.cluster.server_addresses = vec!["127.0.0.1:0".to_owned()];
        job.output.save_model = false;
        job.checkpoint.keep = 0;
        job
    }
}

/// The job of the command line, or generated rows in `folder` and a small network on them.
pub(super) fn mode_job(args: &ModesArgs, folder: &Path) -> Result<Job, Failure> {
    if let Some(file) = &args.job {
        return load_job(file, &args.sets);
    }
    let (rows, test_rows) = if args.quick { (8_000, 2_000) } else { (args.rows, args.rows / 4) };
    let spec = SyntheticSpec { rows, test_rows, ..SyntheticSpec::default() };
    generate_criteo(&spec, folder).or_internal()?;
    let text = r#"
        name = "modes"
        [data]
        format = "criteo"
        train = "train.txt"
        test = "test.txt"
        [embedding]
        dim = 8
        optimizer = { kind = "adagrad", lr = 0.05 }
        [model]
        kind = "ffnn"
        hidden = [64, 32]
        [train]
        batch_size = 1024
    "#;
    let overrides = Overrides::new(args.sets.clone(), []);
    let job = Job::parse(text, &folder.join("job.toml"), &overrides);
    job.map_err(|errors| Failure::new(Exit::Usage, errors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_of_a_job_is_a_job() {
        let text =
            "[data]\nformat = 'criteo'\ntrain = 'a'\ntest = 'b'\n[train]\nbatch_size = 512\nevaluate_every = 5\n";
        let job = Job::parse(text, Path::new("/jobs/a.toml"), &Overrides::none()).unwrap();
        let settings = ModeSetting::all_settings(&[1, 4], 4);
        let names: Vec<_> = settings.iter().map(|setting| setting.name()).collect();
        assert_eq!(names, ["sync", "hybrid", "hybrid", "async"]);
        for setting in settings {
            let applied = setting.apply_to(&job, 7);
            let again = Job::parse(&applied.to_toml(), Path::new("/elsewhere/a.toml"), &Overrides::none()).unwrap();
            assert_eq!(again, applied);
            assert_eq!((again.train.batch_size, again.train.seed, again.staleness()), (256, 7, setting.staleness));
        }
    }
}
