//! Identities of tables, rows, servers, bucket maps, runs and writers of pushes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The number of a table: its position in the job file (0, 1, …).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId(pub u32);

/// The index of an embedding server in its run (0, 1, …).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ServerIndex(pub u32);

/// The key of a row: its table and a 64-bit id. Both stay separate numbers. Two features can therefore share rows only
/// if they share a table on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowKey {
    pub table: TableId,
    pub id: u64,
}

/// Counts the changes of the bucket map. Each request carries the generation, and the receiver refuses a sender with
/// another map (invariant PL-2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Generation(pub u64);

impl Generation {
    /// The generation before the first placement.
    pub const NONE: Self = Self(0);

    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A run, as a number that its coordinator chose at random. Every request between processes carries it (invariant
/// MB-2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
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

/// Writers of pushes. A dense worker is one by its member id; where weights of the dense network are streamed it is a second one,
/// whose pushes have numbers of their own: a batch has one push of gradients of rows, and one or more for each layer.
///
/// This bit tells a worker's second writer from its first. No member id has it.
const TILES: u64 = 1 << 63;

/// The writer of a member that pushes gradients of the dense network.
pub fn tile_writer(member: u64) -> u64 {
    member | TILES
}

pub fn member_of_writer(writer: u64) -> u64 {
    writer & !TILES
}

/// Whether the numbers of a writer's pushes count batches. Those of a second writer grow faster.
pub fn counts_batches(writer: u64) -> bool {
    writer & TILES == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_two_writers() {
        let member = 2 << 32 | 7;
        assert_ne!(tile_writer(member), member);
        assert_eq!((member_of_writer(member), member_of_writer(tile_writer(member))), (member, member));
        assert!(counts_batches(member) && !counts_batches(tile_writer(member)));
    }
}
