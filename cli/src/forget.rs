//! `zagros forget`: removes rows by their ids from saved models and checkpoints, and from the servers of a run that trains
//! ([`live`]).
//!
//! ```text
//! places ──► plan ──────────────────────────► apply
//! folders    which files name the ids,        1 copies without the ids, beside the files
//! and the    which are copied, how many       2 the audit file
//! run's lock rows each manifest has then      3 the manifests, each whole
//!                                             4 files that no manifest names are deleted
//! ```
//!
//! A kill before step 3 leaves the old saves, after it the new ones, in between some of each: every save is whole (invariants
//! CK-1, CK-4, CK-6). The same command then finishes: it plans anew, and step 4 also deletes what an earlier process left.

mod apply;
mod audit;
mod ids;
mod live;
mod places;
mod plan;
mod vocabulary;

pub(crate) use apply::apply;
pub(crate) use audit::AUDIT;
pub(crate) use ids::wanted_ids;
pub(crate) use live::{LiveRemoval, forget_live};
pub(crate) use places::ForgetPlace;
pub(crate) use plan::{ForgetPlan, SavePlan};

#[derive(Clone, Debug)]
pub(crate) struct WantedIds {
    pub(crate) table: String,
    /// At least one.
    pub(crate) ids: std::collections::BTreeSet<u64>,
}
