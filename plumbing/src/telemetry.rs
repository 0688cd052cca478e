//! Logs: lowercase messages with structured fields, on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text, for people.
    #[default]
    Text,
    /// One JSON object per line, for log collectors.
    Json,
}

/// Installs the log subscriber of the process. `ZAGROS_LOG`, with the syntax of `RUST_LOG`, overrides `default_filter`.
/// A second call in one process changes nothing.
pub fn install_subscriber(format: LogFormat, default_filter: &str) {
    let filter = EnvFilter::try_from_env("ZAGROS_LOG").unwrap_or_else(|_| EnvFilter::new(default_filter));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // Reporting a closed standard error would panic and end the process.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    // An error means that a subscriber exists already, as in a test process.
    let _ = match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}
