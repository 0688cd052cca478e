//! What can be wrong with a description of machines or a calibration.

/// Why there is no forecast.
#[derive(Debug, thiserror::Error)]
pub enum CostError {
    /// The text is no TOML of the expected form.
    #[error("{what} cannot be read: {reason}")]
    Form {
        /// The file, in words.
        what: &'static str,
        /// What is wrong, and where.
        reason: String,
    },
    /// A value that no machine has.
    #[error("group `{group}` has {key} = {value}, which {why}")]
    Value {
        /// Name of the group.
        group: String,
        /// Name of the key.
        key: &'static str,
        /// As it is written.
        value: String,
        /// What is expected.
        why: &'static str,
    },
    /// A role has no machine.
    #[error("no group of machines has {role}s: give one `{role}s = 1`")]
    NoRole {
        /// The role, singular.
        role: &'static str,
    },
    #[error("the machines file has no [[group]]")]
    NoGroup,
    /// The network is not one of ours.
    #[error(
        "a TorchScript module is not opened for a plan, so nothing is known of its arithmetic; plan with a built-in network of about its size"
    )]
    UnknownNetwork,
}
