//! Identities: which table, which row, which server, which placement, which run.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A table's position in the job file (0, 1, …).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId(pub u32);

/// An embedding server's position among the servers of a run (0, 1, …).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ServerIndex(pub u32);

/// A row is known by its table and a 64-bit id; the two are never mixed into one number,
/// so two features can collide only where they share a table on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowKey {
    /// The table.
    pub table: TableId,
    /// The id within the table.
    pub id: u64,
}

/// Counts the changes of the bucket map. Each request carries it and the receiver checks it: a sender with an old map is
/// refused (invariant PL-2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Generation(pub u64);

impl Generation {
    /// Before the first placement.
    pub const NONE: Self = Self(0);

    /// The generation after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A run, by a number that its coordinator chose at random. Every request between processes names it (invariant MB-2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RunId(pub u64);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The rows of an embedding server, by a number that it chose at random while it had none. A process that recovers these rows
/// from its log has the same lineage. A process that starts with no row has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lineage(pub u64);

impl Lineage {
    /// The lineage that a message carries; `None` for 0, which says that there is no log.
    #[must_use]
    pub fn from_wire(number: u64) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }
}

impl fmt::Display for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

macro_rules! display_inner {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
display_inner!(TableId, ServerIndex, Generation);
