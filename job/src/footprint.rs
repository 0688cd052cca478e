//! The memory of a job: of the dense network before it is built, of a row at a server, and of the rows that a worker's batches have under
//! way. The sums follow what the dense worker allocates; `scripts/memory_peaks.py` compares them with the peak of real runs.

mod streamed;

use crate::settings::{
    Categorical, DenseLayout, DenseTensor, Device, Job, MlpNorm, MlpSettings, Mode, Model, Precision, Table, TensorRole,
};

pub use streamed::StreamedFootprint;

/// Bytes of a weight, a gradient or a moment.
const VALUE: u64 = 4;
/// Samples for which a thread of the step without autograd has memory.
const CHUNK_ROWS: u64 = 1024;
/// Values in a cache line: rows of copies start at one.
const LINE: u64 = 16;
/// Freed memory of first values that the allocator keeps, at most.
const MOST_KEPT: u64 = 32 << 20;

/// Bytes of a dense worker for the whole network, by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DenseFootprint {
    pub weights: u64,
    pub gradients: u64,
    pub optimizer: u64,
    /// The average of the weights (`train.ema`), and in mode `async` the first weights and those of the last step.
    pub copies: u64,
    /// Values of hidden layers and their slopes.
    pub activations: u64,
    /// Copies of weights and state while they are saved, on the first worker.
    pub saving: u64,
    kept: u64,
    building: u64,
}

impl DenseFootprint {
    pub fn training_bytes(&self) -> u64 {
        self.weights + self.gradients + self.optimizer + self.copies + self.activations + self.kept
    }

    pub fn peak_bytes(&self) -> u64 {
        self.training_bytes().max(self.building)
    }
}

impl Job {
    /// The memory of a dense worker for the network; `None` for a user's module.
    pub fn dense_footprint(&self) -> Option<DenseFootprint> {
        let layout = self.dense_layout()?;
        let bytes = VALUE * layout.parameter_count();
        let (state, largest) = (self.state_values(), VALUE * largest(layout.tensors.iter().map(DenseTensor::len)));
        let by_autograd = self.is_by_autograd();
        let threads = if by_autograd { 1 } else { self.train.threads.max(1) as u64 };
        let buffers = if by_autograd { self.kept_values(&layout) } else { threads * self.chunk_values(&layout) };
        let average = u64::from(self.train.ema.is_some());
        let at_servers = if self.train.mode == Mode::Async { 2 } else { 0 };
        let is_saved = self.output.save_model || self.checkpoint.keep > 0;
        Some(DenseFootprint {
            weights: bytes,
            gradients: threads * bytes,
            optimizer: state * bytes,
            copies: (average + at_servers) * bytes,
            activations: VALUE * buffers,
            saving: if is_saved { (1 + state + average) * bytes } else { 0 },
            kept: (2 * largest).min(MOST_KEPT),
            building: 2 * bytes + 2 * largest,
        })
    }

    pub(crate) fn state_values(&self) -> u64 {
        self.dense_optimizer.state_vectors().len() as u64
    }

    /// Whether libtorch's autograd makes the step.
    pub fn is_by_autograd(&self) -> bool {
        self.autograd_key().is_some()
    }

    /// The first key, as in the job file, for which libtorch's autograd makes the step.
    pub fn autograd_key(&self) -> Option<&'static str> {
        let (train, defaults) = (&self.train, MlpSettings::default());
        let keys = [
            (train.device == Device::Cuda, "train.device = \"cuda\""),
            (train.precision == Precision::F16, "train.precision = \"f16\""),
            (self.mlp.norm != defaults.norm, "mlp.norm"),
            (self.mlp.activation != defaults.activation, "mlp.activation"),
        ];
        let of_settings = keys.into_iter().find_map(|(needs_autograd, key)| needs_autograd.then_some(key));
        of_settings.or_else(|| match self.network() {
            Some(network) => network.blocks.iter().find_map(|wired| wired.block.autograd_key()),
            None => Some("model.kind = \"torchscript\""),
        })
    }

    /// Values of a thread of the step without autograd: outputs and slopes of each layer, the inputs, and copies of weights.
    fn chunk_values(&self, layout: &DenseLayout) -> u64 {
        let read = weights(layout).filter(|tensor| tensor.inputs.power == 0).map(|tensor| tensor.inputs.size);
        let dropped = u64::from(self.model.dropout_share() > 0.0);
        let rows = (2 + dropped) * outputs(layout).sum::<u64>() + 2 * largest(read).next_multiple_of(LINE);
        CHUNK_ROWS * rows + weights(layout).map(|tensor| self.copied_values(tensor)).sum::<u64>()
    }

    /// Of a copy of a weight: in bf16, or with rows that start at cache lines.
    fn copied_values(&self, tensor: &DenseTensor) -> u64 {
        let (inputs, outputs) = (tensor.inputs.size, tensor.outputs.size);
        match self.train.precision {
            Precision::Bf16 => tensor.len() + CHUNK_ROWS * (inputs + outputs),
            _ => aligned_values(&[outputs, inputs]),
        }
    }

    /// Values that autograd keeps for a batch: the output of each layer, and what follows it.
    fn kept_values(&self, layout: &DenseLayout) -> u64 {
        let interactions: u64 = self.values_of_interactions().iter().sum();
        self.train.batch_size as u64 * (2 * outputs(layout).sum::<u64>() + 3 * interactions)
    }
}

fn weights(layout: &DenseLayout) -> impl Iterator<Item = &DenseTensor> {
    layout.tensors.iter().filter(|tensor| tensor.role == TensorRole::Weight)
}

fn outputs(layout: &DenseLayout) -> impl Iterator<Item = u64> {
    weights(layout).map(outputs_of)
}

fn outputs_of(weight: &DenseTensor) -> u64 {
    weight.outputs.size * weight.uses
}

/// Of a copy of a weight or its gradient whose rows start at cache lines.
fn aligned_values([outputs, inputs]: &[u64; 2]) -> u64 {
    if *inputs > LINE && !inputs.is_multiple_of(LINE) { outputs * inputs.next_multiple_of(LINE) } else { 0 }
}

fn largest(of: impl Iterator<Item = u64>) -> u64 {
    of.max().unwrap_or(0)
}

/// Copies of a layer's values while it is computed again: what its functions give, their slopes, and copies in another order.
const OF_ONE: u64 = 10;

impl Job {
    /// Values for a sample at the peak of a step that autograd makes, a layer at a time (`layer_calls` of the dense worker).
    ///
    /// The forward keeps the output of each layer. The backward computes one layer again, with all that autograd keeps of it.
    fn values_by_layer(&self, layout: &DenseLayout) -> u64 {
        let weights: Vec<_> = layout.tensors.iter().filter(|tensor| tensor.role == TensorRole::Weight).collect();
        let calls = weights.chunk_by(|before, after| before.layer == after.layer).filter_map(|layer| layer.last());
        let given: Vec<u64> = calls.map(|last| outputs_of(last)).chain(self.values_of_interactions()).collect();
        // Of a product of two values, which is never there, a network reads the values.
        let is_read = |tensor: &&&DenseTensor| tensor.inputs.power < 2;
        let inputs = largest(weights.iter().filter(is_read).map(|tensor| tensor.inputs.size * tensor.uses));
        // A norm keeps what it reads. Dropout keeps its factors and its outputs.
        let norms = u64::from(self.mlp.norm != MlpNorm::None);
        let dropped = 2 * u64::from(self.model.dropout_share() > 0.0);
        let kept: u64 = given.iter().sum();
        (1 + norms + dropped) * kept + OF_ONE * largest(given.into_iter()) + 2 * inputs
    }

    fn values_of_interactions(&self) -> Vec<u64> {
        let Model::Wukong { layers, fmb, lcb, rank, .. } = &self.model else { return Vec::new() };
        let (vectors, dim) = ((fmb + lcb) as u64, self.tables.first().map_or(0, |table| table.dim as u64));
        (0..*layers).flat_map(|_| [vectors * dim, vectors * *rank as u64]).collect()
    }
}

/// Index bytes of a row: twelve for an entry, with 64 to 80 % of its places used, and free space in the last block.
const INDEX: usize = 24;

impl Table {
    /// Bytes of one row in a server's memory: weights, optimiser state, index.
    pub fn row_bytes(&self) -> usize {
        VALUE as usize * self.table_config().stride() + INDEX
    }
}

impl Job {
    /// Values of the vectors of all features of a sample.
    pub fn looked_up_values(&self) -> u64 {
        let values = |feature: &Categorical| {
            let dim = self.tables[feature.table].dim;
            feature.values.sequence().map_or(dim, |sequence| sequence.input_width(dim)) as u64
        };
        self.features.categorical.iter().map(values).sum()
    }

    /// Bytes of the rows and gradients of one worker's batches between lookup and acknowledgement, at most.
    pub fn in_flight_bytes(&self) -> u64 {
        let batches = (self.train.batch_size as u64).saturating_mul(self.train.staleness as u64 + 1);
        batches.saturating_mul(2 * VALUE * self.looked_up_values())
    }
}

#[cfg(test)]
mod tests {
    use crate::Job;
    use crate::fixture::{CRITEO, job};

    const FFNN: &str = "[model]\nkind = 'ffnn'\nhidden = [64, 32]\n";

    #[test]
    fn the_footprint_is_that_of_weights_threads_and_optimiser() {
        let footprint = |text: &str| job(CRITEO, &format!("{FFNN}{text}")).dense_footprint().unwrap();
        let bytes = 4 * (429 * 64 + 64 + 64 * 32 + 32 + 33);
        let one = footprint("[train]\nthreads = 1\n");
        assert_eq!((one.weights, one.gradients, one.optimizer, one.copies), (bytes, bytes, 2 * bytes, 0));
        // Outputs and slopes of 64 + 32 + 1 units and 429 inputs, and the first layer's gradient with rows of 432.
        assert_eq!(one.activations, 4 * (1024 * (2 * 97 + 2 * 432) + 64 * 432));
        assert_eq!(one.saving, 3 * bytes);
        let two = footprint("[train]\nthreads = 2\n");
        assert_eq!((two.gradients, two.activations), (2 * bytes, 2 * one.activations));
        let plain = footprint("[optimizer]\nkind = 'sgd'\n[output]\nsave_model = false\n[checkpoint]\nkeep = 0\n");
        assert_eq!((plain.optimizer, plain.saving), (0, 0));
        let average = footprint("[train]\nthreads = 1\nema = 0.5\n");
        assert_eq!((average.copies, average.saving), (bytes, 4 * bytes));
        assert!(one.training_bytes() == one.peak_bytes() && one.peak_bytes() > 4 * bytes);
    }

    #[test]
    fn autograd_keeps_the_values_of_a_whole_batch() {
        let footprint =
            |text: &str| job(CRITEO, &format!("{FFNN}[mlp]\nactivation = 'gelu'\n{text}")).dense_footprint().unwrap();
        assert_eq!(footprint("[train]\nbatch_size = 100\n").activations, 2 * 4 * 100 * 97);
        assert_eq!(footprint("[train]\nthreads = 8\n").gradients, footprint("[train]\nthreads = 1\n").gradients);
    }

    fn wukong(layers: u64) -> Job {
        let sizes = "fmb = 20\nlcb = 7\nrank = 16\nfmb_hidden = []\nbottom = []\ntop = []\n[train]\nbatch_size = 100\n";
        job(CRITEO, &format!("[model]\nkind = 'wukong'\nlayers = {layers}\n{sizes}"))
    }

    #[test]
    fn a_wukong_keeps_its_vectors_and_their_products() {
        // 27 vectors of 16 values; of the weights the projection, the layer of the FMB and the LCB.
        let (vectors, weights) = (27 * 16, 16 * 16 + 20 * 16 + 7 * 16);
        let whole = |layers| wukong(layers).dense_footprint().unwrap().activations;
        // And their products with 16 more.
        assert_eq!(whole(3) - whole(2), 4 * 100 * (3 * 2 * vectors + 2 * weights));
        // By layer, products of one layer are made again.
        let by_layer = |layers| wukong(layers).values_by_layer(&wukong(layers).dense_layout().unwrap());
        assert_eq!(by_layer(3) - by_layer(2), 2 * vectors + weights);
    }

    #[test]
    fn outputs_are_kept_and_one_layer_is_made_again() {
        let values = |text: &str| {
            let job = job(CRITEO, &format!("[model]\nkind = 'ffnn'\nhidden = [64, 32]\ndropout = {text}\n"));
            job.values_by_layer(&job.dense_layout().unwrap())
        };
        assert_eq!(values("0.0"), (64 + 32 + 1) + 10 * 64 + 2 * 429);
        assert_eq!(values("0.5"), 3 * (64 + 32 + 1) + 10 * 64 + 2 * 429);
        assert_eq!(values("0.0\n[mlp]\nnorm = 'layer'"), 2 * (64 + 32 + 1) + 10 * 64 + 2 * 429);
    }

    /// Each output of one stream is multiplied with each of the other, and the products are not kept.
    #[test]
    fn products_of_two_streams_are_not_there() {
        let values = |gate: &str| {
            let text =
                format!("[model]\nkind = 'finalmlp'\nfirst = [512]\nsecond = [512]\n{gate}[train]\nthreads = 1\n");
            let job = job(CRITEO, &format!("{text}weights = 'streamed'\nbatch_size = 256\n"));
            job.streamed_footprint().unwrap().activations
        };
        for gate in ["", "gate = {}\n"] {
            assert!(values(gate) < 4 * 256 * 20_000, "{}", values(gate));
        }
    }

    #[test]
    fn a_row_is_its_values_state_and_index() {
        let row_bytes = |text: &str| job(CRITEO, text).tables[0].row_bytes();
        // Adagrad keeps as many values as there are weights.
        assert_eq!(row_bytes("[embedding]\ndim = 16\n"), 4 * 32 + 24);
        assert_eq!(row_bytes("[embedding]\ndim = 16\noptimizer = { kind = 'sgd' }\n"), 4 * 16 + 24);
    }

    #[test]
    fn rows_in_flight_are_those_of_all_batches_under_way() {
        let job = job(CRITEO, "[embedding]\ndim = 16\n[train]\nbatch_size = 100\nstaleness = 2\n");
        assert_eq!(job.looked_up_values(), 26 * 16);
        assert_eq!(job.in_flight_bytes(), 3 * 100 * 26 * 16 * 8);
    }
}
