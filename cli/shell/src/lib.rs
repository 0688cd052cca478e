//! Code that all programs of Zagros share: their start, output and end, and the roles that need no torch.
//!
//! ```text
//! zagros-server ──► commands: coordinator, embedding-server, status, health
//!                        │
//! zagros ── its own ─────┴──► role, runtime, start ──► exit codes, answers, lines
//! ```
//!
//! A command returns an [`Exit`] or a [`Failure`]. [`conclude`] turns it into the process's exit code.

mod announce;
mod answer;
mod args;
mod commands;
pub mod dashboard;
mod exit;
mod folders;
mod live;
mod page_token;
mod port;
pub mod print;
mod role;
mod runtime;
mod start;

pub use announce::Announcement;
pub use answer::answer;
pub use args::{ConfigArgs, Logging};
pub use commands::ServerCommand;
pub use exit::{Exit, Failure, OrInternal, conclude};
pub use folders::check_folders;
pub use port::Port;
pub use role::Role;
pub use runtime::block_on;
pub use start::{
    describe_threads, is_key_given, load_job, load_job_for, parse_job, watch_signals, watch_signals_twice,
};
