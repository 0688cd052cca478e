//! The commands that need no torch. This file calls the right one, and has `health`.

mod roles;
mod scale;
mod secret;
mod status;

use std::time::Duration;

use clap::Subcommand;
use zagros_plumbing::ask::ask_path;

use crate::args::{CoordinatorArgs, DoctorArgs, HealthArgs, Logging, ScaleArgs, SecretArgs, ServerArgs, StatusArgs};
use crate::exit::{Exit, Failure};
use crate::out;
use crate::start::{block_on, block_on_threads};

/// Commands of `zagros-server`. `zagros` has them too.
#[derive(Debug, Subcommand)]
pub enum ServerCommand {
    /// Run the coordinator of a job.
    Coordinator(CoordinatorArgs),
    /// Run one embedding server of a job.
    EmbeddingServer(ServerArgs),
    /// Show the state of a run, from its coordinator.
    Status(StatusArgs),
    /// Say who waits for whom in a run, since when, for what, and what to do. Works on a run that hangs, and on the folder of one
    /// that is over.
    Doctor(DoctorArgs),
    /// Change the numbers of embedding servers and dense workers while the run trains.
    Scale(ScaleArgs),
    /// Ask a role whether it lives, for health checks of containers without a shell.
    Health(HealthArgs),
    /// Make the secret of a run, by which its processes know each other.
    Secret(SecretArgs),
}

impl ServerCommand {
    /// Roles log their work. Commands for a person log only warnings and errors.
    pub fn log_level(&self) -> &'static str {
        match self {
            Self::Coordinator(_) | Self::EmbeddingServer(_) => "info",
            Self::Status(_) | Self::Doctor(_) | Self::Scale(_) | Self::Health(_) | Self::Secret(_) => Logging::QUIET,
        }
    }

    pub fn run(self) -> Result<Exit, Failure> {
        match self {
            Self::Coordinator(args) => block_on(roles::run_coordinator(args)),
            Self::EmbeddingServer(args) => {
                let threads = roles::server_threads(&args)?;
                block_on_threads(Some(threads), roles::run_server(args))
            }
            Self::Status(args) => block_on(status::run_status(args)),
            Self::Doctor(args) => block_on(status::run_doctor(args)),
            Self::Scale(args) => block_on(scale::run(args)),
            Self::Health(args) => block_on(ask_health(args)),
            Self::Secret(args) => secret::run(args),
        }
    }
}

/// `health`: asks a role over HTTP whether it lives. A process that hangs still accepts connections. Success is an answer of 200.
async fn ask_health(args: HealthArgs) -> Result<Exit, Failure> {
    let path = if args.ready { "/readyz" } else { "/healthz" };
    let help = "the role's log has the cause; its HTTP address is the key cluster.admin";
    let answer = ask_path(&args.admin, path, None, Duration::from_secs(args.timeout)).await;
    let (status, body) = answer.map_err(|error| Failure::with_help(Exit::Cluster, error, help))?;
    let said = String::from_utf8_lossy(&body).trim().to_owned();
    if !status.is_success() {
        return Err(Failure::with_help(Exit::Cluster, format!("{} says {said}", args.admin), help));
    }
    out!("{said}");
    Ok(Exit::Success)
}
