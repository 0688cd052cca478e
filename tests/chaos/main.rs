//! Breaks the processes of a run on purpose and checks that nothing was lost: the program `zagros-chaos`.
//!
//! ```text
//! seed ──► schedule ──► faults ──► coordinator · embedding servers · dense workers      real processes, as of `zagros up`
//!                         ▲                                   │
//!              next step  │                 over links        │ each push: started · part sent · part acknowledged · over
//!                         └──────────── recorder ◄────────────┘
//!                                          │
//!                      saved rows ──► oracle ──► verdict          each row = − sum of its acknowledged gradients, exactly
//! ```
//!
//! The oracle can be exact because all arithmetic is: tables learn with SGD at a rate of 1, and every gradient is rounded to a
//! whole number of [`grid`](zagros_embedding_client::push_record::grid) units. Sums of such numbers do not depend on their order.

mod checkpoints;
mod cluster;
mod doubt;
mod incarnations;
mod injector;
mod ledger;
mod link;
mod losses;
mod oracle;
mod processes;
mod recorder;
mod report;
mod rules;
mod run;
mod schedule;
mod verdict;

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use rules::job_changes;
use run::{ChaosOptions, ChaosRun};
use schedule::FaultKind;
use zagros_job::threads::core_count;
use zagros_plumbing::Shutdown;
use zagros_shell::{
    Exit, Failure, Logging, OrFailure, block_on, check_folders, load_job, machine_of_job, share_cores, watch_signals,
};

const LENGTH: Duration = Duration::from_mins(10);
/// Longer than any number of faults takes.
const ANY: Duration = Duration::from_hours(24 * 365);

/// Trains a job as `zagros up` does, breaks its processes, disks and links, and checks every row, sample and loss.
#[derive(Debug, Parser)]
#[command(name = "zagros-chaos", version)]
struct ChaosArguments {
    /// The job file.
    job: PathBuf,
    /// Set a key of the job file: `train.mode=sync`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// No fault is made after this time: `30s`, `10m`. The job is trained again and again until then. Default: 10m, or as long as
    /// `--faults` takes.
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    length: Option<Duration>,
    /// The order of the faults, their pauses and their targets. The same seed gives the same schedule.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Mean pause between the recovery from a fault and the next one.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = humantime::parse_duration)]
    every: Duration,
    /// Stop after this many faults. The job is trained again and again until then: `--faults 200 --kinds kill --every 200ms`.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    faults: Option<u64>,
    /// Kinds of faults. Of processes: kill (kill -9), stop (SIGSTOP, then SIGCONT), disk (no write succeeds). Of links: slow, partition
    /// (nothing passes), break (connections end), late (connections end, and their requests arrive later). Of the run: scale (another
    /// number of embedding servers and, up to `cluster.max_workers`, of dense workers).
    #[arg(
        long,
        value_name = "KIND,…",
        value_delimiter = ',',
        default_value = "kill,stop,disk,slow,partition,break,late,scale"
    )]
    kinds: Vec<FaultKind>,
    /// Embedding servers (instead of cluster.servers).
    #[arg(long, value_name = "N")]
    servers: Option<u32>,
    /// Dense workers (instead of cluster.workers).
    #[arg(long, value_name = "N")]
    workers: Option<u32>,
    #[command(flatten)]
    logging: Logging,
}

fn main() {
    let arguments: ChaosArguments = zagros_shell::parse_arguments();
    zagros_shell::run_to_exit(|| {
        arguments.logging.install("warn");
        block_on(break_run(arguments))
    })
}

async fn break_run(arguments: ChaosArguments) -> Result<Exit, Failure> {
    let ChaosArguments { job: file, mut sets, .. } = arguments;
    sets.extend(arguments.servers.map(|servers| format!("cluster.servers={servers}")));
    sets.extend(arguments.workers.map(|workers| format!("cluster.workers={workers}")));
    let changes = job_changes(&load_job(&file, &sets)?);
    sets.extend(changes.iter().cloned());
    let job = load_job(&file, &sets)?;
    check_folders(&job)?;
    let (job, sets) = share_cores(&file, sets, &machine_of_job(&job, core_count()))?;
    let stop = Shutdown::new();
    let _signals = watch_signals(&stop)?;
    let chaos = ChaosRun {
        job: &job,
        job_file: &file,
        sets: &sets,
        changes: &changes,
        // The programs of one build lie beside each other.
        program: &std::env::current_exe().or_internal()?.with_file_name("zagros"),
        logging: arguments.logging,
        stop,
        options: ChaosOptions {
            seed: arguments.seed,
            length: arguments.length.unwrap_or(if arguments.faults.is_some() { ANY } else { LENGTH }),
            every: arguments.every,
            faults: arguments.faults.map(|faults| usize::try_from(faults).unwrap_or(usize::MAX)),
            kinds: arguments.kinds,
        },
    };
    chaos.run().await?;
    Ok(Exit::Success)
}
