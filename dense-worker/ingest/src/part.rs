//! Which rows of the data files are read.

/// Which rows of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPart {
    /// Those that are learned from.
    Train,
    /// Those held out for the end.
    Test,
    /// Those held out to be scored while training.
    Validation,
    /// All.
    All,
}
