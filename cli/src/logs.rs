//! Logs of the roles of `zagros up`. They are in the folder of the run, and `zagros logs` reads them.

mod line;
mod read;

pub(crate) use line::{LogLevel, LogLine};
pub(crate) use read::{LogSource, find_sources, merge_by_time};
