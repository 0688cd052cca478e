//! The command line that programs share. Help texts teach.

use std::path::PathBuf;

use clap::Args;
use zagros_plumbing::telemetry::{self, LogFormat};

/// What is logged, and how. Below a command's own options in its help, however many commands a program has.
#[derive(Clone, Debug, Args)]
pub struct Logging {
    /// Log lines as JSON objects, for a collector.
    #[arg(long, global = true, display_order = 900)]
    pub log_json: bool,
    /// Log warnings and errors only.
    #[arg(long, global = true, display_order = 901)]
    pub quiet: bool,
}

impl Logging {
    /// What ends a command is printed as its error, so that an embedded coordinator need not log it as well.
    pub const QUIET: &str = "warn,zagros_coordinator=off";

    /// From now on lines of `level` and above are logged, unless the user wants quiet.
    pub fn install(&self, level: &str) {
        let format = if self.log_json { LogFormat::Json } else { LogFormat::Text };
        telemetry::install(format, if self.quiet { Self::QUIET } else { level });
    }
}

/// A job file behind a flag: the form a role is started by.
#[derive(Clone, Debug, Args)]
pub struct ConfigArgs {
    /// The job file; every role of a run is given the same one.
    #[arg(long, value_name = "JOB")]
    pub config: PathBuf,
    /// Change a key: `--set train.seed=3` (again for more).
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Write where this role listens to this file, once it does.
    #[arg(long, value_name = "FILE")]
    pub announce: Option<PathBuf>,
    /// Stop when standard input closes, which it does when the parent process dies.
    #[arg(long, hide = true)]
    pub exit_with_parent: bool,
}

#[derive(Debug, Args)]
pub struct CoordinatorArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
}

#[derive(Debug, Args)]
pub struct ServerArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Which of the job's servers this is: 0, 1, … On Kubernetes, the pod's ordinal.
    #[arg(long, default_value_t = 0)]
    pub(crate) index: u32,
    /// `host:port` that workers reach this server at, when it is not the one it listens on.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) advertise: Option<String>,
    /// A folder or s3:// prefix besides those of the job file that rows may be saved to and loaded from (again for more).
    #[arg(long = "storage-folder", value_name = "FOLDER")]
    pub(crate) storage_folders: Vec<String>,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// `host:port` of the coordinator's gRPC.
    #[arg(long, default_value = "127.0.0.1:7700", value_name = "ADDRESS")]
    pub(crate) coordinator: String,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// Show the run on this terminal, drawn anew each second, until it ends or q is pressed.
    #[arg(long, conflicts_with = "json")]
    pub(crate) watch: bool,
    /// How long to wait for an answer.
    #[arg(long, default_value_t = 5, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) patience: u64,
}

#[derive(Debug, Args)]
pub struct HealthArgs {
    /// `host:port` of the role's HTTP (cluster.admin).
    #[arg(value_name = "ADDRESS")]
    pub(crate) admin: String,
    /// Whether it can do its work now, instead of whether it lives.
    #[arg(long)]
    pub(crate) ready: bool,
    /// How long to wait for an answer.
    #[arg(long, default_value_t = 3, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) patience: u64,
}
