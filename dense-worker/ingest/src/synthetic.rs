//! Data with a known model: a Criteo-shaped generator with a planted model, and a fixed workload for measuring speed.

mod counter;
pub mod crit_zipf;
mod planted;
mod write;
mod zipf;

pub use crit_zipf::{CritZipf, Vocabulary};
pub use planted::SyntheticSpec;
pub use write::generate;
