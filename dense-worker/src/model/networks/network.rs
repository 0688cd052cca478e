//! The network of a job: its blocks or a module of the user's, its first weights and its forward.

use std::collections::HashMap;

use tch::Tensor;
use tch::nn::VarStore;
use zagros_job::{Job, Model};
use zagros_network::wiring::{ReadInputs, WiredBlock};
use zagros_zip::ZipEq;

use super::block::{BlockInputs, TorchBlock};
use super::torchscript::TorchScript;
use crate::model::layers::{
    BlockTensors, LayerCalls, LentBuffers, MadeBeside, ModuleBuffers, ValuesPlace, WeightBuilder,
};
use crate::model::{InputShape, ModelError};

#[derive(Debug)]
pub(crate) enum DenseNetwork {
    Blocks(BlockNetwork),
    TorchScript(TorchScript),
}

/// A network before its first step.
pub(crate) struct BuiltNetwork {
    pub(crate) network: DenseNetwork,
    pub(crate) buffers: ModuleBuffers,
    pub(crate) lent: LentBuffers,
    /// By layer: the variables whose values are elsewhere.
    pub(crate) streamed: Vec<Vec<Tensor>>,
}

#[derive(Debug)]
pub(crate) struct BlockNetwork {
    blocks: Vec<TorchBlock>,
    /// By block: the values that it is the last to read.
    last_reads: Vec<Vec<usize>>,
    output: usize,
    /// By name of a tensor.
    read: HashMap<String, ReadInputs>,
}

impl DenseNetwork {
    /// With first weights by the job's seed, and its buffers.
    pub(crate) fn build(job: &Job, variables: &VarStore, held: ValuesPlace) -> Result<BuiltNetwork, ModelError> {
        if let Model::TorchScript { file, sha256, .. } = &job.model {
            let outputs = job.features.output_count();
            let (module, buffers) = TorchScript::load(file, sha256, job.train.seed, (variables, outputs))?;
            let (network, lent) = (Self::TorchScript(module), LentBuffers::default());
            return Ok(BuiltNetwork { network, buffers, lent, streamed: Vec::new() });
        }
        check_shape(job)?;
        let mut weights = WeightBuilder::new(job, variables.root(), held);
        let network = BlockNetwork::build(job, &mut weights)?;
        let MadeBeside { buffers, lent, streamed } = weights.finish();
        Ok(BuiltNetwork { network: Self::Blocks(network), buffers: ModuleBuffers::new(buffers), lent, streamed })
    }

    /// `[batch, outputs]` of `[batch, inputs]` of numbers, and of `[batch, ΣD]`.
    pub(crate) fn forward<'n>(
        &'n self,
        numeric: &Tensor,
        embeddings: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> Result<Tensor, ModelError> {
        match self {
            Self::Blocks(network) => network.forward(numeric, embeddings, calls),
            Self::TorchScript(module) => module.forward(numeric, embeddings, calls.is_training()),
        }
    }

    /// What a tensor reads by its place. Of a user's module each may read all.
    pub(crate) fn read_inputs(&self, tensor: &str) -> ReadInputs {
        match self {
            Self::Blocks(network) => network.read.get(tensor).copied().unwrap_or_default(),
            Self::TorchScript(_) => ReadInputs { numbers: true, vectors: true },
        }
    }
}

/// What the loader has checked, for callers who made the job otherwise.
fn check_shape(job: &Job) -> Result<(), ModelError> {
    let shape = InputShape::new(job);
    let is_empty = shape.numeric + shape.width() == 0;
    let what = match &job.model {
        Model::Dlrm { .. } => {
            shape.common_dim("dlrm")?;
            let alone = shape.numeric == 0 && shape.embeddings.len() == 1;
            alone.then_some("dlrm has nothing to interact: one categorical feature alone")
        }
        Model::DeepFm { .. } => {
            let few = shape.common_dim("deepfm")? < 2;
            few.then_some("deepfm has no factors: the first of a row's values is its weight")
        }
        Model::Wukong { .. } => shape.common_dim("wukong").map(|_| None)?,
        Model::WideDeep { .. } => {
            let alone = shape.numeric == 0 && shape.embeddings.iter().all(|dim| *dim == 1);
            alone.then_some("the deep part has no input: no numeric feature, no dim above 1")
        }
        Model::Din { .. } | Model::Bst { .. } => {
            job.model.attention_pairs().is_empty().then_some("the network has no sequence with a target")
        }
        _ => is_empty.then_some("the network has no input: no numeric and no categorical feature"),
    };
    what.map_or(Ok(()), |what| Err(ModelError::Shape { what }))
}

impl BlockNetwork {
    fn build(job: &Job, weights: &mut WeightBuilder) -> Result<Self, ModelError> {
        let network = job.network().ok_or(ModelError::Shape { what: "the network has no blocks" })?;
        if network.layout.tensors.iter().any(zagros_job::DenseTensor::is_empty) {
            return Err(ModelError::Shape { what: "a hidden layer of the network has no units" });
        }
        let mut made = Vec::with_capacity(network.layout.tensors.len());
        for tensor in &network.layout.tensors {
            made.push(weights.variable(tensor)?);
        }
        let (mut blocks, mut readers) = (Vec::with_capacity(network.blocks.len()), vec![0; network.blocks.len()]);
        for (index, WiredBlock { block, tensors }) in network.blocks.iter().enumerate() {
            let mut tensors = BlockTensors::new(&made[tensors.clone()], weights);
            let block = TorchBlock::build(block, &network.inputs, &mut tensors)?;
            block.reads().into_iter().for_each(|value| readers[value] = index);
            blocks.push(block);
        }
        let mut last_reads = vec![Vec::new(); blocks.len()];
        for (value, reader) in readers.into_iter().enumerate().filter(|(value, _)| *value != network.output.block) {
            last_reads[reader].push(value);
        }
        let names = network.layout.tensors.iter().map(|tensor| tensor.name.clone());
        let read = names.zip_eq(network.read_inputs()).collect();
        Ok(Self { blocks, last_reads, output: network.output.block, read })
    }

    fn forward<'n>(
        &'n self,
        numeric: &Tensor,
        embeddings: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> Result<Tensor, ModelError> {
        let nothing = Tensor::new();
        let mut values: Vec<Tensor> = self.blocks.iter().map(|_| nothing.shallow_clone()).collect();
        for (index, block) in self.blocks.iter().enumerate() {
            let inputs = BlockInputs { numeric, embeddings, values: &values };
            values[index] = block.forward(inputs, calls)?;
            // What is read no more goes at once.
            self.last_reads[index].iter().for_each(|read| values[*read] = nothing.shallow_clone());
        }
        Ok(values.swap_remove(self.output))
    }
}
