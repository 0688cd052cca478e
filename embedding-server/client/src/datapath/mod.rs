//! What runs once per batch over every id of it. No I/O besides the calls themselves, no info log, no allocation
//! per row.

mod bags;
mod client;
mod dedup;
mod pushes_in_flight;
mod route;
mod rows;
mod waiting;
mod window;

pub use bags::{Bags, bag_bytes};
pub use client::{Batch, ClientConfig, EmbeddingClient, PushReport};
pub use dedup::{Deduplicator, FeatureIds, TableIds, UniqueIds};
pub(crate) use route::RoutePart;
pub use route::RoutedIds;
pub use rows::Rows;
pub use waiting::Waiting;
pub use window::{Permit, Window};
