//! What a sample of the data holds, measured on the first rows or assumed; and what it asks of the machines, whatever
//! their speed.

use zagros_job::{
    DenseLayout, DenseTensor, Format, Job, Mode, Model, Precision, TensorRole, Values, WeightStore, WireFormat,
};
use zagros_zip::ZipEq;

use crate::PlannerError;

pub(crate) const ID_BYTES: f64 = 8.0;
/// Bytes of a value of the dense network.
pub(crate) const F32: f64 = 4.0;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatrixProduct {
    /// Values that it reads.
    pub read: f64,
    /// Values that it gives.
    pub write: f64,
    /// How often a sample goes through it.
    pub times: f64,
}

impl MatrixProduct {
    fn new(tensor: &DenseTensor) -> Self {
        let read = tensor.inputs.size.max(1) as f64;
        Self { read, write: tensor.len() as f64 / read, times: tensor.uses as f64 }
    }

    pub fn weight_count(&self) -> f64 {
        self.read * self.write
    }

    /// Additions and multiplications of a sample, forward and backward: two for each weight forward, and four backward.
    pub fn flop(&self) -> f64 {
        6.0 * self.weight_count() * self.times
    }
}

/// The arithmetic of a dense network for one sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DenseWork {
    /// In the order of the layers.
    pub products: Vec<MatrixProduct>,
    /// Multiplications of values with values, forward: dot products of vectors, attention, factorisation machines.
    pub pair_values: f64,
    /// Values that elementwise loops walk over beside those of the products.
    pub loop_values: f64,
    /// Whether the step goes through libtorch's autograd.
    pub by_autograd: bool,
    /// Weights and biases of the whole network.
    pub parameters: f64,
    /// Additions and multiplications of a sample, forward and backward.
    pub flop: f64,
}

impl DenseWork {
    /// The work of a job's network; `None` for a user's module.
    pub fn from_job(job: &Job) -> Option<Self> {
        let layout: DenseLayout = job.dense_layout()?;
        let weights = layout.tensors.iter().filter(|tensor| tensor.role == TensorRole::Weight);
        let width = job.features.numeric_values() as f64
            + job.features.categorical.iter().map(|feature| job.tables[feature.table].dim as f64).sum::<f64>();
        let own_loops = match &job.model {
            // x₀ ⊙ (W·x + b) + x: three walks over the width, forward.
            Model::Dcnv2 { cross_layers, .. } => 3.0 * width * *cross_layers as f64,
            _ => 0.0,
        };
        Some(Self {
            products: weights.map(MatrixProduct::new).collect(),
            pair_values: layout.products as f64,
            loop_values: own_loops,
            by_autograd: job.is_by_autograd(),
            parameters: layout.parameter_count() as f64,
            flop: layout.step_flop() as f64,
        })
    }
}

/// The rows of one table that a sample looks up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableWork {
    /// Values of a row.
    pub dim: f64,
    /// The dim of an Adagrad row with as many values in all: an update walks over weights and optimiser state.
    pub push_dim: f64,
    /// Distinct rows of a batch, for each of its samples.
    pub distinct: f64,
}

/// The dense weights that a worker and the servers exchange in a step, if the weights are streamed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightTraffic {
    pub is_streamed: bool,
    /// Bytes from the servers in a step: every layer for the forward and again for the backward, the last one once.
    pub pulled: f64,
    /// Bytes of gradients to the servers in a step.
    pub pushed: f64,
}

impl WeightTraffic {
    /// That of a network whose values are `value` bytes on the wire.
    pub fn new(dense: &DenseWork, value: f64, is_streamed: bool) -> Self {
        let last = dense.products.last().map_or(0.0, MatrixProduct::weight_count);
        Self { is_streamed, pulled: value * (2.0 * dense.parameters - last), pushed: value * dense.parameters }
    }

    /// Bytes of a step, both ways.
    pub fn step_bytes(&self) -> f64 {
        self.pulled + self.pushed
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct SampleWork {
    /// Samples of a worker's step.
    pub batch: f64,
    /// Batches that may be unacknowledged at a lookup: τ.
    pub staleness: f64,
    pub mode: Mode,
    pub precision: Precision,
    pub format: Format,
    /// Bytes on disk.
    pub bytes: f64,
    pub ids: f64,
    /// Values of the rows of all ids.
    pub id_values: f64,
    pub tables: Vec<TableWork>,
    /// Bytes from a worker to the servers: ids of lookups, ids and gradients of pushes.
    pub bytes_up: f64,
    /// Bytes from the servers to a worker: rows.
    pub bytes_down: f64,
    pub dense: DenseWork,
    pub traffic: WeightTraffic,
}

impl SampleWork {
    pub fn new(job: &Job, data: &DataShape) -> Result<Self, PlannerError> {
        let dense = DenseWork::from_job(job).ok_or(PlannerError::UnknownNetwork)?;
        let table = |(index, distinct): (usize, &f64)| {
            let config = job.tables[index].table_config();
            TableWork { dim: config.dim as f64, push_dim: config.stride() as f64 / 2.0, distinct: *distinct }
        };
        let tables: Vec<TableWork> = data.distinct.iter().enumerate().map(table).collect();
        let value = if job.cluster.wire == WireFormat::F32 { F32 } else { F32 / 2.0 };
        let of_rows =
            |cost: fn(&TableWork) -> f64| tables.iter().map(|table| table.distinct * cost(table)).sum::<f64>();
        let (rows, values) = (of_rows(|_| 1.0), of_rows(|table| table.dim));
        let dims = job.features.categorical.iter().map(|feature| job.tables[feature.table].dim as f64);
        let id_values = data.ids.iter().zip_eq(dims.collect::<Vec<_>>()).map(|(ids, dim)| ids * dim).sum();
        let is_streamed = job.train.weights == WeightStore::Streamed;
        let (batch, traffic) = (job.train.batch_size as f64, WeightTraffic::new(&dense, value, is_streamed));
        let (up, down) = match job.train.mode {
            // The dense weights come and their gradients go with each batch.
            Mode::Async => (dense.parameters * F32 / batch, dense.parameters * F32 / batch),
            _ if traffic.is_streamed => (traffic.pushed / batch, traffic.pulled / batch),
            Mode::Hybrid | Mode::Sync => (0.0, 0.0),
        };
        Ok(Self {
            batch,
            staleness: job.train.staleness as f64,
            mode: job.train.mode,
            precision: job.train.precision,
            format: job.data.format.clone(),
            bytes: data.bytes,
            ids: data.ids.iter().sum(),
            id_values,
            bytes_up: 2.0 * rows * ID_BYTES + values * value + up,
            bytes_down: values * value + down,
            tables,
            dense,
            traffic,
        })
    }

    pub fn distinct_rows(&self) -> f64 {
        self.tables.iter().map(|table| table.distinct).sum()
    }

    /// Bytes that a worker sends in one all-reduce of `workers`, for each sample of its batch: a ring.
    pub fn reduce_bytes(&self, workers: f64) -> f64 {
        if workers < 2.0 || self.mode == Mode::Async || self.traffic.is_streamed {
            return 0.0;
        }
        2.0 * (workers - 1.0) / workers * self.dense.parameters * F32 / self.batch
    }
}

/// Values of a cell that holds any number of them, where nothing is known.
const VALUES_OF_A_LIST: f64 = 4.0;
/// Distinct rows for each id of a batch where nothing is known: ids by Zipf's law, 26 columns, a batch of 4,096.
pub(crate) const DISTINCT_SHARE: f64 = 0.225;
/// Bytes of a cell of text where nothing is known.
pub(crate) const CELL_BYTES: f64 = 6.0;

/// The mean sample of a job's data.
#[derive(Clone, Debug, PartialEq)]
pub struct DataShape {
    /// Bytes on disk.
    pub bytes: f64,
    pub ids: Vec<f64>,
    /// Rows of each table that a batch of the job looks up, for each of its samples.
    pub distinct: Vec<f64>,
    /// Samples of one epoch over the data, if that is known.
    pub samples: Option<u64>,
    /// Rows of all tables, if that is known.
    pub rows: Option<u64>,
    /// Whether the figures were measured on the first rows.
    pub is_measured: bool,
}

impl DataShape {
    /// What holds for a job where nothing is known of its data.
    pub fn from_job(job: &Job) -> Self {
        let ids = |values: &Values| match values {
            Values::One => 1.0,
            Values::Many { .. } => VALUES_OF_A_LIST,
            Values::Sequence { sequence, .. } => sequence.length as f64,
        };
        let features = &job.features.categorical;
        let mut distinct = vec![0.0; job.tables.len()];
        for feature in features {
            distinct[feature.table] += ids(&feature.values) * DISTINCT_SHARE;
        }
        let ids: Vec<f64> = features.iter().map(|feature| ids(&feature.values)).collect();
        let cells = 1.0 + job.features.numeric.len() as f64 + ids.iter().sum::<f64>();
        Self { bytes: cells * CELL_BYTES, ids, distinct, samples: None, rows: None, is_measured: false }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::Overrides;

    use super::*;

    fn work(sets: &[&str]) -> SampleWork {
        let text =
            "[data]\nformat = 'criteo'\ntrain = 'a'\n[embedding]\ndim = 16\n[model]\nkind = 'ffnn'\nhidden = [8]\n";
        let job = Job::parse(text, Path::new("job.toml"), &Overrides::sets(sets.iter().copied())).unwrap();
        let mut data = DataShape::from_job(&job);
        data.distinct = vec![0.25; 26];
        SampleWork::new(&job, &data).unwrap()
    }

    #[test]
    fn bytes_are_those_of_distinct_rows_each_way() {
        let exact = work(&[]);
        let rows = 26.0 * 0.25;
        assert_eq!((exact.distinct_rows(), exact.ids, exact.id_values), (rows, 26.0, 26.0 * 16.0));
        assert_eq!((exact.bytes_down, exact.bytes_up), (rows * 64.0, rows * (16.0 + 64.0)));
        assert_eq!(work(&["cluster.wire=f16"]).bytes_down, rows * 32.0);
        // Adagrad keeps as many values of state as of weights, Adam twice as many, and a count of steps for the two.
        assert_eq!(exact.tables[0].push_dim, 16.0);
        assert_eq!(work(&["embedding.optimizer={kind='adam'}"]).tables[0].push_dim, 25.0);
    }

    #[test]
    fn workers_send_their_gradients_around_a_ring_unless_they_are_asynchronous() {
        let several = work(&["cluster.workers=2", "train.batch_size=100"]);
        let of_two = several.dense.parameters * 4.0 / 100.0;
        assert_eq!((several.reduce_bytes(1.0), several.reduce_bytes(2.0)), (0.0, of_two));
        let alone = work(&["train.mode=async", "train.batch_size=100"]);
        assert_eq!(alone.reduce_bytes(2.0), 0.0);
        assert!(alone.bytes_down > work(&["train.batch_size=100"]).bytes_down);
    }

    #[test]
    fn streamed_weights_come_twice_and_their_gradients_go_once() {
        let streamed = work(&["train.weights=streamed", "train.batch_size=100"]);
        let (weights, last) = (429.0 * 8.0 + 8.0 + 9.0, 8.0);
        assert_eq!((streamed.traffic.pulled, streamed.traffic.pushed), (4.0 * (2.0 * weights - last), 4.0 * weights));
        let resident = work(&["train.batch_size=100"]);
        assert!(!resident.traffic.is_streamed && resident.traffic.step_bytes() == streamed.traffic.step_bytes());
        let more = |of: fn(&SampleWork) -> f64| (100.0 * (of(&streamed) - of(&resident))).round();
        assert_eq!(more(|work| work.bytes_down), streamed.traffic.pulled);
        assert_eq!(more(|work| work.bytes_up), streamed.traffic.pushed);
        let half = work(&["train.weights=streamed", "cluster.wire=bf16"]);
        assert_eq!(half.traffic.step_bytes(), streamed.traffic.step_bytes() / 2.0);
        // The servers run the optimiser, so workers add nothing up among themselves.
        assert_eq!((streamed.reduce_bytes(2.0), resident.reduce_bytes(2.0)), (0.0, 4.0 * weights / 100.0));
    }

    #[test]
    fn a_list_and_a_sequence_have_more_ids_than_a_cell_of_one() {
        let text = "[data]\nformat = 'criteo'\ntrain = 'a'\n[features]\ncategorical = ['C1', { column = 'C2', separator = ',' }, \
                    { column = 'C3', table = 'C1', separator = '|', sequence = { length = 9 } }]\n[model]\nkind = 'din'";
        let job = Job::parse(text, Path::new("job.toml"), &Overrides::none()).unwrap();
        let shape = DataShape::from_job(&job);
        assert_eq!(shape.ids, [1.0, VALUES_OF_A_LIST, 9.0]);
        // The first and the last feature read one table.
        assert_eq!(shape.distinct, [10.0 * DISTINCT_SHARE, VALUES_OF_A_LIST * DISTINCT_SHARE]);
        assert!(!shape.is_measured && shape.bytes > 0.0);
    }

    fn network_work(network: &str) -> DenseWork {
        let text = format!(
            "[data]\nformat = 'criteo'\ntrain = 'a'\n[embedding]\ndim = 4\n[train]\nthreads = 1\n[model]\n{network}\n"
        );
        DenseWork::from_job(&Job::parse(&text, Path::new("job.toml"), &Overrides::none()).unwrap()).unwrap()
    }

    #[test]
    fn the_products_and_pairs_are_all_of_the_arithmetic() {
        let networks = [
            "kind = 'dlrm'\nbottom = [64]\ntop = [64]",
            "kind = 'ffnn'\nhidden = [64, 32]",
            "kind = 'dcnv2'\nhidden = [64]\nstructure = 'parallel'\nrank = 5",
            "kind = 'deepfm'\nhidden = [64]",
            "kind = 'wukong'\nlayers = 2\nfmb = 6\nlcb = 6\nrank = 8\nfmb_hidden = [64]\nbottom = [64]\ntop = [64]",
            "kind = 'finalmlp'\nfirst = [64, 8]\nsecond = [64, 8]\nheads = 8",
        ];
        for network in networks {
            let work = network_work(network);
            let products: f64 = work.products.iter().map(MatrixProduct::flop).sum();
            let flop = products + 6.0 * work.pair_values;
            assert!((flop / work.flop - 1.0).abs() < 1e-9, "{network}: {flop} of {}", work.flop);
            let weights: f64 = work.products.iter().map(MatrixProduct::weight_count).sum();
            assert!((0.8..1.0).contains(&(weights / work.parameters)), "{network}: {weights} of {}", work.parameters);
        }
    }

    #[test]
    fn a_layer_is_a_product_of_its_inputs_and_outputs() {
        let ffnn = network_work("kind = 'ffnn'\nhidden = [8]");
        // 13 numbers and 26 vectors of 4.
        let product = |read, write| MatrixProduct { read, write, times: 1.0 };
        assert_eq!(ffnn.products, [product(117.0, 8.0), product(8.0, 1.0)]);
        assert!(!ffnn.by_autograd && network_work("kind = 'wukong'").by_autograd);
        assert_eq!(ffnn.loop_values, 0.0);
        assert_eq!(network_work("kind = 'dcnv2'\ncross_layers = 2").loop_values, 6.0 * 117.0);
    }
}
