//! What `zagros models` shows: each network at each size of the ladder, with its weights, memory and work.

use std::path::Path;

use indicatif::HumanBytes;
use serde::Serialize;
use zagros_job::threads::Machine;
use zagros_job::{Job, JobErrors, LADDER, Model, ModelSize, Overrides};
use zagros_planner::{Calibration, DataShape};
use zagros_plumbing::memory::MemoryLimit;
use zagros_shell::{CommandReport, Exit, Failure, ReportTable, read_named_file};

use crate::args::ModelsArgs;
use crate::memory::{MemoryNeed, with_streamed_weights};
use crate::planning;

/// The input without a job.
const CRITEO: &str = "[data]\nformat = 'criteo'\ntrain = 'criteo'\n";
/// The sequence that `din` and `bst` read there.
const SEQUENCE: &str = "[features]\ncategorical = ['C1', 'C2', { column = 'C3', table = 'C2', separator = '|', sequence = { length = 50 } }]\n";

#[derive(Debug, Serialize)]
pub(crate) struct ModelTable {
    pub(crate) input: String,
    pub(crate) batch_size: usize,
    /// Bytes that this process may have; none where the system does not say.
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) networks: Vec<NetworkRows>,
}

#[derive(Debug, Serialize)]
pub(crate) struct NetworkRows {
    pub(crate) kind: &'static str,
    pub(crate) about: &'static str,
    pub(crate) sizes: Vec<SizeRow>,
    pub(crate) refused: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct SizeRow {
    pub(crate) size: String,
    pub(crate) weights: u64,
    /// Width of the first hidden layer.
    pub(crate) width: u64,
    /// Peak of `zagros train`, without rows.
    pub(crate) resident_bytes: u64,
    pub(crate) fits: bool,
    /// Peak of a dense worker with streamed weights, whose servers are other processes; none where the job's weights cannot be streamed.
    pub(crate) streamed_worker_bytes: Option<u64>,
    /// Its weights and their optimiser state at the servers.
    pub(crate) streamed_store_bytes: Option<u64>,
    /// Of a training step, for each sample.
    pub(crate) flop_per_sample: u64,
    /// With all stages.
    pub(crate) samples_per_second: f64,
}

impl ModelTable {
    pub(crate) fn new(
        args: &ModelsArgs,
        calibration: &Calibration,
        limit: Option<MemoryLimit>,
    ) -> Result<Self, Failure> {
        let is_wanted =
            |(kind, _): &(&str, &str)| args.kinds.is_empty() || args.kinds.iter().any(|wanted| wanted == kind);
        let text = args.job.as_deref().map(read_named_file).transpose()?;
        let source = JobSource { path: args.job.as_deref(), text: text.as_deref(), sets: &args.sets };
        // What is wrong with the job itself shows at once.
        let job = source.parse(None).map_err(|errors| Failure::new(Exit::Usage, errors))?;
        let input = match source.path {
            Some(path) => format!("the features of {}", path.display()),
            None => "Criteo's 13 numbers and 26 categories of dim 16 (din, bst: 2 and a sequence of 50)".to_owned(),
        };
        let memory_bytes = limit.map(|limit| limit.bytes);
        let network = |(kind, about): (&'static str, &'static str)| {
            let rows = LADDER.iter().map(|size| source.row(kind, &size.to_string(), calibration, memory_bytes));
            let (sizes, refused): (Vec<_>, Vec<_>) = rows.partition(Result::is_ok);
            let refused = refused.into_iter().find_map(Result::err);
            NetworkRows { kind, about, sizes: sizes.into_iter().flatten().collect(), refused }
        };
        let networks = Model::NETWORKS.into_iter().filter(is_wanted).map(network).collect();
        Ok(Self { input, batch_size: job.train.batch_size, memory_bytes, networks })
    }

    pub(crate) fn report(&self) -> CommandReport {
        let mut report = CommandReport::default();
        report.add_lead(&format!("input: {}", self.input));
        for NetworkRows { kind, about, sizes, refused } in &self.networks {
            let head = ["size", "weights", "width", "resident", "streamed", "store", "FLOP/sample", "samples/s"];
            let table = ReportTable::new(&head, sizes.iter().map(SizeRow::cells).collect());
            report.add_title(&format!("{kind}: {about}")).add_table(table);
            if let Some(why) = refused {
                report.add_note(&format!("  not here: {why}"));
            }
        }
        let memory = self.memory_bytes.map_or_else(
            || "memory is unknown here".to_owned(),
            |bytes| format!("this machine has {}, * is beyond it", HumanBytes(bytes)),
        );
        let batch = self.batch_size;
        report.add_title("Columns").add_facts(vec![
            ("resident", format!("peak memory of `zagros train` without embedding rows, batch {batch}; {memory}")),
            ("streamed", "peak memory of a worker with two layers at a time, and the store of all weights".to_owned()),
            ("samples/s", "as `zagros plan` forecasts; `zagros calibrate` measures this machine for it".to_owned()),
            ("set", "[model] size = \"13m\", or --size 13m (docs/how-to/size.md)".to_owned()),
        ]);
        report
    }
}

impl SizeRow {
    fn cells(&self) -> Vec<String> {
        let bytes = |bytes: u64| HumanBytes(bytes).to_string();
        let streamed = |of_part: Option<u64>| of_part.map_or_else(|| "-".to_owned(), bytes);
        vec![
            self.size.clone(),
            ModelSize(self.weights).to_string(),
            self.width.to_string(),
            format!("{}{}", bytes(self.resident_bytes), if self.fits { " " } else { "*" }),
            // Nothing where the job's weights cannot be streamed.
            streamed(self.streamed_worker_bytes),
            streamed(self.streamed_store_bytes),
            planning::short_number(self.flop_per_sample as f64),
            match self.samples_per_second {
                rate if rate < 10.0 => format!("{rate:.3}"),
                rate => planning::count(rate),
            },
        ]
    }
}

/// Where the features are from.
#[derive(Clone, Copy)]
struct JobSource<'a> {
    path: Option<&'a Path>,
    text: Option<&'a str>,
    sets: &'a [String],
}

impl JobSource<'_> {
    fn parse(&self, model: Option<(&str, &str)>) -> Result<Job, JobErrors> {
        let reads_sequence = matches!(model, Some(("din" | "bst", _)));
        let own = format!("{CRITEO}{}", if reads_sequence { SEQUENCE } else { "" });
        // The table replaces that of the job, so its widths are gone.
        let network = model.map(|(kind, size)| format!("model={{ kind = '{kind}', size = '{size}' }}"));
        let sets = self.sets.iter().cloned().chain(network).collect();
        let overrides = Overrides::new(sets, std::env::vars_os());
        let path = self.path.unwrap_or(Path::new("criteo.toml"));
        Job::parse(self.text.unwrap_or(&own), path, &overrides)
    }

    fn row(&self, kind: &str, size: &str, calibration: &Calibration, memory: Option<u64>) -> Result<SizeRow, String> {
        let job = self.parse(Some((kind, size))).map_err(|errors| {
            errors.problems().first().map_or_else(String::new, |problem| problem.message().to_owned())
        })?;
        let none = || "it has no layout".to_owned();
        let layout = job.dense_layout().ok_or_else(none)?;
        let streamed = with_streamed_weights(&job);
        let store = streamed.as_ref().and_then(Job::streamed_footprint).map(|footprint| footprint.store);
        let resident_bytes = MemoryNeed::new(&job, &Machine::this()).usual_peak();
        let machines = planning::this_machine(&job, &Machine::this());
        let forecast = planning::forecast(&job, &DataShape::from_job(&job), calibration, &machines);
        Ok(SizeRow {
            size: size.to_owned(),
            weights: layout.parameter_count(),
            width: job.model.main_width().unwrap_or(0),
            resident_bytes,
            fits: memory.is_none_or(|memory| resident_bytes <= memory),
            streamed_worker_bytes: streamed.map(|job| MemoryNeed::of_worker(&job).usual_peak()),
            streamed_store_bytes: store,
            flop_per_sample: layout.step_flop(),
            samples_per_second: forecast.map_err(|failure| format!("{failure:?}"))?.samples_per_second(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(kinds: &[&str]) -> ModelsArgs {
        let kinds = kinds.iter().map(|kind| (*kind).to_owned()).collect();
        ModelsArgs { job: None, sets: Vec::new(), kinds, json: false }
    }

    #[test]
    fn every_network_is_shown_at_every_size() {
        let table = ModelTable::new(&args(&[]), &Calibration::default(), None).unwrap();
        assert_eq!(table.networks.len(), 12);
        for NetworkRows { kind, sizes, refused, .. } in &table.networks {
            assert_eq!((sizes.len(), refused), (LADDER.len(), &None), "{kind}");
            assert!(sizes.is_sorted_by(|one, other| one.weights < other.weights && one.resident_bytes < other.resident_bytes));
            for row in sizes {
                // Six for each weight that is multiplied once.
                assert!(row.flop_per_sample as f64 > 5.0 * row.weights as f64, "{kind} {}", row.size);
                assert_eq!(row.streamed_store_bytes, Some(12 * row.weights), "{kind}");
                assert!(row.streamed_worker_bytes.is_some(), "{kind}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_marked() {
        let limit = MemoryLimit { bytes: 8 << 30, bound: zagros_plumbing::memory::MemoryBound::Machine };
        let table = ModelTable::new(&args(&["ffnn"]), &Calibration::default(), Some(limit)).unwrap();
        let fits: Vec<bool> = table.networks[0].sizes.iter().map(|row| row.fits).collect();
        assert_eq!(fits, [true, true, true, true, true, false, false, false]);
    }
}
