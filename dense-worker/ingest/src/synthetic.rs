//! Data with a known model: a Criteo-shaped generator with a planted model, a teacher of higher-order terms on which larger networks are
//! better, and a fixed workload for measuring speed.

mod counter;
pub mod crit_zipf;
mod factors;
mod planted;
mod write;

pub use crit_zipf::{CritZipf, IdVocabulary};
pub use factors::{FactorColumns, FactorSpec, factor_columns};
pub use planted::SyntheticSpec;
pub use write::{generate_criteo, generate_factors};
