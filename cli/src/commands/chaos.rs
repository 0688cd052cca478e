//! `zagros chaos`: breaks the processes of a run on purpose, and checks that nothing is lost.

use std::time::Duration;

use zagros_chaos::{ChaosOptions, ChaosRun, job_changes};
use zagros_dense_worker::RunFolder;
use zagros_plumbing::Shutdown;
use zagros_shell::{Exit, Failure, Logging, OrInternal, check_folders, load_job, watch_signals};

use crate::args::ChaosArgs;
use crate::resume::failed;
use crate::{memory, up};

/// How long faults are made, unless their number is given.
const LENGTH: Duration = Duration::from_mins(10);
/// Longer than any number of faults takes.
const ANY: Duration = Duration::from_hours(24 * 365);

fn length(given: Option<Duration>, faults: Option<u64>) -> Duration {
    given.unwrap_or(if faults.is_some() { ANY } else { LENGTH })
}

/// Runs all rounds.
pub(crate) async fn run(args: ChaosArgs, logging: Logging) -> Result<Exit, Failure> {
    let mut sets = args.job.sets();
    sets.extend(args.servers.map(|servers| format!("cluster.servers={servers}")));
    sets.extend(args.workers.map(|workers| format!("cluster.workers={workers}")));
    let file = &args.job.job;
    let changes = job_changes(&load_job(file, &sets)?);
    sets.extend(changes.iter().cloned());
    let job = load_job(file, &sets)?;
    let machine = up::machine(&job, zagros_job::threads::cores());
    memory::check(&job, &machine)?;
    check_folders(&job)?;
    let (job, sets) = up::share_cores(file, sets, &machine)?;
    let stop = Shutdown::new();
    let _signals = watch_signals(&stop)?;
    let chaos = ChaosRun {
        job: &job,
        job_file: file,
        sets: &sets,
        changes: &changes,
        program: &std::env::current_exe().or_internal()?,
        logging,
        new_folder: &|| RunFolder::create(&job).map(|folder| folder.path().to_owned()).map_err(failed),
        stop,
        options: ChaosOptions {
            seed: args.seed,
            length: length(args.length, args.faults),
            every: args.every,
            faults: args.faults.map(|faults| usize::try_from(faults).unwrap_or(usize::MAX)),
            kinds: args.kinds,
        },
    };
    chaos.run().await?;
    Ok(Exit::Success)
}
