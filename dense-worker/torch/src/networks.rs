//! The network of a job at libtorch: its blocks or a module of the user's, its first weights, and its forward for autograd and scoring.

mod block;
mod products;
mod sequences;
mod torchscript;

use tch::Tensor;
use tch::nn::VarStore;
use zagros_job::{Job, Model};
use zagros_model::check_inputs;
use zagros_network::wiring::WiredBlock;

use crate::error::{TorchError, TorchResult};
use crate::layers::{BlockTensors, LayerCalls, LentBuffers, ModuleBuffers, ValuesPlace, WeightBuilder};

use block::{BlockInputs, TorchBlock};
use torchscript::TorchScript;

const VECTORS: usize = 1;

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
    /// Each with the numbers of the blocks whose values it reads.
    blocks: Vec<(TorchBlock, Vec<usize>)>,
    /// By block: the values that it is the last to read.
    last_reads: Vec<Vec<usize>>,
    output: usize,
}

impl DenseNetwork {
    /// With first weights by the job's seed, and its buffers.
    pub(crate) fn build(job: &Job, variables: &VarStore, held: ValuesPlace) -> TorchResult<BuiltNetwork> {
        if let Model::TorchScript { file, sha256, .. } = &job.model {
            let outputs = job.features.output_count();
            let (module, buffers) = TorchScript::load(file, sha256, job.train.seed, (variables, outputs))?;
            let (network, lent) = (Self::TorchScript(module), LentBuffers::default());
            return Ok(BuiltNetwork { network, buffers, lent, streamed: Vec::new() });
        }
        check_inputs(job)?;
        let mut weights = WeightBuilder::new(job, variables.root(), held);
        let network = BlockNetwork::build(job, &mut weights)?;
        let WeightBuilder { buffers, lent, streamed, .. } = weights;
        Ok(BuiltNetwork { network: Self::Blocks(network), buffers: ModuleBuffers::new(buffers), lent, streamed })
    }

    /// `[batch, outputs]` of `[batch, inputs]` of numbers, and of `[batch, ΣD]`.
    pub(crate) fn forward<'n>(
        &'n self,
        numeric: &Tensor,
        embeddings: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> TorchResult<Tensor> {
        match self {
            Self::Blocks(network) => network.forward(numeric, embeddings, calls),
            Self::TorchScript(module) => module.forward(numeric, embeddings, calls.is_training()),
        }
    }
}

impl BlockNetwork {
    fn build(job: &Job, weights: &mut WeightBuilder) -> TorchResult<Self> {
        let network = job.network().ok_or(TorchError::shape("the network has no blocks"))?;
        let tensors = network.layout.tensors.iter();
        let made = tensors.map(|tensor| weights.variable(tensor)).collect::<Result<Vec<_>, _>>()?;
        let (mut blocks, mut readers) = (Vec::with_capacity(network.blocks.len()), vec![0; network.blocks.len()]);
        for (index, WiredBlock { block, tensors, .. }) in network.blocks.iter().enumerate() {
            let mut tensors = BlockTensors::new(&made[tensors.clone()], weights);
            let reads: Vec<usize> = block.read_values().into_iter().map(|value| value.block).collect();
            reads.iter().for_each(|value| readers[*value] = index);
            blocks.push((TorchBlock::build(block, &network.inputs, &mut tensors)?, reads));
        }
        let mut last_reads = vec![Vec::new(); blocks.len()];
        // The inputs stay: their callers have them.
        let is_inner = |value: usize| value > VECTORS && value != network.output.block;
        for (value, reader) in readers.into_iter().enumerate().filter(|(value, _)| is_inner(*value)) {
            last_reads[reader].push(value);
        }
        Ok(Self { blocks, last_reads, output: network.output.block })
    }

    fn forward<'n>(&'n self, numeric: &Tensor, embeddings: &Tensor, calls: &mut LayerCalls<'n>) -> TorchResult<Tensor> {
        let nothing = Tensor::new();
        let mut values: Vec<Tensor> = self.blocks.iter().map(|_| nothing.shallow_clone()).collect();
        for (index, (block, reads)) in self.blocks.iter().enumerate() {
            let read: Vec<&Tensor> = reads.iter().map(|value| &values[*value]).collect();
            let inputs = BlockInputs { numeric, embeddings, vectors: &values[VECTORS], read: &read };
            values[index] = block.forward(inputs, calls)?;
            // What is read no more goes at once.
            self.last_reads[index].iter().for_each(|read| values[*read] = nothing.shallow_clone());
        }
        Ok(values.swap_remove(self.output))
    }
}
