//! The dense network over numeric values and pooled embeddings. The only module that knows libtorch.
//!
//! Everything here runs on one thread (`datapath::dense`): libtorch keeps its thread count per calling thread.

mod dlrm;
mod error;
mod ffnn;
mod gradients;
mod mlp;
mod weights;

use tch::nn::{self, Optimizer, OptimizerConfig, VarStore};
use tch::{Device, Reduction, Tensor};
use zagros_job::{DenseOptimizer, Job, Model};

use dlrm::Dlrm;
pub use error::ModelError;
use ffnn::Ffnn;
use mlp::{Dropout, Weights};

/// What the network reads of one sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputShape {
    /// Numeric values.
    pub numeric: usize,
    /// Values of each categorical feature's vector, in feature order.
    pub embeddings: Vec<usize>,
}

impl InputShape {
    /// What the job's samples look like.
    #[must_use]
    pub fn of(job: &Job) -> Self {
        let dim = |feature: &zagros_job::Categorical| job.tables[feature.table].dim;
        Self { numeric: job.features.numeric.len(), embeddings: job.features.categorical.iter().map(dim).collect() }
    }

    /// Values of all feature vectors side by side: ΣD.
    #[must_use]
    pub fn width(&self) -> usize {
        self.embeddings.iter().sum()
    }
}

/// What one training step gives.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutput {
    /// Mean binary cross-entropy of the batch before the update, nats.
    pub loss: f32,
    /// `[batch]`, before the update.
    pub logits: Vec<f32>,
    /// d loss / d embeddings, row-major `[batch, ΣD]`.
    pub gradients: Vec<f32>,
}

/// A network, its weights and its optimiser.
#[derive(Debug)]
pub struct DenseModel {
    shape: InputShape,
    variables: VarStore,
    network: Network,
    optimizer: Optimizer,
    dropout: Dropout,
}

#[derive(Debug)]
enum Network {
    Dlrm(Dlrm),
    Ffnn(Ffnn),
}

impl DenseModel {
    /// A network with first weights that are a function of the job's seed, PyTorch's default for linear
    /// layers: uniform in ±1/√inputs. `job.train.threads` becomes this thread's share of libtorch.
    ///
    /// # Errors
    /// When the shape leaves the network without input, or libtorch fails.
    pub fn new(job: &Job) -> Result<Self, ModelError> {
        // The other pool of libtorch (inter-op) serves TorchScript only and is never started.
        tch::set_num_threads(i32::try_from(job.train.threads).unwrap_or(i32::MAX));
        let shape = InputShape::of(job);
        let variables = VarStore::new(Device::Cpu);
        let mut weights = Weights::seeded(variables.root(), job.train.seed);
        let network = Network::build(&job.model, &shape, &mut weights)?;
        let optimizer = build_optimizer(&job.dense_optimizer, &variables)?;
        let dropout = Dropout::new(dropout_of(&job.model), job.train.seed);
        Ok(Self { shape, variables, network, optimizer, dropout })
    }

    /// What the network reads of one sample.
    #[must_use]
    pub fn shape(&self) -> &InputShape {
        &self.shape
    }

    /// Forward, backward and one optimiser step on the mean loss of a batch: `numeric` is `[batch, numeric]`,
    /// `embeddings` `[batch, ΣD]`, both row-major, `labels` `[batch]` of 0 or 1.
    ///
    /// # Errors
    /// When lengths disagree, libtorch fails, or the loss or any gradient is not finite. The weights are then
    /// what they were.
    pub fn step(&mut self, numeric: &[f32], embeddings: &[f32], labels: &[f32]) -> Result<StepOutput, ModelError> {
        let output = self.backward(numeric, embeddings, labels)?;
        self.check_finite(&output)?;
        self.optimizer.step();
        Ok(output)
    }

    /// Forward and backward, which leaves the weights as they are; inputs as for [`Self::step`].
    ///
    /// # Errors
    /// When lengths disagree or libtorch fails.
    pub fn backward(&mut self, numeric: &[f32], embeddings: &[f32], labels: &[f32]) -> Result<StepOutput, ModelError> {
        let (numeric, embeddings) = self.inputs(numeric, embeddings, labels.len())?;
        let embeddings = embeddings.f_set_requires_grad(true)?;
        let logits = self.network.forward(&numeric, &embeddings, Some(&mut self.dropout))?;
        let labels = Tensor::f_from_slice(labels)?;
        let loss = logits.f_binary_cross_entropy_with_logits::<&Tensor>(&labels, None, None, Reduction::Mean)?;
        self.optimizer.zero_grad();
        loss.f_backward()?;
        Ok(StepOutput {
            loss: loss.f_double_value(&[])? as f32,
            logits: to_vec(&logits.f_detach()?)?,
            gradients: to_vec(&embeddings.f_grad()?)?,
        })
    }

    /// Logits of a batch, `[batch]`, without dropout; inputs as for [`Self::step`].
    ///
    /// # Errors
    /// When lengths disagree or libtorch fails.
    pub fn predict(&self, numeric: &[f32], embeddings: &[f32], batch: usize) -> Result<Vec<f32>, ModelError> {
        let (numeric, embeddings) = self.inputs(numeric, embeddings, batch)?;
        to_vec(&tch::no_grad(|| self.network.forward(&numeric, &embeddings, None))?)
    }

    /// The weights in safetensors' format, under names such as `bottom.0.weight`, f32.
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn to_safetensors(&self) -> Result<Vec<u8>, ModelError> {
        weights::encode(&self.variables)
    }

    /// Takes weights that [`Self::to_safetensors`] wrote; the optimiser starts anew.
    ///
    /// # Errors
    /// When the bytes are damaged or the names or shapes are not exactly this network's: nothing is taken then.
    pub fn load_safetensors(&mut self, bytes: &[u8]) -> Result<(), ModelError> {
        weights::decode(bytes, &self.variables)
    }

    fn inputs(&self, numeric: &[f32], embeddings: &[f32], batch: usize) -> Result<(Tensor, Tensor), ModelError> {
        let (columns, width) = (self.shape.numeric, self.shape.width());
        expect("numeric values", batch * columns, numeric.len())?;
        expect("embedding values", batch * width, embeddings.len())?;
        let matrix = |values, columns| Tensor::f_from_slice::<f32>(values)?.f_reshape([int(batch), int(columns)]);
        Ok((matrix(numeric, columns)?, matrix(embeddings, width)?))
    }

    /// Whether loss and gradients are numbers. A dense gradient can overflow where loss and embedding gradients do
    /// not; its sum tells.
    ///
    /// # Errors
    /// [`ModelError::NotFinite`] names which is not.
    pub fn check_finite(&self, output: &StepOutput) -> Result<(), ModelError> {
        if !output.loss.is_finite() {
            return Err(ModelError::NotFinite { what: "the loss" });
        }
        if !all_finite(&output.gradients) {
            return Err(ModelError::NotFinite { what: "a gradient of an embedding" });
        }
        for variable in self.variables.trainable_variables() {
            if !variable.f_grad()?.f_sum(tch::Kind::Float)?.f_double_value(&[])?.is_finite() {
                return Err(ModelError::NotFinite { what: "a gradient of the dense network" });
            }
        }
        Ok(())
    }
}

impl Network {
    fn build(model: &Model, shape: &InputShape, weights: &mut Weights) -> Result<Self, ModelError> {
        Ok(match model {
            Model::Dlrm { bottom, top, .. } => Self::Dlrm(Dlrm::new(shape, bottom, top, weights)?),
            Model::Ffnn { hidden, .. } => Self::Ffnn(Ffnn::new(shape, hidden, weights)?),
        })
    }

    /// `[batch]` logits.
    fn forward(
        &self,
        numeric: &Tensor,
        embeddings: &Tensor,
        dropout: Option<&mut Dropout>,
    ) -> Result<Tensor, ModelError> {
        let logits = match self {
            Self::Dlrm(dlrm) => dlrm.forward(numeric, embeddings, dropout)?,
            Self::Ffnn(ffnn) => ffnn.forward(numeric, embeddings, dropout)?,
        };
        Ok(logits.f_squeeze_dim(1)?)
    }
}

fn dropout_of(model: &Model) -> f64 {
    match model {
        Model::Dlrm { dropout, .. } | Model::Ffnn { dropout, .. } => *dropout,
    }
}

fn build_optimizer(optimizer: &DenseOptimizer, variables: &VarStore) -> Result<Optimizer, ModelError> {
    Ok(match *optimizer {
        DenseOptimizer::Adam { lr, weight_decay } => nn::adam(0.9, 0.999, weight_decay).build(variables, lr)?,
        DenseOptimizer::Sgd { lr, momentum, weight_decay } => {
            nn::sgd(momentum, 0.0, weight_decay, false).build(variables, lr)?
        }
    })
}

/// Written so that it vectorises: no early exit.
fn all_finite(values: &[f32]) -> bool {
    values.iter().fold(true, |finite, value| finite & value.is_finite())
}

fn expect(what: &'static str, expected: usize, found: usize) -> Result<(), ModelError> {
    if expected == found { Ok(()) } else { Err(ModelError::Length { what, expected, found }) }
}

/// Empty for an undefined gradient, which is what an input of no columns has.
fn to_vec(tensor: &Tensor) -> Result<Vec<f32>, ModelError> {
    let count = if tensor.defined() { tensor.numel() } else { 0 };
    let mut values = vec![0.0; count];
    if count > 0 {
        tensor.f_contiguous()?.f_copy_data(&mut values, count)?;
    }
    Ok(values)
}

fn int(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
