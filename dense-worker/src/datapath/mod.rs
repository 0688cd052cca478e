//! The path of one batch: read → prefetch → step → push.

pub mod kernels;
