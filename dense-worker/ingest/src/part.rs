//! Parts of the data.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPart {
    Train,
    /// Rows that are held out for the end.
    Test,
    /// Rows that are held out and scored during training.
    Validation,
    All,
}
