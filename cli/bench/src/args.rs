//! The command line.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand};
use zagros_bench::table_load::IdLaw;
use zagros_shell::Logging;

const EXAMPLES: &str = "\
Examples:
  zagros-bench train --model ffnn               microseconds of CPU a sample, by stage
  zagros-bench embedding --clients 1,4          lookup and update of rows over loopback
  zagros-bench scaling --workers 1,2            one job with one worker, then with two
  zagros-bench modes --page modes.html          sync, hybrid and async, with a slower network
  zagros-bench durability --rounds 5            one job with each value of cluster.durability
  zagros-bench capacity --ids uniform           a sample's cost as a table outgrows memory

`embedding`, `scaling`, `modes` and `durability` start processes of the program `zagros`, which must be in the same folder.";

/// Measure the speed of Zagros on fixed workloads. Print ratios.
#[derive(Debug, Parser)]
#[command(name = "zagros-bench", version, after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    pub(crate) benchmark: BenchCommand,
    #[command(flatten)]
    pub(crate) logging: Logging,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Train on Criteo-shaped samples in memory (Zipf ids, one million rows in 26 tables, batch 4096) and show where each microsecond goes.
    Train(TrainArgs),
    /// Look up and update rows of embedding servers over loopback, and compare with the cost of the sockets alone.
    Embedding(EmbeddingArgs),
    /// Train in modes sync, hybrid and async: two workers and two servers as processes, with a slower network between them.
    Modes(ModesArgs),
    /// Train with one dense worker, then with several. Each is a process with one thread for its network.
    Scaling(ScalingArgs),
    /// Train with each value of cluster.durability in turn: the cost of a log of the rows. Every role is a process.
    Durability(DurabilityArgs),
    /// Look up and update tables that outgrow memory: the cost of a sample, from a million rows to what the disk holds.
    Capacity(CapacityArgs),
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct OutputArgs {
    /// Do a tiny run, which only checks that everything works.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CapacityArgs {
    /// Rows of the table; one line for each number.
    #[arg(long, default_values_t = [1_000_000, 3_000_000, 10_000_000], value_delimiter = ',', value_name = "N,…", value_parser = rows())]
    pub(crate) rows: Vec<u64>,
    /// Share of the rows that memory has room for.
    #[arg(long, default_value_t = 0.1, value_parser = number_in(0.001..=1.0, ""))]
    pub(crate) share: f64,
    /// How often ids are drawn.
    #[arg(long, value_enum, default_value_t = IdLaw::Zipf)]
    pub(crate) ids: IdLaw,
    /// Batches that are hinted before they are looked up; a worker hints 2. 0 hints none.
    #[arg(long, default_value_t = 2, value_parser = RangedU64ValueParser::<u64>::new().range(0..=100))]
    pub(crate) lookahead: u64,
    /// Time that the network takes for a sample, microseconds. The thread that looks up and pushes sleeps so long.
    #[arg(long, default_value_t = 25.0, value_name = "MICROSECONDS", value_parser = number_in(0.0..=1e6, " microseconds"))]
    pub(crate) compute: f64,
    /// Batches before the measured ones, in which memory gets the rows that are used most.
    #[arg(long, default_value_t = 100)]
    pub(crate) warm: u64,
    /// Measured batches.
    #[arg(long, default_value_t = 50, value_parser = at_least_one())]
    pub(crate) batches: u64,
    /// Folder on the disk to measure. Default: the system's folder for temporary files.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DurabilityArgs {
    /// Rounds. A round is one run with each value.
    #[arg(long, default_value_t = 3, value_parser = at_least_one())]
    pub(crate) rounds: u64,
    /// Samples of a run.
    #[arg(long, default_value_t = 819_200, value_parser = at_least_one())]
    pub(crate) samples: u64,
    /// Embedding servers.
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub(crate) servers: u32,
    /// Threads of the worker's dense network.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) threads: usize,
    /// Folder for the data and the logs. Its file system decides what a log costs. Default: a temporary folder.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ScalingArgs {
    /// Dense workers; one run for each number.
    #[arg(long, default_values_t = [1, 2, 4], value_delimiter = ',', value_name = "N,…", value_parser = a_few())]
    pub(crate) workers: Vec<u64>,
    /// Embedding servers.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) servers: u32,
    /// Training rows, generated in a temporary folder. A quarter as many are held out.
    #[arg(long, default_value_t = 400_000, value_parser = at_least_one())]
    pub(crate) rows: u64,
    /// Samples per step, of all workers together.
    #[arg(long, default_value_t = 4096)]
    pub(crate) batch: usize,
    /// Give each worker a batch of this size. There are fewer and larger steps, and the learning rate of the dense network
    /// is multiplied by the square root of the number of workers.
    #[arg(long)]
    pub(crate) grow_batch: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    /// Dense network: bottom 512-256, dot interactions, top 512-256; or 1024-512-256.
    #[arg(long, default_value = "dlrm", value_parser = ["dlrm", "ffnn"])]
    pub(crate) model: String,
    /// Values per row.
    #[arg(long, default_value_t = 16)]
    pub(crate) dim: usize,
    /// Torch threads.
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: usize,
    /// Number format of the dense network's matrix products.
    #[arg(long, default_value = "f32", value_parser = ["f32", "bf16", "f16"])]
    pub(crate) precision: String,
    /// Counted steps.
    #[arg(long, default_value_t = 100, value_parser = at_least_one())]
    pub(crate) steps: u64,
    /// Steps before the counted ones, while tables grow, caches warm and threads start.
    #[arg(long, default_value_t = 20)]
    pub(crate) warm: u64,
    /// Staleness τ.
    #[arg(long, default_value_t = 4)]
    pub(crate) staleness: usize,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct EmbeddingArgs {
    /// Values per row.
    #[arg(long, default_value_t = 16)]
    pub(crate) dim: usize,
    /// Server processes.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) servers: u32,
    /// Clients that ask at the same time; one run for each number.
    #[arg(long, default_values_t = [1, 4], value_delimiter = ',', value_name = "N,…", value_parser = a_few())]
    pub(crate) clients: Vec<u64>,
    /// Counted batches, of all clients together. 20 batches before them are not counted.
    #[arg(long, default_value_t = 100, value_parser = at_least_one())]
    pub(crate) batches: u64,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ModesArgs {
    /// Job to train. Default: rows and job are generated.
    #[arg(long, value_name = "FILE")]
    pub(crate) job: Option<PathBuf>,
    /// Change a key of the job: `--set data.train=adult.data`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Training rows to generate; a quarter as many for the test part.
    #[arg(long, default_value_t = 400_000, value_parser = at_least_one(), conflicts_with = "job")]
    pub(crate) rows: u64,
    /// Delay between workers and servers, each way, milliseconds.
    #[arg(long, default_value_t = 1.0, value_name = "MS", value_parser = number_in(0.0..=10_000.0, " milliseconds"))]
    pub(crate) delay: f64,
    /// Rate of each server's line, each way, megabits a second. Default: as fast as loopback.
    #[arg(long, value_name = "MBIT", value_parser = number_in(0.001..=1e6, " megabits a second"))]
    pub(crate) rate: Option<f64>,
    /// Runs of each mode, each with its own seed.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = a_few())]
    pub(crate) seeds: u64,
    /// Staleness τ of the runs in mode hybrid.
    #[arg(long, default_values_t = [1, 2, 4, 8, 16, 32], value_delimiter = ',', value_name = "τ,…")]
    pub(crate) staleness: Vec<usize>,
    /// Write the figures as a page with charts.
    #[arg(long, value_name = "FILE.html")]
    pub(crate) page: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// A number of this range, with its unit for errors.
fn number_in(
    range: RangeInclusive<f64>,
    unit: &'static str,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse::<f64>().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("expected {} to {}{unit}", range.start(), range.end()))
    }
}

/// Rows are numbered with 32 bits.
fn rows() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1000..=u64::from(u32::MAX))
}

/// The most clients or workers. More show nothing on one machine.
fn a_few() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=64)
}

fn at_least_one() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed_and_every_argument_is_explained() {
        let mut commands = vec![BenchArguments::command()];
        commands[0].clone().debug_assert();
        while let Some(command) = commands.pop() {
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {}", command.get_name(), argument.get_id());
            }
            assert!(command.get_about().is_some(), "{}", command.get_name());
            commands.extend(command.get_subcommands().cloned());
        }
    }
}
