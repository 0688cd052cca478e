//! Parquet files, which the crate `parquet` decodes.

pub(crate) mod column;
pub(crate) mod file;
pub(crate) mod pages;

mod decoder;
