//! Arguments that programs share.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use zagros_plumbing::StopMeaning;
use zagros_plumbing::telemetry::{self, LogFormat};

use crate::print::{NoteMode, tell_notes};

/// What is logged, and how. The help shows it below a command's own options.
#[derive(Clone, Debug, Args)]
pub struct Logging {
    /// Log as JSON objects, for a collector; progress lines as well.
    #[arg(long, global = true, display_order = 900)]
    pub log_json: bool,
    /// Print results, warnings and errors only.
    #[arg(long, global = true, display_order = 901)]
    pub quiet: bool,
}

impl Logging {
    /// A command's failure is printed as its error, so an embedded coordinator does not log it too.
    pub const QUIET: &str = "warn,zagros_coordinator=off";

    /// Log level at which the notes for a person are log lines.
    const NOTES: &str = "warn,zagros_coordinator=off,zagros=info";

    pub fn quiet() -> Self {
        Self { log_json: false, quiet: true }
    }

    /// Logs lines of `level` and above from now on, unless the user asked for quiet.
    pub fn install(&self, level: &str) {
        let (format, notes) = match (self.log_json, self.quiet) {
            (false, false) => (LogFormat::Text, NoteMode::Shown),
            (true, false) => (LogFormat::Json, NoteMode::Logged),
            (true, true) => (LogFormat::Json, NoteMode::Hidden),
            (false, true) => (LogFormat::Text, NoteMode::Hidden),
        };
        let level = match notes {
            NoteMode::Hidden => Self::QUIET,
            NoteMode::Logged if level == Self::QUIET => Self::NOTES,
            NoteMode::Logged | NoteMode::Shown => level,
        };
        tell_notes(notes);
        telemetry::install_subscriber(format, level);
    }

    /// The same options for another process of this program.
    pub fn to_arguments(&self) -> Vec<String> {
        let flags = [(self.log_json, "--log-json"), (self.quiet, "--quiet")];
        flags.into_iter().filter(|(is_given, _)| *is_given).map(|(_, flag)| flag.to_owned()).collect()
    }
}

/// The job file of a role, and how it is started.
#[derive(Clone, Debug, Args)]
pub struct ConfigArgs {
    /// The job file (TOML). Every role of a run gets the same one.
    #[arg(value_name = "JOB", required_unless_present = "config")]
    job: Option<PathBuf>,
    /// The job file, as a named argument.
    #[arg(long, value_name = "JOB", conflicts_with = "job")]
    config: Option<PathBuf>,
    /// Change a key: `--set train.seed=3` (again for more).
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Write this role's addresses to this file once it listens.
    #[arg(long, value_name = "FILE")]
    pub announce: Option<PathBuf>,
    /// Stop when standard input closes, as it does when the parent process dies.
    #[arg(long, hide = true)]
    pub exit_with_parent: bool,
}

impl ConfigArgs {
    pub fn job_file(&self) -> &Path {
        self.job.as_deref().or(self.config.as_deref()).expect("clap asks for one of both")
    }
}

/// What SIGTERM and Ctrl-C mean for a coordinator and for an embedding server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnStop {
    /// The run ends in order: this process serves until the workers have saved a checkpoint and have left.
    Drain,
    /// This process alone ends, at once. The run waits for the process that is started in its place.
    Restart,
}

impl From<OnStop> for StopMeaning {
    fn from(given: OnStop) -> Self {
        match given {
            OnStop::Drain => Self::Drain,
            OnStop::Restart => Self::Restart,
        }
    }
}

#[derive(Debug, Args)]
pub struct CoordinatorArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Folder of the journal: a coordinator that is killed and started again with the same folder, on the same port, continues
    /// the run. Without it the run ends with its coordinator.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) journal: Option<PathBuf>,
    /// Write the state of the run to this file every two seconds. `zagros doctor` reads it when the coordinator is gone.
    #[arg(long, value_name = "FILE")]
    pub(crate) state_file: Option<PathBuf>,
    /// Write the last report of a run that is finished to this file, in at most 4096 bytes of JSON: for Kubernetes, which keeps
    /// what a container leaves at its end.
    #[arg(long, env = "ZAGROS_END_REPORT", value_name = "FILE")]
    pub(crate) end_report: Option<PathBuf>,
    /// The journal is of one run. A coordinator that is started again after the end of this run ends at once, as the run did.
    /// For a supervisor that starts every process again, such as Kubernetes.
    #[arg(long, requires = "journal")]
    pub(crate) one_run: bool,
    /// What SIGTERM and Ctrl-C mean. `restart` needs a journal.
    #[arg(long, value_enum, default_value_t = OnStop::Drain, value_name = "MEANING")]
    pub(crate) on_stop: OnStop,
}

#[derive(Debug, Args)]
pub struct ServerArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Index of this server: 0, 1, … On Kubernetes, the pod's ordinal.
    #[arg(long, default_value_t = 0)]
    pub(crate) index: u32,
    /// `host:port` at which workers reach this server, if it differs from where it listens.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) advertise: Option<String>,
    /// Another folder or s3:// prefix that rows may be saved to and loaded from, besides those of the job (again for more).
    #[arg(long = "storage-folder", value_name = "FOLDER")]
    pub(crate) storage_folders: Vec<String>,
    /// What SIGTERM and Ctrl-C mean. `restart` needs a log (`cluster.durability`).
    #[arg(long, value_enum, default_value_t = OnStop::Drain, value_name = "MEANING")]
    pub(crate) on_stop: OnStop,
}

/// How a coordinator is asked.
#[derive(Debug, Args)]
pub(crate) struct AskArgs {
    /// `host:port` of the coordinator's gRPC, on any machine.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) coordinator: Option<String>,
    /// How long to wait for an answer.
    #[arg(long, default_value_t = 5, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

impl AskArgs {
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Run folder of a `zagros up` on this machine. Default: the newest one below runs/ whose coordinator lives; if there
    /// is none, the coordinator at 127.0.0.1:7700.
    #[arg(value_name = "RUN", conflicts_with = "coordinator")]
    pub(crate) run: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub struct ScaleArgs {
    /// What to change: `servers=N`, `workers=M`, or both.
    #[arg(value_name = "ROLE=COUNT", required = true, num_args = 1..=2, value_parser = RoleCount::parse)]
    pub(crate) counts: Vec<RoleCount>,
    /// Run folder of a `zagros up` on this machine. Default: the newest one below runs/ whose coordinator lives; if there
    /// is none, the coordinator at 127.0.0.1:7700.
    #[arg(long, value_name = "RUN", conflicts_with = "coordinator")]
    pub(crate) run: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
    /// Return once the coordinator has taken the request. Buckets move, and processes join and leave, after that.
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Return with an error when nothing has changed for so long. The coordinator goes on with the request.
    #[arg(long, default_value_t = 600, value_name = "SECONDS", conflicts_with = "no_wait", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) give_up: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoleCount {
    Servers(u32),
    Workers(u32),
}

impl RoleCount {
    fn parse(text: &str) -> Result<Self, String> {
        if text.ends_with(".toml") {
            return Err(format!(
                "`{text}` is a job, and this command changes a run that trains; `zagros scaling-law {text}` forecasts larger networks"
            ));
        }
        let wrong = || format!("`{text}` is not `servers=N` or `workers=M` with a number of at least 1");
        let (role, count) = text.split_once('=').ok_or_else(wrong)?;
        let count = count.parse().ok().filter(|count| *count > 0).ok_or_else(wrong)?;
        match role {
            "servers" => Ok(Self::Servers(count)),
            "workers" => Ok(Self::Workers(count)),
            _ => Err(wrong()),
        }
    }
}

#[derive(Debug, Args)]
pub struct SecretArgs {
    #[command(subcommand)]
    pub(crate) command: SecretCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SecretCommand {
    /// Make a secret and the key of each role. `zagros up` does this by itself.
    New {
        /// The folder to fill: ROLE/key for each role, and metrics/token for Prometheus.
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
        /// Keep a secret that is there.
        #[arg(long)]
        keep: bool,
    },
    /// Print the token that opens the live page, /status and /metrics on addresses that other machines reach.
    Token {
        /// A file with a key. Default: the secret in the environment.
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Run folder of a `zagros up` on this machine, live or over. Default: the newest one below runs/; if there is none, the
    /// coordinator at 127.0.0.1:7700.
    #[arg(value_name = "RUN", conflicts_with = "coordinator")]
    pub(crate) run: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub struct HealthArgs {
    /// `host:port` of the role's HTTP (cluster.admin).
    #[arg(value_name = "ADDRESS")]
    pub(crate) admin: String,
    /// Ask whether the role can do its work now (/readyz). Without this, ask whether it lives (/healthz).
    #[arg(long)]
    pub(crate) ready: bool,
    /// How long to wait for an answer.
    #[arg(long, default_value_t = 3, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_names_its_role_and_is_at_least_one() {
        assert_eq!(RoleCount::parse("servers=4"), Ok(RoleCount::Servers(4)));
        assert_eq!(RoleCount::parse("workers=1"), Ok(RoleCount::Workers(1)));
        assert!(RoleCount::parse("job.toml").unwrap_err().contains("`zagros scaling-law job.toml`"));
        for wrong in ["4", "servers", "servers=", "servers=0", "servers=-1", "pods=4"] {
            assert!(RoleCount::parse(wrong).unwrap_err().contains(wrong));
        }
    }
}
