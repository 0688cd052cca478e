//! Problems of a spec, with the path of the field.

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{field}: {message}")]
pub struct SpecProblem {
    /// The path of the field, as in `kubectl explain`: `spec.volumes[0].mountPath`.
    pub field: String,
    /// What, why, and what to do.
    pub message: String,
}

pub(crate) fn problem(field: impl Into<String>, message: impl Into<String>) -> SpecProblem {
    SpecProblem { field: field.into(), message: message.into() }
}
