//! Logs: lowercase messages with structured fields, on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For a person.
    #[default]
    Text,
    /// One JSON object per line, for a collector.
    Json,
}

/// Installs the process's subscriber. `ZAGROS_LOG` (as `RUST_LOG`) overrides `default_filter`.
/// A second call in one process changes nothing.
pub fn install(format: LogFormat, default_filter: &str) {
    let filter = EnvFilter::try_from_env("ZAGROS_LOG").unwrap_or_else(|_| EnvFilter::new(default_filter));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // A reader that went away must not end the process: reporting that would panic.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    // An error only means that a subscriber is there already, which a test process may well have.
    let _ = match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}
