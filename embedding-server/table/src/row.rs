//! One row: how its weights are stored, its first value, its mark, and the slots that rows lie in.

pub(crate) mod access;
pub(crate) mod element;
pub mod init;
pub(crate) mod philox;
pub(crate) mod slab;
