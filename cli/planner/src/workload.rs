//! The table `[workload]`: what is trained, described without a job file.

use serde::Deserialize;
use zagros_job::{Format, Mode, Precision};

use crate::error::{PlannerError, check_ranges};
use crate::work::{CELL_BYTES, DISTINCT_SHARE, ID_BYTES};
use crate::{DenseWork, MatrixProduct, SampleWork, TableWork, WeightTraffic};

const PLACE: &str = "[workload]";
/// Bytes of a row's place in a server's index.
const INDEX_BYTES: f64 = 24.0;
/// Bytes of a streamed weight, with Adam's two moments.
const TILE_BYTES: f64 = 12.0;

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Workload {
    /// Weights of all embedding rows, 10⁶ to 10¹⁴ and beyond.
    pub parameters: f64,
    /// Values of a row. Default: 16.
    pub dim: f64,
    /// Values of optimiser state for each weight of a row. Default: 1, as of Adagrad.
    pub optimizer_values: f64,
    /// Ids of a sample. Default: 26.
    pub ids: f64,
    /// Distinct rows of a batch, for each of its samples. Default: 0.225 for each id.
    pub distinct: Option<f64>,
    /// Numbers of a sample. Default: 13.
    pub numeric: f64,
    /// Widths of the hidden layers of the network, which reads the rows of all ids and the numbers.
    pub hidden: Vec<f64>,
    /// Samples of a worker's step. Default: 4,096.
    pub batch_size: u64,
    /// `hybrid`, `sync` or `async`. Default: `hybrid`.
    pub mode: Mode,
    /// Batches that may be unacknowledged at a lookup. Default: 4.
    pub staleness: u64,
    /// Bytes of a value on the wire: 4 or 2. Default: 4.
    pub wire_bytes: f64,
    /// Bytes of a sample on disk. Default: 6 for each number and id.
    pub sample_bytes: Option<f64>,
    /// Where the weights of the network are: `resident` in each worker, or `streamed` from the servers. Default: `resident`.
    pub weights: WorkloadWeights,
}

/// `train.weights`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkloadWeights {
    /// Each worker has them.
    #[default]
    Resident,
    /// The servers have them, with two values of optimiser state each, as of Adam. Workers pull and push them in each step.
    Streamed,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            parameters: 0.0,
            dim: 16.0,
            optimizer_values: 1.0,
            ids: 26.0,
            distinct: None,
            numeric: 13.0,
            hidden: Vec::new(),
            batch_size: 4096,
            mode: Mode::Hybrid,
            staleness: 4,
            wire_bytes: 4.0,
            sample_bytes: None,
            weights: WorkloadWeights::Resident,
        }
    }
}

impl Workload {
    pub(crate) fn checked(self) -> Result<Self, PlannerError> {
        const ABOVE: &str = "is not above 0";
        const LEAST: f64 = f64::MIN_POSITIVE;
        const MOST: f64 = 1e18;
        let (distinct, bytes) = (self.distinct.unwrap_or(self.ids), self.sample_bytes.unwrap_or(1.0));
        let narrowest = self.hidden.iter().copied().fold(MOST, f64::min);
        let bad = |key, value: &str, why| Err(PlannerError::value(PLACE, key, value, why));
        if self.hidden.is_empty() {
            return bad("hidden", "[]", "has no layer");
        }
        check_ranges(
            PLACE,
            &[
                ("parameters", self.parameters, LEAST..=MOST, ABOVE),
                ("dim", self.dim, LEAST..=MOST, ABOVE),
                ("ids", self.ids, LEAST..=MOST, ABOVE),
                ("batch_size", self.batch_size as f64, LEAST..=MOST, ABOVE),
                ("sample_bytes", bytes, LEAST..=MOST, ABOVE),
                ("hidden", narrowest, LEAST..=MOST, ABOVE),
                ("numeric", self.numeric, 0.0..=1e6, "is below 0 or too large"),
                ("optimizer_values", self.optimizer_values, 0.0..=1e6, "is below 0 or too large"),
                ("distinct", distinct, LEAST..=self.ids, "is not above 0, or more than the ids of a sample"),
            ],
        )?;
        if self.weights == WorkloadWeights::Streamed && self.mode == Mode::Async {
            return bad("weights", "streamed", "is not of mode async");
        }
        if ![2.0, 4.0].contains(&self.wire_bytes) {
            return bad("wire_bytes", &self.wire_bytes.to_string(), "is neither 2 nor 4");
        }
        Ok(self)
    }

    pub(crate) fn sample_work(&self) -> SampleWork {
        let dense = self.dense();
        let distinct = self.distinct.unwrap_or(self.ids * DISTINCT_SHARE);
        let batch = self.batch_size as f64;
        let weights = if self.mode == Mode::Async { dense.parameters * 4.0 / batch } else { 0.0 };
        let traffic = WeightTraffic::new(&dense, self.wire_bytes, self.weights == WorkloadWeights::Streamed);
        let [up, down] = if traffic.is_streamed { [traffic.pushed, traffic.pulled] } else { [batch * weights; 2] };
        let values = distinct * self.dim * self.wire_bytes;
        let push_dim = self.dim * (1.0 + self.optimizer_values) / 2.0;
        SampleWork {
            batch,
            staleness: if self.mode == Mode::Sync { 0.0 } else { self.staleness as f64 },
            mode: self.mode,
            precision: Precision::F32,
            format: Format::Criteo,
            bytes: self.sample_bytes.unwrap_or((1.0 + self.numeric + self.ids) * CELL_BYTES),
            ids: self.ids,
            id_values: self.ids * self.dim,
            bytes_up: 2.0 * distinct * ID_BYTES + values + up / batch,
            bytes_down: values + down / batch,
            tables: vec![TableWork { dim: self.dim, push_dim, distinct }],
            traffic,
            dense,
        }
    }

    /// Bytes of all rows in the servers' memory, with optimiser state and index, and of streamed weights.
    pub(crate) fn row_bytes(&self) -> f64 {
        let rows = self.parameters / self.dim * (4.0 * self.dim * (1.0 + self.optimizer_values) + INDEX_BYTES);
        match self.weights {
            WorkloadWeights::Resident => rows,
            WorkloadWeights::Streamed => rows + self.dense().parameters * TILE_BYTES,
        }
    }

    fn dense(&self) -> DenseWork {
        let mut widths = vec![self.ids * self.dim + self.numeric];
        widths.extend(&self.hidden);
        widths.push(1.0);
        let product = |pair: &[f64]| MatrixProduct { read: pair[0], write: pair[1], times: 1.0 };
        let products: Vec<MatrixProduct> = widths.windows(2).map(product).collect();
        DenseWork {
            parameters: products.iter().map(|product| product.weight_count() + product.write).sum(),
            flop: products.iter().map(MatrixProduct::flop).sum(),
            products,
            ..DenseWork::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(text: &str) -> Workload {
        toml::from_str::<Workload>(text).unwrap().checked().unwrap()
    }

    #[test]
    fn a_described_network_has_its_weights_and_its_bytes() {
        let work = workload(
            "parameters = 1e9\ndim = 16\nids = 2\ndistinct = 1.5\nnumeric = 3\nhidden = [8]\nbatch_size = 100",
        )
        .sample_work();
        assert_eq!(work.dense.parameters, 35.0 * 8.0 + 8.0 + 8.0 + 1.0);
        assert_eq!(work.dense.flop, 6.0 * (35.0 * 8.0 + 8.0));
        assert_eq!((work.bytes_down, work.bytes_up), (1.5 * 64.0, 1.5 * 80.0));
        assert_eq!((work.staleness, work.tables[0].push_dim), (4.0, 16.0));
    }

    #[test]
    fn streamed_weights_are_bytes_of_a_step_and_memory_of_the_servers() {
        let text = "parameters = 1e9\ndim = 16\nids = 2\ndistinct = 1.5\nnumeric = 3\nhidden = [8]\nbatch_size = 100\n";
        let (resident, streamed) = (workload(text), workload(&format!("{text}weights = 'streamed'")));
        let weights = 35.0 * 8.0 + 8.0 + 8.0 + 1.0;
        let last = 8.0;
        let more =
            |of: fn(&SampleWork) -> f64| (100.0 * (of(&streamed.sample_work()) - of(&resident.sample_work()))).round();
        assert_eq!(more(|work| work.bytes_down), 4.0 * (2.0 * weights - last));
        assert_eq!(more(|work| work.bytes_up), 4.0 * weights);
        assert_eq!(streamed.row_bytes() - resident.row_bytes(), 12.0 * weights);
    }

    #[test]
    fn a_hundred_trillion_weights_with_adagrad_are_eight_hundred_terabytes() {
        let bytes = workload("parameters = 1e14\ndim = 128\nhidden = [8]").row_bytes();
        assert!((bytes / 8.2e14 - 1.0).abs() < 0.01, "{bytes}");
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_key() {
        let refused = |text: &str| toml::from_str::<Workload>(text).unwrap().checked().unwrap_err().to_string();
        assert_eq!(refused("parameters = 0\nhidden = [1]"), "[workload] has parameters = 0, which is not above 0");
        assert!(refused("parameters = 1\nhidden = []").contains("has no layer"));
        assert!(refused("parameters = 1\nhidden = [1]\ndistinct = 27").contains("more than the ids"));
        assert!(
            refused("parameters = 1\nhidden = [1]\nmode = 'async'\nweights = 'streamed'").contains("not of mode async")
        );
        assert!(refused("parameters = 1\nhidden = [1]\nwire_bytes = 3").contains("neither 2 nor 4"));
    }
}
