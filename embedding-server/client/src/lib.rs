//! What a worker links to reach the embedding servers: deduplicate, route, look up, push, window.

pub mod shard;

pub use shard::Shard;
