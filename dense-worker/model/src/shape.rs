//! The network's input for one sample: numeric values, vectors, and after them sequences.
//!
//! ```text
//! │ e₁ … e_F │ s₁ at position 1 … at position L₁, real positions │ s₂ … │
//! ```
//!
//! A sequence has a vector for each of its L positions and, as one more value, the number of positions that are real. The others
//! are padding: zeros whose gradients go nowhere. So a batch is one matrix of f32, whatever its features are.

use zagros_job::{DenseTensor, Job, Model, Sequence};

use crate::{InputColumn, InputColumns, ModelError, ModelResult, VectorForm};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputShape {
    pub numeric: usize,
    /// Values of the vector of each categorical feature that is not a sequence, in feature order.
    pub embeddings: Vec<usize>,
    /// The sequences, in feature order.
    pub sequences: Vec<SequenceShape>,
}

/// The place of a sequence in a sample's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceShape {
    /// Index of its first value.
    pub offset: usize,
    pub dim: usize,
    /// Number of positions, and the side of the padding.
    pub sequence: Sequence,
}

impl InputShape {
    #[must_use]
    pub fn new(job: &Job) -> Self {
        let (mut embeddings, mut sequences) = (Vec::new(), Vec::new());
        for InputColumn { dim, offset, form, .. } in InputColumns::new(job).features {
            match form {
                VectorForm::Pooled(_) => embeddings.push(dim),
                VectorForm::Sequence(sequence) => sequences.push(SequenceShape { offset, dim, sequence }),
            }
        }
        Self { numeric: job.features.numeric_inputs(), embeddings, sequences }
    }

    /// Feature vectors and sequences side by side.
    #[must_use]
    pub fn width(&self) -> usize {
        let sequences = self.sequences.iter().map(|shape| shape.sequence.input_width(shape.dim));
        self.embeddings.iter().sum::<usize>() + sequences.sum::<usize>()
    }

    /// What a job may ask for and a network cannot have.
    ///
    /// # Errors
    /// When the network has no input, or a layer has no units.
    pub fn check(job: &Job) -> ModelResult {
        let shape = Self::new(job);
        let what = match &job.model {
            Model::Dlrm { .. } | Model::DeepFm { .. } | Model::Wukong { .. } if shape.embeddings.is_empty() => {
                Some("the network needs a categorical feature and has none")
            }
            Model::Dlrm { .. } => {
                let alone = shape.numeric == 0 && shape.embeddings.len() == 1;
                alone.then_some("dlrm has nothing to interact: one categorical feature alone")
            }
            Model::WideDeep { .. } => {
                let alone = shape.numeric == 0 && shape.embeddings.iter().all(|dim| *dim == 1);
                alone.then_some("the deep part has no input: no numeric feature, no dim above 1")
            }
            Model::Din { .. } | Model::Bst { .. } => {
                job.model.attention_pairs().is_empty().then_some("the network has no sequence with a target")
            }
            _ => {
                let is_empty = shape.numeric + shape.width() == 0;
                is_empty.then_some("the network has no input: no numeric and no categorical feature")
            }
        };
        let has_empty_layer = || job.dense_layout().is_some_and(|all| all.tensors.iter().any(DenseTensor::is_empty));
        match what {
            Some(what) => Err(ModelError::Shape { what }),
            None if has_empty_layer() => Err(ModelError::Shape { what: "a hidden layer of the network has no units" }),
            None => Ok(()),
        }
    }
}
