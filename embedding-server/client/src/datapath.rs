//! The code that runs once per batch over all of its ids. It does no I/O besides its calls, writes no info log, and
//! allocates nothing per row.

mod bags;
mod client;
mod dedup;
mod exchange;
mod route;
mod route_part;
mod staleness_window;

pub use bags::{TableBags, bag_bytes};
pub use client::{ClientConfig, EmbeddingClient, LookupAnswers, PushAcknowledgement, PushedBatch};
pub use dedup::{BatchRows, Deduplicator, FeatureIds, TableIds, UniqueIds};
pub use exchange::{AfterPushes, RequestReach, UnansweredRequests};
pub use route::RoutedIds;
pub(crate) use route_part::RoutePart;
pub use staleness_window::{StalenessWindow, WindowPermit};
