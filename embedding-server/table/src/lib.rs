//! The embedding table: rows, index, initialisers, optimisers, eviction, snapshots. Pure: no I/O, no clock, no threads of its own.
//!
//! A row is one slot of fixed size, `[weights | optimiser state]`, in a slab. An index finds the slot by id. Both are
//! divided into stripes with one lock each. A request names many ids: they are grouped by stripe, so that a request
//! takes each lock once. The caller keeps the working memory of a request, a [`Scratch`], and passes it again.
//!
//! ```text
//! ids ─► group by stripe ─► lock stripe ─► index: id → slot ─► slab: [weights | state] ─► copy out / update
//!                                              │ not found ─► page-in: one read of the cold tier ─► a slot
//! ```
//!
//! A table with a [budget](Capacity), a [time to live](Ttl) or an [`AdmissionPolicy`] keeps access metadata of its rows
//! and evicts the least used ones. Other tables pay nothing for it. A row of the cold tier is paged in when a request
//! asks for it (invariant TI-1: a row has one value, that in memory if it is there). A [`TableSnapshot`] reads the rows of
//! one instant while they change.
//!
//! Only single numbers are atomic: the bytes of the budget, the time, whether there is a snapshot. A decision that takes
//! two numbers is made under a lock.

mod admission;
mod config;
mod counts;
mod error;
mod index;
mod key;
mod machine;
pub mod optimizer;
mod request;
mod row;
mod row_batch;
mod schedule;
mod set;
mod snapshot;
mod stripe;
mod table;
mod tier;

pub use admission::counts::FrequencyCounts;
pub use admission::policy::{AdmissionPolicy, FrequencyCounter};
pub use config::{DEFAULT_STRIPES, NonFinite, TableConfig};
pub use counts::TableCounts;
pub use error::TableError;
pub use machine::{memory, prefetch, wide};
pub use optimizer::{Limits, Optimizer};
pub use request::deadline::RequestDeadline;
pub use request::group::Scratch;
pub use request::report::{LookupMode, LookupReport, PushReport};
pub use request::step::PushStep;
pub use row::element::Element;
pub use row::init::{self, Initializer};
pub use row_batch::RowBatch;
pub use schedule::Schedule;
pub use set::{RequestPart, TableSet};
pub use snapshot::request_guard::RequestGuard;
pub use snapshot::stripe_reader::StripeReader;
pub use snapshot::table_snapshot::{TableSnapshot, TableSnapshotError};
pub use table::Table;
pub use tier::capacity::Capacity;
pub use tier::clear::ClearError;
pub use tier::clock::TableTime;
pub use tier::cold_store::{ColdError, ColdRows, ColdScan, ColdSize, ColdStore, ColdView};
pub use tier::maintenance::MaintenanceReport;
pub use tier::memory_store::MemoryColdStore;
pub use tier::retention::{EvictionOrder, EvictionTarget, Retention, Ttl};
