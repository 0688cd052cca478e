//! The embedding table: rows, index, initialisers, optimisers, eviction, snapshots. The crate is pure: it has no I/O,
//! no clock and no threads.
//!
//! A row is one slot of fixed size, `[weights | optimiser state]`, in a slab. An index finds the slot by id. Slab and
//! index are divided into stripes, and each stripe has a lock. A request groups its ids by stripe and takes each lock
//! once. The caller keeps the buffers of a request, a [`RequestBuffers`], and passes them to the next request.
//!
//! ```text
//! ids ─► group by stripe ─► lock stripe ─► index: id → slot ─► slab: [weights | state] ─► copy out / update
//!                                              │ not found ─► page-in: one read of the cold tier ─► a slot
//! ```
//!
//! A table with a [budget](Capacity), a [time to live](Ttl) or an [`AdmissionPolicy`] keeps access metadata of its rows
//! and evicts the least used rows. Other tables pay nothing for eviction. A row of the cold tier is paged in when a
//! request asks for it (invariant TI-1: a row has one value, the copy in memory if there is one). A [`TableSnapshot`]
//! reads the rows of one instant while requests change them.
//!
//! Atomics hold single numbers only: bytes of the budget, the time, whether there is a snapshot. A decision that
//! depends on two numbers is made under a lock.

mod admission;
mod changed_rows;
mod config;
mod counts;
mod error;
mod index;
mod key;
mod machine;
pub mod optimizer;
mod recovery;
mod request;
mod row;
mod row_batch;
mod schedule;
mod snapshot;
mod stripe;
mod table;
mod table_set;
mod tier;
mod update_log;

pub use admission::policy::{AdmissionPolicy, FrequencyCounter};
pub use config::{DEFAULT_STRIPES, NonFinitePolicy, TableConfig};
pub use counts::TableCounts;
pub use error::TableError;
pub use key::stripe_of_id;
pub use machine::{memory, prefetch, run_wide};
pub use optimizer::{Optimizer, UpdateLimits};
pub use request::group::RequestBuffers;
pub use request::{LookupMode, LookupReport, PushReport, PushStep, RequestDeadline, TileUpdate};
pub use row::init::{self, Initializer};
pub use row::weight_type::WeightType;
pub use row_batch::{FrequencyCounts, RowBatch, RowSlices, StepRowBatch, StepRowSlices};
pub use schedule::LearningRateSchedule;
pub use snapshot::SnapshotKind;
pub use snapshot::capture::{SnapshotCopies, copies_beside, copies_within};
pub use snapshot::table_snapshot::{StripeReader, TableSnapshot, TableSnapshotError};
pub use table::Table;
pub use table_set::{RequestGuard, RequestPart, TableSet};
pub use tier::cold_store::{ColdError, ColdRead, ColdRows, ColdScan, ColdSize, ColdStore, ColdView};
pub use tier::eviction_policy::{EvictionOrder, EvictionPolicy, EvictionTarget, StepClock, TableTime, Ttl};
pub use tier::maintenance::{ClearError, MaintenanceReport};
pub use tier::moving::ColdIds;
pub use tier::shared_memory::TableResources;
pub use update_log::{ChangeKind, ChangeWatcher, PushOrigin, StripeChange, UpdateLog};
