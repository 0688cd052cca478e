//! Snapshots: all rows of one instant, read while requests change them.

pub(crate) mod capture;
pub(crate) mod table_snapshot;

/// Which rows a snapshot has, and whether changes are noted from its instant on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotKind {
    Whole,
    /// All rows. From the instant on, changes are noted for a later [`Self::Changes`].
    Base,
    /// The rows that have changed since the last [`Self::Base`] or `Changes`, and the ids of those that are gone. From the
    /// instant on, changes are noted anew. A snapshot that is not kept loses them: the next must be a [`Self::Base`].
    Changes,
}
