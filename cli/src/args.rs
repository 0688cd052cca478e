//! The command line. The help of each command says what it does and shows a call that works.

mod data;
mod experiments;
mod planning;
#[cfg(test)]
mod reference;
mod saved_models;

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use zagros_shell::{ConfigArgs, Logging, ServerCommand};

pub(crate) use self::data::{DataCommand, GenerateArgs, InspectArgs, TeacherChoice, ValidateArgs};
pub(crate) use self::experiments::{ScalingLawArgs, SweepArgs};
pub(crate) use self::planning::{CalibrateArgs, MachineArgs, ModelsArgs, PlanArgs, SimulateArgs};
pub(crate) use self::saved_models::{BadRowsChoice, ForgetArgs, InspectModelArgs, PredictArgs, QuantizeArgs, parse_id};
use crate::days::DateRange;
use crate::pause::PausePoint;

const EXAMPLES: &str = "\
Examples:
  zagros init rows.csv -o job.toml              write a job file for a data file
  zagros data generate data/quickstart          write a Criteo-format data set with a known best AUC
  zagros train examples/quickstart.toml         train on it in one process
  zagros up examples/quickstart.toml            the same as separate processes on this machine
  zagros predict runs/NAME rows.csv -o s.csv    score new rows with a trained model
  zagros sweep job.toml --grid embedding.dim=8,16   train with each of these values: which is best?
  zagros models                                 the networks, and what each size needs
  zagros scaling-law job.toml --budget 30m      what would a larger network bring?
  zagros status                                 how it is doing
  zagros doctor                                 who waits for whom when it hangs, and what to do
  zagros eval runs/quickstart-…                 score the test part with a saved model
  zagros report runs/quickstart-…               write the run's page again, also of a failed run
  zagros inspect runs/quickstart-…              what the saved model's tables hold
  zagros train examples/criteo.toml --dry-run   show the plan and the memory it needs
  zagros plan examples/criteo.toml              samples/s, bottleneck, hours: before a run
  zagros simulate --machines examples/clusters/persia-100t.toml   64 GPUs and 10^14 parameters, on a laptop

Exit codes: 0 done, 1 internal error, 2 command line or job file, 3 data, 4 another process,
5 diverged, 6 disk full or folder not writable, 130/143 stopped by Ctrl-C or SIGTERM after finishing the step.";

/// Train click-through-rate and recommendation models whose embedding tables outgrow a machine.
#[derive(Debug, Parser)]
#[command(name = "zagros", version, after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) logging: Logging,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Look at a data file and write a job file for it, with comments on what is unsure.
    Init(InitArgs),
    /// Train in one process: embedded servers, no sockets. Takes a job file, or data (`zagros train logs/`), for which it writes one.
    Train(TrainArgs),
    /// Train as separate processes on this machine: coordinator, embedding servers, dense workers.
    Up(UpArgs),
    /// Train a job with many settings, and write out the best job.
    Sweep(SweepArgs),
    /// List the built-in networks and their sizes: weights, memory, work, speed here.
    Models(ModelsArgs),
    /// Forecast a run: memory, samples a second, the bottleneck, hours and money, on this machine or on described ones.
    Plan(PlanArgs),
    /// Measure how fast this machine is, for the forecasts of `zagros plan`. Takes less than a minute.
    Calibrate(CalibrateArgs),
    /// Simulate a run on described machines, event by event: thousands of workers and servers, stragglers, failures, what-if tables.
    Simulate(SimulateArgs),
    /// Train a job's network in several sizes, fit a law, and forecast what the next size would bring.
    ScalingLaw(ScalingLawArgs),
    /// Score data with a saved model.
    Eval(EvalArgs),
    /// Score the rows of files with a saved model, and write the scores.
    Predict(PredictArgs),
    /// Write a run's page, report.html, again from the files in its folder.
    Report(ReportArgs),
    /// Show what a saved model's tables hold; check, look up, export.
    Inspect(InspectModelArgs),
    /// Remove rows by their ids from saved models and checkpoints.
    Forget(ForgetArgs),
    /// Copy a saved model with weights of its tables in another number format, such as int8 to serve it.
    Quantize(QuantizeArgs),
    /// Run one dense worker of a job.
    DenseWorker(WorkerArgs),
    /// The commands that need no torch.
    #[command(flatten)]
    Server(ServerCommand),
    /// Generate, look at and check data.
    #[command(subcommand)]
    Data(DataCommand),
    /// Print the JSON schema of the job file, for editors.
    Schema,
    /// Print a shell completion script: `source <(zagros completions bash)`.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// A file, a folder, a pattern such as 'logs/*.csv', or s3://bucket/prefix: CSV, TSV, JSON lines, Parquet or Arrow, compressed or not. At
    /// most 100,000 rows are looked at.
    #[arg(value_name = "DATA")]
    pub(crate) data: PathBuf,
    /// The column to predict: of two values, a number (regression) or one of a few texts (classes). Without this, the likeliest of two values is
    /// taken.
    #[arg(long, value_name = "COLUMN")]
    pub(crate) label: Option<String>,
    /// Write the job to this file, which must not exist. Without this, it is printed.
    #[arg(short, long, value_name = "JOB")]
    pub(crate) output: Option<PathBuf>,
}

/// A job file and changes to it.
#[derive(Clone, Debug, Args)]
pub(crate) struct JobArgs {
    /// The job file (TOML); every key is described in docs/job-file.md.
    #[arg(value_name = "JOB")]
    pub(crate) job: PathBuf,
    /// Change a key: `--set train.seed=3` (again for more). Environment: ZAGROS__TRAIN__SEED=3.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Weights of the dense network, `590k`, `13m` or `1.3b`, in place of its widths (instead of model.size).
    #[arg(long, value_name = "SIZE")]
    size: Option<String>,
}

impl JobArgs {
    /// All changes of keys. `--size` wins over `--set`.
    pub(crate) fn sets(&self) -> Vec<String> {
        // Quoted, so that no text is a number.
        let size = self.size.iter().map(|size| format!("model.size={}", serde_json::Value::from(size.as_str())));
        self.sets.iter().cloned().chain(size).collect()
    }
}

#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Print the plan and the memory that it needs, and stop.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Stop after this many steps.
    #[arg(long, value_name = "N")]
    pub(crate) max_steps: Option<u64>,
    /// Start from a saved model: its folder or its run's (instead of train.start_from).
    #[arg(long = "from", value_name = "MODEL")]
    pub(crate) from: Option<PathBuf>,
    /// Train day after day, `2026-11-01..2026-11-07` or `2026-11-01..07`: `{date}` in the paths of the data is the day. Each day is
    /// scored before it is learned, and starts from the model of the day before.
    #[arg(long, value_name = "FIRST..LAST", conflicts_with_all = ["dry_run", "max_steps"])]
    pub(crate) dates: Option<DateRange>,
    /// Keep the models of this many days, of the newest ones. Without this, all models are kept.
    #[arg(long, value_name = "N", requires = "dates", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keep_models: Option<u64>,
    /// Start over. Without this, an interrupted run of this job is resumed.
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Resume the interrupted run although the job learns differently now. Without this, a new run starts.
    #[arg(long, conflicts_with = "fresh")]
    pub(crate) resume: bool,
    /// Stop when standard input closes, as it does when the parent process dies.
    #[arg(long, hide = true)]
    pub(crate) exit_with_parent: bool,
    /// Write a checkpoint once the validation part is scored after this many steps, and stop.
    #[arg(long, hide = true, value_name = "N", conflicts_with = "dates")]
    pub(crate) pause_after_steps: Option<u64>,
    /// As `--pause-after-steps`, after this many epochs.
    #[arg(long, hide = true, value_name = "N", conflicts_with_all = ["dates", "pause_after_steps"])]
    pub(crate) pause_after_epochs: Option<u64>,
}

impl TrainArgs {
    pub(crate) fn pause(&self) -> Option<PausePoint> {
        self.pause_after_steps.map(PausePoint::Steps).or(self.pause_after_epochs.map(PausePoint::Epochs))
    }
}

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Print the plan and the memory that all its processes need, and stop.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Embedding servers (instead of cluster.servers).
    #[arg(long, value_name = "N")]
    pub(crate) servers: Option<u32>,
    /// Dense workers (instead of cluster.workers).
    #[arg(long, value_name = "N")]
    pub(crate) workers: Option<u32>,
    /// Stop after this many steps.
    #[arg(long, value_name = "N")]
    pub(crate) max_steps: Option<u64>,
    /// Start from a saved model: its folder or its run's (instead of train.start_from).
    #[arg(long = "from", value_name = "MODEL")]
    pub(crate) from: Option<PathBuf>,
    /// Only `zagros train` trains day after day.
    #[arg(long, hide = true, value_name = "FIRST..LAST")]
    pub(crate) dates: Option<String>,
    /// Restarts of killed dense workers, in all (several workers).
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) restarts: u32,
    /// Start over. Without this, an interrupted run of this job is resumed.
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Resume the interrupted run although the job learns differently now. Without this, a new run starts.
    #[arg(long, conflicts_with = "fresh")]
    pub(crate) resume: bool,
    /// List where each role serves metrics in this file, for Prometheus' file_sd_configs.
    #[arg(long, value_name = "FILE")]
    pub(crate) prometheus_targets: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    /// Run folder, or the folder of a model or checkpoint, also s3://bucket/….
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// Score every row of these files instead of the job's test part. Their format is found by their content.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) data: Vec<PathBuf>,
    /// Also say how important each feature is: what the measures lose when its values are exchanged between rows, N times each.
    #[arg(
        long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "5",
        value_parser = clap::value_parser!(u32).range(1..=100)
    )]
    pub(crate) importance: Option<u32>,
    /// Change a key of the run's job: `--set cluster.servers=3`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Open the model's TorchScript module, which has this SHA-256: it can run code of its author.
    #[arg(long, value_name = "SHA256")]
    pub(crate) trust_module: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// How long to wait for an object store that the model is in.
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: u64,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Run folder.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Index of this worker: 0, 1, …
    #[arg(long, default_value_t = 0)]
    pub(crate) index: u32,
    /// `host:port` at which other workers reach this one, if it differs from where it listens.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) advertise: Option<String>,
    /// Run folder to write to (default: a new one below output.folder). Only worker 0 writes.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
    /// Start over. Without this, the run of the folder is resumed from its last checkpoint.
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Resume the interrupted run although the job learns differently now (learning rates, batch size, clipping …).
    #[arg(long, conflicts_with = "fresh")]
    pub(crate) resume: bool,
    /// Replace an earlier process of this worker at once, without waiting for its lease to expire. Use it only if that
    /// process has ended.
    #[arg(long)]
    pub(crate) supersede: bool,
    /// What SIGTERM and Ctrl-C mean where the run goes on without this worker (cluster.min_workers).
    #[arg(long, value_enum, default_value_t = LeaveMeaning::Leave, value_name = "MEANING")]
    pub(crate) on_stop: LeaveMeaning,
    /// Round the gradients of rows, and report each push to the socket of `zagros-chaos`.
    #[arg(long, value_name = "SOCKET", hide = true)]
    pub(crate) push_recorder: Option<PathBuf>,
}

/// What SIGTERM and Ctrl-C mean for a dense worker without which the run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LeaveMeaning {
    /// It leaves the run, and ends with 0.
    Leave,
    /// It leaves the run, and ends with the code of the signal, 143 or 130: its supervisor starts another process in its place, which
    /// joins the run.
    Restart,
}

fn at_least_one() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use clap::CommandFactory;

    use super::*;

    /// The command of this name on a job of this text, which is written to a folder.
    pub(crate) fn parse_command(folder: &Path, text: &str, name: &str, arguments: &str) -> Result<Command, String> {
        let file = folder.join("job.toml");
        std::fs::write(&file, text).unwrap();
        let words = ["zagros", name, file.to_str().unwrap()].into_iter().chain(arguments.split_whitespace());
        Ok(Arguments::try_parse_from(words).map_err(|error| error.to_string())?.command)
    }

    #[derive(Parser)]
    struct JobCommand {
        #[command(flatten)]
        job: JobArgs,
    }

    #[test]
    fn a_size_is_one_more_setting() {
        let sets = |arguments: &[&str]| {
            let all = ["zagros", "job.toml"].iter().chain(arguments);
            JobCommand::try_parse_from(all).unwrap().job.sets()
        };
        assert_eq!(sets(&[]), [""; 0]);
        assert_eq!(sets(&["--size", "13m", "--set", "train.seed=3"]), ["train.seed=3", "model.size=\"13m\""]);
    }

    #[test]
    fn ids_are_decimal_or_hexadecimal_and_never_cut() {
        assert_eq!([parse_id("18446744073709551615"), parse_id("0xff")], [Ok(u64::MAX), Ok(255)]);
        for wrong in ["18446744073709551616", "-1", "adam", "0x", ""] {
            assert!(parse_id(wrong).unwrap_err().contains("use --value"), "{wrong}");
        }
    }

    #[test]
    fn the_command_line_is_well_formed_and_every_argument_is_explained() {
        let mut commands = vec![Arguments::command()];
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
