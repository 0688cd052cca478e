//! Code that all programs of Zagros share: their start, output and end, and the roles that need no torch.
//!
//! ```text
//! zagros-server ──► commands: coordinator, embedding-server, status, doctor, health
//!                        │
//! zagros ── its own ─────┴──► role, start ──► exit codes, answers, lines
//! ```
//!
//! A command returns an [`Exit`] or a [`Failure`]. [`run_to_exit`] ends the process with its exit code.

mod args;
mod commands;
mod credentials;
mod exit;
pub mod launch;
mod live;
mod local_run;
mod port;
pub mod print;
mod process_record;
mod report;
mod role;
mod start;

pub use args::{ConfigArgs, Logging};
pub use commands::ServerCommand;
pub use credentials::{SECRET, SECRET_FILE, from_environment, secret_file, write_secret};
pub use exit::{Exit, Failure, OrFailure, parse_arguments, print_answer, print_figures, print_report, run_to_exit};
pub use live::{FoundCoordinator, live_coordinator};
pub use local_run::{STATE_FILE, last_error};
pub use port::RolePort;
pub use process_record::{Announcement, ProcessChange, ProcessRecord, UP};
pub use report::{CommandReport, ReportTable};
pub use role::{Role, exit_with_parent};
pub use start::{
    block_on, check_folders, describe_threads, is_key_given, load_job, load_job_for, machine_of_job, parse_job,
    read_named_file, share_cores, watch_signals, watch_signals_twice, write_file,
};
