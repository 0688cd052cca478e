//! Logs of the roles that `zagros up` starts: written into the folder of the run, read by `zagros logs`.

mod file;
mod line;
mod read;

pub(crate) use file::{FOLDER, LogFile};
pub(crate) use line::{Level, Line};
pub(crate) use read::{Source, merged, sources};
