//! The arguments of forecasts: `zagros plan`, `calibrate`, `simulate` and `models`.

use std::path::PathBuf;

use clap::Args;
use zagros_job::Model;

use super::{JobArgs, at_least_one};

#[derive(Debug, Args)]
pub(crate) struct MachineArgs {
    /// The machines (TOML, docs/how-to/plan.md and docs/how-to/simulate.md). Default: this machine, in one process.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workers", "servers"])]
    pub(crate) machines: Option<PathBuf>,
    /// Dense workers on this machine, each a process, as `zagros up` starts them.
    #[arg(long, value_name = "N")]
    pub(crate) workers: Option<u32>,
    /// Embedding servers on this machine, each a process, as `zagros up` starts them.
    #[arg(long, value_name = "N")]
    pub(crate) servers: Option<u32>,
    /// Figures of `zagros calibrate`. Default: those of this user on this machine, if there are any.
    #[arg(long, value_name = "FILE")]
    pub(crate) calibration: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    #[command(flatten)]
    pub(crate) place: MachineArgs,
    /// Rows of all tables together, for the memory of the servers. Without this, the plan says what a million rows take.
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    pub(crate) rows: Option<u64>,
    /// Samples of an epoch. Default: counted or estimated by the first rows of the data.
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    pub(crate) samples: Option<u64>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// Write the figures to this file. Default: zagros/calibration.toml in this user's cache folder, where `zagros plan` finds it.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// The job file (TOML). Without one, the machines file says what is trained, in its table [workload].
    #[arg(value_name = "JOB", required_unless_present = "machines")]
    pub(crate) job: Option<PathBuf>,
    /// Change a key of the job: `--set train.staleness=8` (again for more).
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "job")]
    pub(crate) sets: Vec<String>,
    #[command(flatten)]
    pub(crate) place: MachineArgs,
    /// Rows of all tables of the job together, for the memory of the servers.
    #[arg(long, value_name = "N", requires = "job", value_parser = at_least_one())]
    pub(crate) rows: Option<u64>,
    /// Simulate this many steps of each worker (instead of simulation.steps; default 200).
    #[arg(long, value_name = "N")]
    pub(crate) steps: Option<u64>,
    /// The seed of all chance (instead of simulation.seed; default 1).
    #[arg(long, value_name = "SEED")]
    pub(crate) seed: Option<u64>,
    /// Threads of other programs that always have work, on each machine (instead of simulation.background_threads; default 0).
    #[arg(long, value_name = "N")]
    pub(crate) background_threads: Option<f64>,
    /// A table with one row for each value: `--what-if servers=50,100,200`. Keys: workers, servers, staleness, batch_size, network_gbit,
    /// round_trip_us, parameters, straggler_share, step_variation. Again for another table.
    #[arg(long, value_name = "KEY=VALUES", conflicts_with = "failures")]
    pub(crate) what_if: Vec<String>,
    /// Also simulate the loss of a machine with workers and of a server, and say what failures cost.
    #[arg(long)]
    pub(crate) failures: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Networks and sizes.
#[derive(Debug, Args)]
pub(crate) struct ModelsArgs {
    /// The job over whose features the networks read. Without it: Criteo's 13 numbers and 26 categories, each of dim 16.
    #[arg(value_name = "JOB")]
    pub(crate) job: Option<PathBuf>,
    /// Change a key of the job: `--set train.batch_size=1024` (again for more).
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Only this network: `dlrm` (again for more).
    #[arg(long = "kind", value_name = "KIND", value_parser = Model::NETWORKS.map(|(kind, _)| kind))]
    pub(crate) kinds: Vec<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
