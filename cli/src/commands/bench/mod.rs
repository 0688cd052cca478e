//! `zagros bench`: speed on a fixed workload from memory, so that reading is not what is measured.

mod embedding;
mod scaling;
mod train;
mod workload;

pub(crate) use embedding::embedding;
pub(crate) use scaling::scaling;
pub(crate) use train::train;
