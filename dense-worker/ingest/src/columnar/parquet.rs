//! Parquet files, which the crate `parquet` decodes.

pub(crate) mod column;
pub(crate) mod file;

mod decoder;
mod pages;
mod schema;
