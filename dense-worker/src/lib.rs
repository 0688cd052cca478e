//! The trainer process: reads, looks up, steps, pushes.

pub mod datapath;
pub mod model;
#[cfg(test)]
mod testing;
