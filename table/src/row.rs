//! One row: its number format, its first weights, its access metadata, and the slots of all rows.

pub(crate) mod access;
pub mod init;
pub(crate) mod slab;
pub(crate) mod weight_type;
