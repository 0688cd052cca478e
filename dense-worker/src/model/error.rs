//! Errors of the dense network.

use std::path::PathBuf;

use zagros_collective::CollectiveError;

/// Why the dense network could not be built, stepped, saved or loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The features leave a layer without input.
    #[error("{what}; add a feature, or choose another [model] kind in the job file")]
    Shape {
        /// Which layer, and why.
        what: &'static str,
    },
    /// Features have different dims, but the network needs one.
    #[error(
        "{model} needs one dim for all tables, but features have dims {first} and {other}; set one [embedding] dim"
    )]
    Dims {
        /// Kind of the network.
        model: &'static str,
        /// Dim of the first feature.
        first: usize,
        /// A dim that differs.
        other: usize,
    },
    /// An input does not have the length of the batch.
    #[error("{what}: the batch implies {expected}, found {found}")]
    Length { what: &'static str, expected: usize, found: usize },
    /// Training diverged. Nothing of the step was applied.
    #[error(
        "{what} is not finite; likely a learning rate that is too high, or numeric columns of large values that are \
         neither logged nor standardised"
    )]
    NotFinite {
        /// Loss or which gradient.
        what: &'static str,
    },
    /// As [`Self::NotFinite`], but only the batch is skipped.
    #[error("{what} is not finite; its batch is skipped")]
    Skipped {
        /// Loss or which gradient.
        what: &'static str,
    },
    /// Training diverged in a layer whose weights are streamed.
    #[error(
        "a gradient of layer {layer} of the dense network is not finite; likely a learning rate that is too high, or \
         numeric columns of large values that are neither logged nor standardised"
    )]
    LayerNotFinite { layer: String },
    /// The weights of a layer did not come, or its gradient did not arrive.
    #[error("cannot {what} of layer {layer} of the dense network: {reason}")]
    Layer {
        layer: String,
        what: &'static str,
        /// Why, with the name of the server.
        reason: String,
    },
    /// The workers could not exchange a layer.
    #[error(transparent)]
    Workers(#[from] CollectiveError),
    /// There is no device to train on.
    #[error("train.device = \"cuda\": {reason}; {next}, or train with train.device = \"cpu\"")]
    Device {
        /// What is missing.
        reason: String,
        /// What to do about it.
        next: &'static str,
    },
    /// The user's module cannot be used.
    #[error("the TorchScript module {} {reason}", file.display())]
    Script {
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The user's module failed in a step.
    #[error(
        "the TorchScript module failed: {reason}; it is called with the numeric values [batch, numeric] and the feature \
         vectors [batch, width of all], both f32"
    )]
    ScriptFailed { reason: String },
    /// The output of the user's module is not logits.
    #[error("the TorchScript module gives {what}; expected f32 logits of {expected}")]
    ScriptOutput {
        /// Kind and shape.
        what: String,
        /// Shape that it should have.
        expected: String,
    },
    /// Saved weights belong to another network.
    #[error("the saved weights do not fit this model: {what}; use the job file saved beside them")]
    Foreign {
        /// Which tensor, and how it differs.
        what: String,
    },
    /// Saved weights are damaged.
    #[error("the saved weights are damaged")]
    Damaged(#[from] safetensors::SafeTensorError),
    /// A thread of a step panicked.
    #[error("a thread of the dense step ended without a message; its panic is on standard error")]
    Thread,
    #[error("libtorch failed")]
    Torch(#[from] tch::TchError),
}
