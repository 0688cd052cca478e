//! Parts of the data.

/// A part of the rows of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPart {
    /// Rows that are trained on.
    Train,
    /// Rows that are held out for the end.
    Test,
    /// Rows that are held out and scored during training.
    Validation,
    All,
}
