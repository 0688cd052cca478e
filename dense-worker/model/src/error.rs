//! Errors of the dense network.

use std::path::PathBuf;

use zagros_collective::CollectiveError;

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("{what}; add a feature, or choose another [model] kind in the job file")]
    Shape { what: &'static str },
    #[error("{what}: the batch implies {expected}, found {found}")]
    Length { what: &'static str, expected: usize, found: usize },
    /// Training diverged. Nothing of the step was applied.
    #[error(
        "{what} is not finite; likely a learning rate that is too high, or numeric columns of large values that are \
         neither logged nor standardised"
    )]
    NotFinite { what: &'static str },
    /// As [`Self::NotFinite`], but only the batch is skipped.
    #[error("{what} is not finite; its batch is skipped")]
    Skipped { what: &'static str },
    #[error(
        "a gradient of layer {layer} of the dense network is not finite; likely a learning rate that is too high, or \
         numeric columns of large values that are neither logged nor standardised"
    )]
    LayerNotFinite { layer: String },
    #[error("cannot {what} of layer {layer} of the dense network: {reason}")]
    Layer {
        layer: String,
        what: &'static str,
        /// Why, with the name of the server.
        reason: String,
    },
    #[error(transparent)]
    Workers(#[from] CollectiveError),
    #[error("train.device = \"cuda\": {reason}; {next}, or train with train.device = \"cpu\"")]
    Device { reason: String, next: &'static str },
    #[error("the TorchScript module {} {reason}", file.display())]
    Script { file: PathBuf, reason: String },
    #[error(
        "the TorchScript module failed: {reason}; it is called with the numeric values [batch, numeric] and the feature \
         vectors [batch, width of all], both f32"
    )]
    ScriptFailed { reason: String },
    #[error("the TorchScript module gives {what}; expected f32 logits of {expected}")]
    ScriptOutput { what: String, expected: String },
    #[error("the saved weights do not fit this model: {what}; use the job file saved beside them")]
    Foreign {
        /// Which tensor, and how it differs.
        what: String,
    },
    #[error("the saved weights are damaged")]
    Damaged(#[from] safetensors::SafeTensorError),
    #[error("a thread of the dense step ended without a message; its panic is on standard error")]
    Thread,
    /// The program has no library with autograd.
    #[error(
        "{key} needs libtorch, and this program is built without it; build it with libtorch (`make build`), or \
         choose what needs none (docs/models.md, section Without libtorch)"
    )]
    NoAutograd {
        /// As in the job file.
        key: &'static str,
    },
    #[error("the library of products or of autograd failed")]
    Library(#[source] Box<dyn std::error::Error + Send + Sync>),
}

pub type ModelResult<T = ()> = Result<T, ModelError>;

impl From<zagros_network::StepError> for ModelError {
    fn from(error: zagros_network::StepError) -> Self {
        use zagros_network::StepError::{Kernel, Layer};
        let (Kernel(source) | Layer(source)) = error;
        // What the layers' store and libtorch say is an error of the model.
        source.downcast().map_or_else(Self::Library, |error| *error)
    }
}
