//! Arrow files, whose record batches the crate `arrow-ipc` decodes.

pub(crate) mod batches;
pub(crate) mod column;
pub(crate) mod file;
pub(crate) mod schema;

#[cfg(test)]
mod tests;
