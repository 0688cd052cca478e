//! What is wrong with a spec, by the path of its field.

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{field}: {message}")]
pub struct SpecProblem {
    /// As in `kubectl explain`: `spec.volumes[0].mountPath`.
    pub field: String,
    /// What, why, and what to do.
    pub message: String,
}

/// One, in place.
pub(crate) fn problem(field: impl Into<String>, message: impl Into<String>) -> SpecProblem {
    SpecProblem { field: field.into(), message: message.into() }
}
