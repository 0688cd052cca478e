//! What can go wrong in the dense network.

/// Why the dense network could not be built, stepped, saved or loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The features leave a layer without input.
    #[error("{what}; add a feature, or choose another [model] kind in the job file")]
    Shape {
        /// Which layer, and why.
        what: &'static str,
    },
    /// Features disagree about a dim that the network needs to be one.
    #[error("dlrm needs one dim for all tables, but features have dims {first} and {other}; set one [embedding] dim")]
    Dims {
        /// Dim of the first feature.
        first: usize,
        /// A dim that differs.
        other: usize,
    },
    /// An input has another length than the batch implies.
    #[error("{what}: the batch implies {expected}, found {found}")]
    Length {
        /// Which input.
        what: &'static str,
        /// Values implied.
        expected: usize,
        /// Values given.
        found: usize,
    },
    /// Training diverged; nothing of the step was applied.
    #[error(
        "{what} is not finite; likely a learning rate that is too high, or numeric columns of large values that are \
         neither logged nor standardised"
    )]
    NotFinite {
        /// Loss or which gradient.
        what: &'static str,
    },
    /// Saved weights are of another network.
    #[error("the saved weights do not fit this model: {what}; use the job file saved beside them")]
    Foreign {
        /// Which tensor, and how it differs.
        what: String,
    },
    /// Saved weights are damaged.
    #[error("the saved weights are damaged")]
    Damaged(#[from] safetensors::SafeTensorError),
    /// A thread of a step panicked.
    #[error("a thread of the dense step ended without saying why; its last words are on standard error")]
    Thread,
    /// libtorch failed.
    #[error("libtorch failed")]
    Torch(#[from] tch::TchError),
}
