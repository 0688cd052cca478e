//! Why a step fails.

use std::error::Error;

/// A step that fails has changed no weight.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The library of matrix products failed, or has no such products.
    #[error(transparent)]
    Kernel(Box<dyn Error + Send + Sync>),
    /// The weights of a layer did not come, or its gradients could not be given away.
    #[error(transparent)]
    Layer(Box<dyn Error + Send + Sync>),
}

pub type StepResult<T = ()> = Result<T, StepError>;
