//! The dense network over numeric values and pooled embeddings. The only module that knows libtorch.
//!
//! Everything here runs on one thread (`datapath::dense`): libtorch keeps its thread count per calling thread.

mod dcnv2;
mod deepfm;
mod dlrm;
mod error;
mod ffnn;
mod flat;
mod mlp;
mod optimizer;
mod pass;
mod shared;
mod state;
mod torchscript;
mod weights;
mod wide_deep;

use tch::nn::VarStore;
use tch::{Device, Reduction, Tensor};
use zagros_job::{Job, Model};

use dcnv2::{Dcnv2, Form};
use deepfm::DeepFm;
use dlrm::Dlrm;
pub use error::ModelError;
use ffnn::Ffnn;
use flat::Flat;
use mlp::{Dropout, Weights};
use optimizer::Updater;
use pass::{Share, Team};
use torchscript::TorchScript;
use wide_deep::WideDeep;

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

    /// The one dim of all tables, which `model` needs.
    fn common_dim(&self, model: &'static str) -> Result<usize, ModelError> {
        let what = "the network needs a categorical feature and has none";
        let first = *self.embeddings.first().ok_or(ModelError::Shape { what })?;
        match self.embeddings.iter().find(|dim| **dim != first) {
            Some(other) => Err(ModelError::Dims { model, first, other: *other }),
            None => Ok(first),
        }
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
    weights: Flat,
    gradients: Flat,
    /// The step without autograd, for networks that have one.
    team: Option<Team>,
    updater: Updater,
    /// Updates so far, those that were left out among them.
    steps: u64,
    /// Of the step with autograd.
    dropout: Dropout,
    threads: usize,
}

#[derive(Debug)]
enum Network {
    Dlrm(Dlrm),
    Ffnn(Ffnn),
    Dcnv2(Dcnv2),
    DeepFm(DeepFm),
    WideDeep(WideDeep),
    TorchScript(TorchScript),
}

impl DenseModel {
    /// A network with first weights that are a function of the job's seed, PyTorch's default for linear
    /// layers: uniform in ±1/√inputs. `job.train.threads` becomes this thread's share of libtorch.
    ///
    /// # Errors
    /// When the shape leaves the network without input, or libtorch fails.
    pub fn new(job: &Job) -> Result<Self, ModelError> {
        use_threads(job.train.threads);
        let shape = InputShape::of(job);
        let variables = VarStore::new(Device::Cpu);
        let network = Network::build(job, &shape, &variables)?;
        // Before anything looks at the variables' memory.
        let weights = Flat::weights(&variables)?;
        let gradients = Flat::gradients(&variables)?;
        let updater = Updater::new(&job.dense_optimizer, job.train.updates, weights.values().len());
        let dropout = |stream| Dropout::new(dropout_of(&job.model), job.train.seed, stream);
        let team = Team::of(&network, &shape, &gradients, job.train.threads, dropout)?;
        let (dropout, threads) = (dropout(0), job.train.threads);
        Ok(Self { shape, variables, network, weights, gradients, team, updater, steps: 0, dropout, threads })
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
        // A step that is left out counts for the schedule, too.
        self.steps += 1;
        self.check_finite(&output)?;
        self.updater.apply(self.steps - 1, self.weights.values_mut(), self.gradients.values_mut())?;
        Ok(output)
    }

    /// Forward and backward, which leaves the weights as they are; inputs as for [`Self::step`].
    ///
    /// # Errors
    /// When lengths disagree or libtorch fails.
    pub fn backward(&mut self, numeric: &[f32], embeddings: &[f32], labels: &[f32]) -> Result<StepOutput, ModelError> {
        self.check_lengths(numeric, embeddings, labels.len())?;
        self.draw_for(self.steps);
        match &mut self.team {
            Some(team) => team_step(team, &mut self.gradients, numeric, embeddings, labels),
            None => self.autograd(numeric, embeddings, labels),
        }
    }

    /// From now on, dropout draws as it does in this step, whatever was before.
    fn draw_for(&mut self, step: u64) {
        self.dropout.draw_for(step);
        if let Some(team) = &mut self.team {
            team.draw_for(step);
        }
        if let Network::TorchScript(module) = &self.network {
            module.draw_for(step);
        }
    }

    /// Loss and gradients, by autograd.
    fn autograd(&mut self, numeric: &[f32], embeddings: &[f32], labels: &[f32]) -> Result<StepOutput, ModelError> {
        use_threads(self.threads);
        let (numeric, embeddings) = self.inputs(numeric, embeddings, labels.len())?;
        let embeddings = embeddings.f_set_requires_grad(true)?;
        let logits = self.network.forward(&numeric, &embeddings, Some(&mut self.dropout))?;
        let labels = Tensor::f_from_slice(labels)?;
        let loss = logits.f_binary_cross_entropy_with_logits::<&Tensor>(&labels, None, None, Reduction::Mean)?;
        self.gradients.zero()?;
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
        self.check_lengths(numeric, embeddings, batch)?;
        use_threads(self.threads);
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

    /// Takes weights that [`Self::to_safetensors`] wrote; the optimiser's state stays.
    ///
    /// # Errors
    /// When the bytes are damaged or the names or shapes are not exactly this network's: nothing is taken then.
    pub fn load_safetensors(&mut self, bytes: &[u8]) -> Result<(), ModelError> {
        weights::decode(bytes, &self.variables)
    }

    fn check_lengths(&self, numeric: &[f32], embeddings: &[f32], batch: usize) -> Result<(), ModelError> {
        expect("numeric values", batch * self.shape.numeric, numeric.len())?;
        expect("embedding values", batch * self.shape.width(), embeddings.len())
    }

    fn inputs(&self, numeric: &[f32], embeddings: &[f32], batch: usize) -> Result<(Tensor, Tensor), ModelError> {
        let (columns, width) = (self.shape.numeric, self.shape.width());
        let matrix = |values, columns| Tensor::f_from_slice::<f32>(values)?.f_reshape([int(batch), int(columns)]);
        Ok((matrix(numeric, columns)?, matrix(embeddings, width)?))
    }

    /// Whether loss and gradients are numbers. A dense gradient can overflow where loss and embedding gradients do not.
    ///
    /// # Errors
    /// [`ModelError::NotFinite`] names which is not.
    pub fn check_finite(&self, output: &StepOutput) -> Result<(), ModelError> {
        let checks: [(&[f32], _); 3] = [
            (&[output.loss], "the loss"),
            (&output.gradients, "a gradient of an embedding"),
            (self.gradients.values(), "a gradient of the dense network"),
        ];
        match checks.into_iter().find(|(values, _)| !all_finite(values)) {
            Some((_, what)) => Err(ModelError::NotFinite { what }),
            None => Ok(()),
        }
    }
}

impl Network {
    fn build(job: &Job, shape: &InputShape, variables: &VarStore) -> Result<Self, ModelError> {
        let weights = &mut Weights::seeded(variables.root(), job.train.seed, job.train.precision);
        Ok(match &job.model {
            Model::Dlrm { bottom, top, .. } => Self::Dlrm(Dlrm::new(shape, bottom, top, weights)?),
            Model::Ffnn { hidden, .. } => Self::Ffnn(Ffnn::new(shape, hidden, weights)?),
            Model::Dcnv2 { cross_layers, rank, structure, hidden, .. } => {
                let form = Form { cross_layers: *cross_layers, rank: *rank, structure: *structure, hidden };
                Self::Dcnv2(Dcnv2::new(shape, form, weights)?)
            }
            Model::DeepFm { hidden, .. } => Self::DeepFm(DeepFm::new(shape, hidden, weights)?),
            Model::WideDeep { hidden, .. } => Self::WideDeep(WideDeep::new(shape, hidden, weights)?),
            Model::TorchScript { file, sha256 } => {
                Self::TorchScript(TorchScript::load(file, sha256, job.train.seed, variables)?)
            }
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
            Self::Dcnv2(dcnv2) => dcnv2.forward(numeric, embeddings, dropout)?,
            Self::DeepFm(deepfm) => deepfm.forward(numeric, embeddings, dropout)?,
            Self::WideDeep(wide_deep) => wide_deep.forward(numeric, embeddings, dropout)?,
            Self::TorchScript(module) => module.forward(numeric, embeddings, dropout.is_some())?,
        };
        Ok(logits.f_squeeze_dim(1)?)
    }
}

/// Loss and gradients, by loops of our own.
fn team_step(
    team: &mut Team,
    variables: &mut Flat,
    numeric: &[f32],
    embeddings: &[f32],
    labels: &[f32],
) -> Result<StepOutput, ModelError> {
    let (mut logits, mut gradients) = (vec![0.0; labels.len()], vec![0.0; embeddings.len()]);
    let batch = Share { numeric, embeddings, labels, logits: &mut logits, gradients: &mut gradients };
    let loss = team.run(batch, variables)?;
    Ok(StepOutput { loss, logits, gradients })
}

fn dropout_of(model: &Model) -> f64 {
    match model {
        Model::Dlrm { dropout, .. }
        | Model::Ffnn { dropout, .. }
        | Model::Dcnv2 { dropout, .. }
        | Model::DeepFm { dropout, .. }
        | Model::WideDeep { dropout, .. } => *dropout,
        // Its own affair.
        Model::TorchScript { .. } => 0.0,
    }
}

/// This thread's share of libtorch. The other pool of libtorch (inter-op) serves TorchScript only and is never started.
fn use_threads(threads: usize) {
    tch::set_num_threads(i32::try_from(threads).unwrap_or(i32::MAX));
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
