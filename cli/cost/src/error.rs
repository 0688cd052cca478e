//! What can be wrong with a description of machines or a calibration.

#[derive(Debug, thiserror::Error)]
pub enum CostError {
    /// The text is no TOML of the expected form.
    #[error("{what} cannot be read: {reason}")]
    Form { what: &'static str, reason: String },
    /// A value that no machine has.
    #[error("group `{group}` has {key} = {value}, which {why}")]
    Value { group: String, key: &'static str, value: String, why: &'static str },
    #[error("no group of machines has {role}s: give one `{role}s = 1`")]
    NoRole { role: &'static str },
    #[error("the machines file has no [[group]]")]
    NoGroup,
    /// The network is not one of ours.
    #[error(
        "a TorchScript module is not opened for a plan, so nothing is known of its arithmetic; plan with a built-in network of about its size"
    )]
    UnknownNetwork,
}
