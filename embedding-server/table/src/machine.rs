//! What the machine offers and plain Rust does not ask for: huge pages, memory ahead of need, wide vectors.

pub mod memory;
pub mod prefetch;
pub mod wide;
