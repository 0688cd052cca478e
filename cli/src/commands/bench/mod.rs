//! `zagros bench`: speed on a fixed workload from memory, so that reading is not what is measured, and the modes beside each
//! other.

mod embedding;
mod modes;
mod scaling;
mod train;
mod workload;

pub(crate) use embedding::embedding;
pub(crate) use modes::modes;
pub(crate) use scaling::scaling;
pub(crate) use train::train;
