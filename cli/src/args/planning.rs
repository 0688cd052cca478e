//! The arguments of `zagros plan` and `zagros calibrate`.

use std::path::PathBuf;

use clap::Args;

use super::{JobArgs, at_least_one};

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// The machines (TOML, docs/how-to/plan.md). Default: this machine, in one process.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workers", "servers"])]
    pub(crate) machines: Option<PathBuf>,
    /// Dense workers on this machine, each a process, as `zagros up` starts them.
    #[arg(long, value_name = "N")]
    pub(crate) workers: Option<u32>,
    /// Embedding servers on this machine, each a process, as `zagros up` starts them.
    #[arg(long, value_name = "N")]
    pub(crate) servers: Option<u32>,
    /// Rows of all tables together, for the memory of the servers. Without this, the plan says what a million rows take.
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    pub(crate) rows: Option<u64>,
    /// Samples of an epoch. Default: counted or estimated by the first rows of the data.
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    pub(crate) samples: Option<u64>,
    /// Figures of `zagros calibrate`. Default: those of this user on this machine, if there are any.
    #[arg(long, value_name = "FILE")]
    pub(crate) calibration: Option<PathBuf>,
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
