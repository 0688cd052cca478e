//! Features of the machine that plain Rust does not use by itself: huge pages, prefetching, wide vectors.

pub mod memory;
pub mod prefetch;
pub mod wide;
