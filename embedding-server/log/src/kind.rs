//! The kinds of records.

/// What a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordKind {
    /// Rows that a push changed.
    PushedRows,
    /// Rows that something else made or changed.
    Rows,
    /// Ids whose rows are gone.
    Removed,
    /// All rows and counts are gone.
    Cleared,
    /// Ids without a row that a lookup named.
    Seen,
    /// Frequency counts that were added.
    CountsAdded,
    /// The cells of a sketch that were added.
    SketchAdded,
    /// A gradient that waits for its row.
    Pending,
    /// The end of a push.
    Commit,
    /// The counts of one stripe, in a base.
    StripeCounts,
    /// The last record of a part of a base.
    End,
    /// A load of saved rows has started.
    LoadStarted,
    LoadComplete,
    /// Buckets whose pushes were applied together, and these pushes.
    WindowGroup,
    /// Rows before a step that is under way, and the sums of their gradients.
    StepRows,
}

impl RecordKind {
    /// All kinds with their numbers and their names for a person.
    pub(crate) const ALL: [(Self, u16, &'static str); 15] = [
        (Self::PushedRows, 1, "pushed rows"),
        (Self::Rows, 2, "rows"),
        (Self::Removed, 3, "removed"),
        (Self::Cleared, 4, "cleared"),
        (Self::Seen, 5, "seen"),
        (Self::CountsAdded, 6, "counts added"),
        (Self::SketchAdded, 7, "sketch added"),
        (Self::Pending, 8, "pending"),
        (Self::Commit, 9, "commit"),
        (Self::StripeCounts, 10, "stripe counts"),
        (Self::End, 11, "end"),
        (Self::LoadStarted, 12, "load started"),
        (Self::LoadComplete, 13, "load complete"),
        (Self::WindowGroup, 14, "window group"),
        (Self::StepRows, 15, "step rows"),
    ];

    pub(crate) fn from_number(number: u16) -> Option<Self> {
        Self::ALL.iter().find(|entry| entry.1 == number).map(|entry| entry.0)
    }

    pub(crate) fn number(self) -> u16 {
        Self::ALL.iter().find(|entry| entry.0 == self).map_or(0, |entry| entry.1)
    }

    /// Whether a record of this kind is of one stripe of a table.
    #[must_use]
    pub fn has_stripe(self) -> bool {
        !matches!(
            self,
            Self::Cleared | Self::Commit | Self::End | Self::LoadStarted | Self::LoadComplete | Self::WindowGroup
        )
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|entry| entry.0 == self).map_or("", |entry| entry.2)
    }
}
