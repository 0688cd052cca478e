//! Logs of the roles that `zagros up` starts: written into the folder of the run, read by `zagros logs`.

mod line;
mod read;

pub(crate) use line::{Level, Line};
pub(crate) use read::{Source, merged, sources};
