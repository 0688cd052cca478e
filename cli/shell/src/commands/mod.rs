//! The commands that need no torch, one file each. This file calls the right one.

mod coordinator;
mod embedding_server;
mod health;
mod status;

use clap::Subcommand;

use crate::args::{CoordinatorArgs, HealthArgs, Logging, ServerArgs, StatusArgs};
use crate::exit::{Exit, Failure};
use crate::runtime::{block_on, block_on_threads};

/// Commands of `zagros-server`. `zagros` has them too.
#[derive(Debug, Subcommand)]
pub enum ServerCommand {
    /// Run the coordinator of a job.
    Coordinator(CoordinatorArgs),
    /// Run one embedding server of a job.
    EmbeddingServer(ServerArgs),
    /// Show the state of a run, from its coordinator.
    Status(StatusArgs),
    /// Ask a role whether it lives, for health checks of containers without a shell.
    Health(HealthArgs),
}

impl ServerCommand {
    /// The log level. Roles log their work. Commands for a person log only warnings and errors.
    #[must_use]
    pub fn log_level(&self) -> &'static str {
        match self {
            Self::Coordinator(_) | Self::EmbeddingServer(_) => "info",
            Self::Status(_) | Self::Health(_) => Logging::QUIET,
        }
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// The command's failure, with its exit code.
    pub fn run(self) -> Result<Exit, Failure> {
        match self {
            Self::Coordinator(args) => block_on(coordinator::run(args)),
            Self::EmbeddingServer(args) => {
                let threads = embedding_server::threads(&args)?;
                block_on_threads(Some(threads), embedding_server::run(args))
            }
            Self::Status(args) => block_on(status::run(args)),
            Self::Health(args) => block_on(health::run(args)),
        }
    }
}
