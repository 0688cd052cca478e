//! `zagros chaos`: breaks the processes of a run on purpose, and checks that nothing is lost.

use zagros_chaos::{ChaosOptions, ChaosRun, job_changes};
use zagros_dense_worker::RunFolder;
use zagros_plumbing::Shutdown;
use zagros_shell::{Exit, Failure, Logging, OrInternal, check_folders, load_job, watch_signals};

use crate::args::ChaosArgs;
use crate::resume::failed;
use crate::{memory, up};

/// Runs all rounds.
pub(crate) async fn run(args: ChaosArgs, logging: Logging) -> Result<Exit, Failure> {
    let mut sets = args.job.sets.clone();
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
            length: args.length,
            every: args.every,
            faults: args.faults.map(|faults| usize::try_from(faults).unwrap_or(usize::MAX)),
            kinds: args.kinds,
        },
    };
    chaos.run().await?;
    Ok(Exit::Success)
}
