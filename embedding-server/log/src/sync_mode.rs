//! What makes a record durable.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// The system has it: it survives the end of the process.
    Process,
    /// The disk has it: it survives a loss of power.
    Machine,
}
