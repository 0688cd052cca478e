//! How fast a machine is, in the units of the cost model. `zagros calibrate` measures it and writes it as a TOML file.
//!
//! Every time is of one core, unless its name says otherwise. ns are nanoseconds.

use serde::{Deserialize, Serialize};

use crate::PlannerError;

/// The speed of a machine's core, memory, disk and loopback network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Where the figures come from, in words.
    pub source: String,
    pub processor: String,
    pub cores: u32,
    /// Bytes copied each second by all cores together.
    pub memory_bytes_per_second: f64,
    pub dense: DenseRates,
    /// Rows of embeddings, by their dim, the smallest first.
    pub rows: Vec<RowCost>,
    /// Ids and vectors in a dense worker.
    pub ids: IdCosts,
    /// What each step and each sample costs beside all other stages.
    pub step: StepCosts,
    pub wire: WireCosts,
    pub parse: ParseRates,
    pub disk: DiskRates,
    /// Rows on it.
    pub cold: ColdRates,
}

/// The dense network's forward and backward step and its update, as one thread makes them in f32.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenseRates {
    /// Products with square matrices, the narrowest first.
    pub products: Vec<ProductRate>,
    /// ns for each value of an elementwise loop beside the layers, such as those of cross layers, forward and backward.
    pub value_ns: f64,
    /// ns for each weight and step, whatever the batch: the weights' way into the products, and Adam's update.
    pub weight_ns: f64,
    /// ns for each multiplication of values with values, forward and backward.
    pub pair_ns: f64,
    /// How many times longer a step takes within a training than alone: the caches then hold rows and batches too.
    pub in_training: f64,
    /// How many times longer a step takes through libtorch's autograd.
    pub autograd: f64,
    /// How many times faster the products are in bf16; 1 or less on a processor without units for it.
    pub bf16: f64,
    pub threads: Vec<ThreadSpeedup>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProductRate {
    /// Rows and columns.
    pub width: f64,
    /// 10⁹ additions and multiplications each second.
    pub gflops: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadSpeedup {
    pub threads: f64,
    /// Times as fast as one thread.
    pub speedup: f64,
}

/// ns of CPU for a distinct row of one dim, with Adagrad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowCost {
    /// Values of the row.
    pub dim: f64,
    /// Looked up in this process.
    pub lookup: f64,
    /// Updated in this process.
    pub push: f64,
    /// Looked up in another process: the dense worker's part, with the wire.
    pub client_lookup: f64,
    /// As `client_lookup`, updated.
    pub client_push: f64,
    /// Looked up in another process: the server's part, with the wire.
    pub server_lookup: f64,
    /// As `server_lookup`, updated.
    pub server_push: f64,
}

/// ns of CPU for ids and their vectors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdCosts {
    /// To find the distinct ids, for each id of a batch.
    pub dedup: f64,
    /// To copy a row into the network's input and add its gradient up, for each id.
    pub move_id: f64,
    /// The same for each value of a row.
    pub move_value: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepCosts {
    /// ns for each sample: measures of the training rows.
    pub sample: f64,
    /// ns for each step: messages between threads.
    pub step: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WireCosts {
    /// Bytes each second through one connection of plain sockets.
    pub bytes_per_second: f64,
    /// ns of CPU for each byte through plain sockets, both ends together.
    pub cpu_ns_per_byte: f64,
    /// µs from a small request of our own gRPC to its answer.
    pub round_trip_us: f64,
    /// ns of CPU of a dense worker for the two requests of a step, to a lookup and a push, beside what their rows take.
    pub client_step: f64,
    /// The same of the server.
    pub server_step: f64,
}

/// Bytes that one core parses each second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParseRates {
    /// `format = "criteo"`.
    pub criteo: f64,
    /// `format = "delimited"`.
    pub delimited: f64,
    pub json_lines: f64,
    /// Parquet and Arrow files, by their bytes on disk.
    pub parquet: f64,
}

/// The disk of the temporary folder, through the file system.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskRates {
    /// Bytes written and flushed each second.
    pub write_bytes_per_second: f64,
    /// Bytes read each second, after the system was asked to forget them.
    pub read_bytes_per_second: f64,
    /// ms to make a small write durable.
    pub flush_ms: f64,
}

/// Rows on the disk of the temporary folder, read as an embedding server reads those that are not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColdRates {
    /// ns of CPU for a row that is read, and for one that leaves memory for it, together.
    pub row_ns: f64,
    /// Rows at random places read each second, many at a time, after the system was asked to forget them.
    pub reads_per_second: f64,
}

impl Calibration {
    /// From the text of a file that `zagros calibrate` wrote.
    pub fn from_toml(text: &str) -> Result<Self, PlannerError> {
        let form = |reason: String| PlannerError::form("the calibration cannot be read", &reason);
        let read: Self = toml::from_str(text).map_err(|error| form(error.to_string()))?;
        let value: toml::Value = toml::from_str(text).map_err(|error| form(error.to_string()))?;
        match first_bad(&value, "") {
            Some(key) => Err(form(format!("`{key}` is not a number from 0; run `zagros calibrate` again"))),
            None if read.rows.is_empty() || read.dense.products.is_empty() || read.dense.threads.is_empty() => Err(
                form("`rows`, `dense.products` or `dense.threads` is empty; run `zagros calibrate` again".to_owned()),
            ),
            None => Ok(read),
        }
    }

    pub fn to_toml(&self) -> String {
        // Numbers and texts alone always have a form.
        toml::to_string_pretty(self).unwrap_or_default()
    }

    /// The cost of a row of `dim` values, between and beyond the measured dims in a straight line.
    pub fn row_cost(&self, dim: f64) -> RowCost {
        let fit_at = |cost: fn(&RowCost) -> f64| line(self.rows.iter().map(|row| (row.dim, cost(row))), dim);
        RowCost {
            dim,
            lookup: fit_at(|row| row.lookup),
            push: fit_at(|row| row.push),
            client_lookup: fit_at(|row| row.client_lookup),
            client_push: fit_at(|row| row.client_push),
            server_lookup: fit_at(|row| row.server_lookup),
            server_push: fit_at(|row| row.server_push),
        }
    }
}

impl DenseRates {
    /// Additions and multiplications each ns of one thread, for a matrix of these sides: that of a square with as many weights.
    pub fn product_gflops(&self, read: f64, write: f64) -> f64 {
        let width = (read * write).sqrt().max(1.0).log2();
        let points = self.products.iter().map(|rate| (rate.width.max(1.0).log2(), rate.gflops));
        clamped_line(points, width).max(f64::MIN_POSITIVE)
    }

    /// How many times faster `threads` make a step than one; beyond the measured numbers, with the last measured share of each thread.
    pub fn thread_speedup(&self, threads: f64) -> f64 {
        let points = [(1.0, 1.0)].into_iter().chain(self.threads.iter().map(|point| (point.threads, point.speedup)));
        let most = self.threads.iter().fold((1.0, 1.0), |most: (f64, f64), point| {
            if point.threads > most.0 { (point.threads, point.speedup) } else { most }
        });
        if threads > most.0 { most.1 / most.0 * threads } else { clamped_line(points, threads) }.max(1.0)
    }
}

/// The first number below 0 or not finite, by its key.
fn first_bad(value: &toml::Value, key: &str) -> Option<String> {
    let below = |name: &str| if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
    match value {
        toml::Value::Float(number) if !number.is_finite() || *number < 0.0 => Some(key.to_owned()),
        toml::Value::Integer(number) if *number < 0 => Some(key.to_owned()),
        toml::Value::Table(table) => table.iter().find_map(|(name, value)| first_bad(value, &below(name))),
        toml::Value::Array(items) => items.iter().find_map(|value| first_bad(value, key)),
        _ => None,
    }
}

/// The height at `at` of the line through the two neighbours among `points`, which are in order; beyond them too. Never below 0.
fn line(points: impl Iterator<Item = (f64, f64)>, at: f64) -> f64 {
    let points: Vec<_> = points.collect();
    let next = points.partition_point(|(x, _)| *x < at).clamp(1, points.len().max(2) - 1);
    match (points.get(next - 1), points.get(next)) {
        (Some((x0, y0)), Some((x1, y1))) => (y0 + (y1 - y0) * (at - x0) / (x1 - x0)).max(0.0),
        // One point: in proportion.
        (Some((x, y)), None) => y * at / x.max(f64::MIN_POSITIVE),
        _ => 0.0,
    }
}

/// As [`line`], but as high as the first or last point beyond them.
fn clamped_line(points: impl Iterator<Item = (f64, f64)>, at: f64) -> f64 {
    let points: Vec<_> = points.collect();
    match (points.first(), points.last()) {
        (Some(first), _) if at <= first.0 => first.1,
        (_, Some(last)) if at >= last.0 => last.1,
        _ => line(points.into_iter(), at),
    }
}

/// The speed of a machine that was not calibrated: that of one on which `zagros calibrate` was run, with its name.
impl Default for Calibration {
    fn default() -> Self {
        Self::from_toml(include_str!("calibration/default.toml")).expect("a test reads it")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_calibration_loads_again_equal_and_a_bad_one_says_which_figure() {
        let written = Calibration::default();
        assert_eq!(Calibration::from_toml(&written.to_toml()).unwrap(), written);
        let refused = |text: &str| Calibration::from_toml(text).unwrap_err().to_string();
        let text = written.to_toml();
        let negative = text.replacen("value_ns = ", "value_ns = -", 1);
        assert!(refused(&negative).contains("`dense.value_ns` is not a number from 0"), "{}", refused(&negative));
        assert!(refused(&text.replacen("value_ns", "valuens", 1)).contains("valuens"));
        let empty = Calibration { rows: Vec::new(), ..written };
        assert!(refused(&empty.to_toml()).contains("is empty"));
    }

    #[test]
    fn figures_between_measured_points_are_on_a_line() {
        let rate = |width, gflops| ProductRate { width, gflops };
        let dense = DenseRates {
            products: vec![rate(16.0, 10.0), rate(64.0, 30.0)],
            threads: vec![ThreadSpeedup { threads: 4.0, speedup: 3.0 }],
            ..Calibration::default().dense
        };
        let rates = [1.0, 16.0, 32.0, 64.0, 4096.0].map(|side| dense.product_gflops(side, side));
        assert_eq!(rates, [10.0, 10.0, 20.0, 30.0, 30.0]);
        assert_eq!(dense.product_gflops(8.0, 128.0), 20.0);
        assert_eq!([1.0, 4.0, 8.0].map(|threads| dense.thread_speedup(threads)), [1.0, 3.0, 6.0]);
        let row = |dim, lookup| RowCost { dim, lookup, ..Calibration::default().rows[0] };
        let two = Calibration { rows: vec![row(16.0, 100.0), row(64.0, 200.0)], ..Calibration::default() };
        assert_eq!([16.0, 40.0, 112.0].map(|dim| two.row_cost(dim).lookup), [100.0, 150.0, 300.0]);
        let one = Calibration { rows: vec![row(16.0, 100.0)], ..Calibration::default() };
        assert_eq!(one.row_cost(32.0).lookup, 200.0);
    }

    proptest! {
        #[test]
        fn no_figure_is_negative_or_undefined(dim in 1.0..1e5_f64, read in 1.0..1e6_f64, write in 1.0..1e6_f64, threads in 1.0..1e3_f64) {
            let calibration = Calibration::default();
            let row = calibration.row_cost(dim);
            for cost in [row.lookup, row.push, row.client_lookup, row.client_push, row.server_lookup, row.server_push] {
                prop_assert!(cost.is_finite() && cost >= 0.0);
            }
            prop_assert!(calibration.dense.product_gflops(read, write) > 0.0);
            prop_assert!(calibration.dense.thread_speedup(threads) >= 1.0);
        }
    }
}
