//! The embedding table: rows, index, initialisers, optimisers, eviction, snapshots. Pure: no I/O, no clock, no threads of its own.
//!
//! A row is one fixed-size slot `[weights | optimiser state]` in a slab; an index finds the slot by id. Both are
//! divided into stripes, each behind one lock. A request names many ids at once: they are grouped by stripe, so that
//! a request takes each lock once, and everything a request needs besides its answer lies in a [`Scratch`] that the
//! caller keeps.
//!
//! ```text
//! ids ─► group by stripe ─► lock stripe ─► index: id → slot ─► slab: [weights | state] ─► copy out / update
//!                                              │ not there ─► cold tier: one read for all ─► a slot again
//! ```
//!
//! A table that has a [budget](Capacity) or a [time to live](Ttl) marks its rows with their use, and lets those leave
//! that are used least; one that has neither pays nothing for it. Rows of the cold tier come back when they are asked
//! for (invariant TI-1: a row has one value, that in memory if it is there). A [`Cut`] reads all rows of one instant
//! while they change.
//!
//! Nothing is lock-free here but single numbers: the bytes of the budget, the time, whether there is a snapshot. Each
//! decision about them is one atomic operation; whatever takes two is made under a lock.

mod admission;
mod batch;
mod capacity;
mod capture;
mod clear;
mod clock;
mod cold;
mod cold_sweep;
mod config;
mod counts;
mod cut;
mod debts;
mod element;
mod entry;
mod error;
mod evict;
mod group;
mod hot;
mod index;
pub mod init;
mod managed;
mod marks;
pub mod memory;
pub mod optimizer;
mod philox;
pub mod prefetch;
mod repeats;
mod retention;
mod schedule;
mod set;
mod shared;
mod slab;
mod stripe;
mod table;
mod tend;
mod update;
mod visit;
pub mod wide;

pub use admission::{Admission, Counter, Sighted};
pub use batch::{Access, LookupReport, PushReport};
pub use capacity::Capacity;
pub use clear::ClearError;
pub use clock::Moment;
pub use cold::{ColdError, ColdRows, ColdScan, ColdSize, ColdStore, ColdView, MemoryColdStore};
pub use config::{DEFAULT_STRIPES, NonFinite, TableConfig};
pub use counts::TableCounts;
pub use cut::{Cut, CutError};
pub use element::Element;
pub use entry::Entry;
pub use error::TableError;
pub use group::Scratch;
pub use init::Initializer;
pub use optimizer::{Limits, Optimizer};
pub use retention::{Order, Retention, Ttl, Victims};
pub use schedule::Schedule;
pub use set::{Part, TableSet};
pub use table::{Rows, Table};
pub use tend::Tended;
