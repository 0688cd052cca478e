//! The commands that need no torch, one file each; this one finds the right one.

mod coordinator;
mod embedding_server;
mod health;
mod status;

use clap::Subcommand;

use crate::args::{CoordinatorArgs, HealthArgs, Logging, ServerArgs, StatusArgs};
use crate::exit::{Exit, Failure};
use crate::runtime::{block_on, block_on_threads};

/// Commands of `zagros-server`, which `zagros` has too.
#[derive(Debug, Subcommand)]
pub enum ServerCommand {
    /// Run the coordinator of a job.
    Coordinator(CoordinatorArgs),
    /// Run one embedding server of a job.
    EmbeddingServer(ServerArgs),
    /// Ask a running coordinator how the job is doing.
    Status(StatusArgs),
    /// Ask a role whether it lives: for health checks of containers, which need no shell for it.
    Health(HealthArgs),
}

impl ServerCommand {
    /// Roles log what they do. Commands for a person stay quiet unless something is wrong.
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
    /// What went wrong, with the exit code that it deserves.
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
