//! Why libtorch, or a network at it, failed.

use tch::TchError;
use zagros_model::ModelError;
use zagros_network::StepError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum TorchError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("libtorch failed")]
    Torch(#[from] TchError),
}

pub(crate) type TorchResult<T = ()> = Result<T, TorchError>;

impl TorchError {
    pub(crate) fn shape(what: &'static str) -> Self {
        Self::Model(ModelError::Shape { what })
    }

    pub(crate) fn script_failed(reason: String) -> Self {
        Self::Model(ModelError::ScriptFailed { reason })
    }
}

impl From<TorchError> for ModelError {
    fn from(error: TorchError) -> Self {
        match error {
            TorchError::Model(error) => error,
            TorchError::Torch(error) => Self::Library(Box::new(error)),
        }
    }
}

impl From<safetensors::SafeTensorError> for TorchError {
    fn from(error: safetensors::SafeTensorError) -> Self {
        Self::Model(ModelError::Damaged(error))
    }
}

impl From<TorchError> for StepError {
    fn from(error: TorchError) -> Self {
        Self::Kernel(Box::new(ModelError::from(error)))
    }
}
