//! The command line of `zagros bench`.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand, ValueEnum};

use super::at_least_one;

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Train on a fixed workload from memory and say where each microsecond goes.
    Train(BenchTrainArgs),
    /// Look up and update rows of embedding servers across loopback, beside what the sockets alone cost.
    Embedding(BenchEmbeddingArgs),
    /// Train with one dense worker, then with several, each a process with one thread for its network.
    Scaling(BenchScalingArgs),
}

#[derive(Debug, Args)]
pub(crate) struct BenchScalingArgs {
    /// How many dense workers; one run for each number.
    #[arg(long, default_values_t = [1, 2, 4], value_delimiter = ',', value_name = "N,…", value_parser = a_few())]
    pub(crate) workers: Vec<u64>,
    /// Embedding servers.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) servers: u32,
    /// Training rows, generated in a temporary folder; a quarter as many are held out.
    #[arg(long, default_value_t = 400_000, value_parser = at_least_one())]
    pub(crate) rows: u64,
    /// Samples a step, of all workers together.
    #[arg(long, default_value_t = 4096)]
    pub(crate) batch: usize,
    /// A tiny run that only shows that it works.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BenchTrainArgs {
    /// The workload.
    #[arg(long, value_enum, default_value_t = Workload::CritZipf)]
    pub(crate) workload: Workload,
    /// Folder with the workload's files; generated in memory when not given.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,
    /// Dense network.
    #[arg(long, value_enum, default_value_t = BenchModel::Dlrm)]
    pub(crate) model: BenchModel,
    /// Values per row.
    #[arg(long, default_value_t = 16)]
    pub(crate) dim: usize,
    /// Torch threads.
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: usize,
    /// Counted steps, after 20 that are not.
    #[arg(long, default_value_t = 100, value_parser = at_least_one())]
    pub(crate) steps: u64,
    /// Staleness τ.
    #[arg(long, default_value_t = 4)]
    pub(crate) staleness: usize,
    /// A tiny run that only shows that it works.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Workload {
    /// Criteo-shaped, Zipf ids, one million rows in 26 tables, batch 4096.
    CritZipf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum BenchModel {
    /// Bottom 512-256, dot interactions, top 512-256.
    Dlrm,
    /// 1024-512-256.
    Ffnn,
}

#[derive(Debug, Args)]
pub(crate) struct BenchEmbeddingArgs {
    /// The workload.
    #[arg(long, value_enum, default_value_t = Workload::CritZipf)]
    pub(crate) workload: Workload,
    /// Folder with the workload's files; generated in memory when not given.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,
    /// Values per row.
    #[arg(long, default_value_t = 16)]
    pub(crate) dim: usize,
    /// Server processes.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) servers: u32,
    /// How many clients ask at once; one run for each number.
    #[arg(long, default_values_t = [1, 4], value_delimiter = ',', value_name = "N,…", value_parser = a_few())]
    pub(crate) clients: Vec<u64>,
    /// Counted batches of all clients together, after 20 that are not.
    #[arg(long, default_value_t = 100, value_parser = at_least_one())]
    pub(crate) batches: u64,
    /// A tiny run that only shows that rows are right.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// More clients than this are more than one machine tells anything about.
fn a_few() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=64)
}
