//! The command line of `zagros bench`.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use super::at_least_one;

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Train on a fixed workload from memory and say where each microsecond goes.
    Train(BenchTrainArgs),
    /// Look up and update rows of embedding servers across loopback, beside what the sockets alone cost.
    Embedding(BenchEmbeddingArgs),
    /// Train in modes sync, hybrid and async, two workers and two servers as processes with a slower network between.
    Modes(BenchModesArgs),
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
    /// Let that be each worker's: fewer and larger steps of all, the dense network's rate times the square root of the
    /// workers.
    #[arg(long)]
    pub(crate) grow_batch: bool,
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
    /// Numbers in the dense network's matrix products.
    #[arg(long, value_enum, default_value_t = BenchPrecision::F32)]
    pub(crate) precision: BenchPrecision,
    /// Counted steps.
    #[arg(long, default_value_t = 100, value_parser = at_least_one())]
    pub(crate) steps: u64,
    /// Steps before them that are not counted: tables grow, caches warm, threads start.
    #[arg(long, default_value_t = 20)]
    pub(crate) warm: u64,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BenchPrecision {
    /// 32 bits.
    F32,
    /// 16 bits, with f32's range.
    Bf16,
    /// 16 bits, with loss scaling.
    F16,
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

#[derive(Debug, Args)]
pub(crate) struct BenchModesArgs {
    /// Job to train; rows and job are generated when not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) job: Option<PathBuf>,
    /// Change a key of the job: `--set data.train=adult.data`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Training rows that are generated, and a quarter as many for the test.
    #[arg(long, default_value_t = 400_000, value_parser = at_least_one(), conflicts_with = "job")]
    pub(crate) rows: u64,
    /// Delay between workers and servers, each way, milliseconds.
    #[arg(long, default_value_t = 1.0, value_name = "MS", value_parser = milliseconds)]
    pub(crate) delay: f64,
    /// Rate of each server's line, each way, megabits a second; as fast as loopback when not given.
    #[arg(long, value_name = "MBIT", value_parser = megabits)]
    pub(crate) rate: Option<f64>,
    /// Runs of each mode, each with a seed of its own.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = a_few())]
    pub(crate) seeds: u64,
    /// Staleness τ of hybrid's runs.
    #[arg(long, default_values_t = [1, 2, 4, 8, 16, 32], value_delimiter = ',', value_name = "τ,…")]
    pub(crate) staleness: Vec<usize>,
    /// Write the figures as a page with charts.
    #[arg(long, value_name = "FILE.html")]
    pub(crate) page: Option<PathBuf>,
    /// A tiny run that only shows that every mode works.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Up to ten seconds.
fn milliseconds(text: &str) -> Result<f64, String> {
    number_up_to(text, 10_000.0).filter(|delay| *delay >= 0.0).ok_or("expected 0 to 10000 milliseconds".to_owned())
}

/// Above what nothing would ever arrive by.
fn megabits(text: &str) -> Result<f64, String> {
    number_up_to(text, 1e6)
        .filter(|rate| *rate >= 0.001)
        .ok_or("expected 0.001 to 1000000 megabits a second".to_owned())
}

fn number_up_to(text: &str, most: f64) -> Option<f64> {
    text.parse().ok().filter(|number| *number <= most)
}

/// More clients than this are more than one machine tells anything about.
fn a_few() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=64)
}
