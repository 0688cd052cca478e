//! The workload `crit-zipf` of `zagros-bench` and `zagros calibrate`: its batches, the job that every compared system runs on them, and a training
//! in one process that is measured from outside: wall clock, CPU time of the process, stage counters.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use zagros_dense_worker::{Observer, Worker, WorkerEvent, WorkerInput};
use zagros_ingest::Batch;
use zagros_ingest::synthetic::make_crit_zipf;
use zagros_job::{Job, Overrides};
use zagros_model::Backend;
use zagros_plumbing::metrics::Registry;
use zagros_plumbing::process::cpu_time;
use zagros_shell::launch::EmbeddedCluster;
use zagros_shell::{Exit, Failure, OrFailure};

/// Samples per step of this workload, in every compared system.
pub const BATCH: usize = 4096;
const NUMBERS: usize = 13;
const CATEGORIES: usize = 26;

/// The first `count` batches.
pub fn make_batches(count: usize) -> Vec<Batch> {
    let whole = make_crit_zipf(count * BATCH);
    (0..count).map(|index| part(&whole, index, BATCH)).collect()
}

/// The part with this index of a batch that is cut into parts of `size` samples.
pub(crate) fn part(whole: &Batch, index: usize, size: usize) -> Batch {
    let mut part = whole.empty_like();
    part.append_samples(whole, index * size..(index + 1) * size);
    part
}

/// Writes the first `samples` samples as CSV: `label`, numbers `n0` to `n12`, ids `c0` to `c25`, with a header.
pub fn write_rows(path: &Path, samples: u64) -> Result<(), Failure> {
    let samples = usize::try_from(samples).or_internal()?;
    let made = make_crit_zipf(samples);
    let mut file = BufWriter::new(File::create(path).or_internal()?);
    let names = ["label".to_owned()].into_iter().chain(names("n", NUMBERS)).chain(names("c", CATEGORIES));
    writeln!(file, "{}", names.collect::<Vec<_>>().join(",")).or_internal()?;
    for sample in 0..samples {
        write!(file, "{}", made.labels[sample]).or_internal()?;
        let numbers = &made.numeric[sample * NUMBERS..(sample + 1) * NUMBERS];
        numbers.iter().try_for_each(|value| write!(file, ",{value}")).or_internal()?;
        made.categorical.iter().try_for_each(|feature| write!(file, ",{}", feature.ids[sample])).or_internal()?;
        writeln!(file).or_internal()?;
    }
    file.flush().or_internal()
}

/// The section `[features]` of a job on these rows.
pub fn features_section() -> String {
    let (numeric, categorical) = (names("n", NUMBERS), names("c", CATEGORIES));
    let (numeric, categorical) = (Vec::from_iter(numeric), Vec::from_iter(categorical));
    format!("[features]\nlabel = \"label\"\nnumeric = {numeric:?}\ncategorical = {categorical:?}\n")
}

fn names(letter: &str, count: usize) -> impl Iterator<Item = String> {
    (0..count).map(move |index| format!("{letter}{index}"))
}

/// The text of the job: 13 numbers, 26 tables, Adagrad 0.01 for the rows, Adam 0.001 for the dense network. `model`,
/// `train` and `cluster` are lines of these sections.
pub fn job_text(dim: usize, model: &str, train: &str, cluster: &str) -> String {
    format!(
        r#"
        name = "crit-zipf"
        [data]
        format = "criteo"
        train = "memory"
        [embedding]
        dim = {dim}
        init = {{ kind = "uniform", bound = 0.01 }}
        optimizer = {{ kind = "adagrad", lr = 0.01, epsilon = 1e-10 }}
        [model]
        {model}
        [optimizer]
        kind = "adam"
        lr = 0.001
        [train]
        batch_size = {BATCH}
        {train}
        [cluster]
        {cluster}
        [output]
        save_model = false
        "#
    )
}

/// The text of a job on generated rows, `train.txt`, with 16 values a row. The other texts are lines of these sections.
pub fn generated_job_text(data: &str, model: &str, train: &str, cluster: &str, runs: &Path) -> String {
    format!(
        r#"
        [data]
        format = "criteo"
        train = "train.txt"
        {data}
        [embedding]
        dim = 16
        init = {{ kind = "uniform", bound = 0.01 }}
        optimizer = {{ kind = "adagrad", lr = 0.05 }}
        [model]
        {model}
        [train]
        {train}
        [cluster]
        {cluster}
        [output]
        folder = {runs:?}
        save_model = false
        "#
    )
}

pub fn parse_job(text: &str) -> Result<Job, Failure> {
    let job = Job::parse(text, "the benchmark's job".as_ref(), &Overrides::none());
    job.map_err(|errors| Failure::new(Exit::Usage, errors))
}

/// The middle value; of an even number the mean of the two middle ones.
pub fn middle_value(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (low, high) = ((values.len().max(1) - 1) / 2, values.len() / 2);
    values.get(low).zip(values.get(high)).map_or(f64::NAN, |(low, high)| f64::midpoint(*low, *high))
}

const STAGES: &str = "zagros_worker_stage_seconds_total";

#[derive(Clone, Debug)]
pub struct MeterWindow {
    pub samples: u64,
    pub seconds: f64,
    /// User and system time of all threads of this process.
    pub cpu_seconds: f64,
    pub loss: f64,
    stages: BTreeMap<String, f64>,
}

impl MeterWindow {
    /// Seconds of a stage; 0 for an unknown one.
    pub fn stage_seconds(&self, stage: &str) -> f64 {
        self.stages.get(stage).copied().unwrap_or(0.0)
    }
}

/// Trains on batches from memory, with all roles in this process. Measures from the end of step `warm_up` to the last step.
pub async fn measure_steps(
    backend: Backend,
    job: Job,
    batches: Vec<Batch>,
    warm_up: u64,
) -> Result<MeterWindow, Failure> {
    let EmbeddedCluster { control, connect, registry } = EmbeddedCluster::start(&job).await?;
    let meter = Arc::new(StepMeter::new(registry.clone(), warm_up));
    let worker = Worker { observer: meter.clone(), ..Worker::without_peers(job, backend, control, connect, registry) };
    worker.run_on(WorkerInput::Preloaded(Arc::new(batches))).await.or_internal()?;
    meter.measured_window().ok_or_else(|| {
        let what = format!("no step was counted after {warm_up} to warm up");
        Failure::usage(what, "ask for at least 1 step more than those, such as with --steps")
    })
}

struct StepMeter {
    registry: Registry,
    warm_up: u64,
    readings: Mutex<[Option<MeterReading>; 2]>,
}

/// All counters after a step.
#[derive(Clone, Debug)]
struct MeterReading {
    samples: u64,
    loss: f64,
    at: Instant,
    cpu: Duration,
    stages: BTreeMap<String, f64>,
}

impl StepMeter {
    fn new(registry: Registry, warm_up: u64) -> Self {
        Self { registry, warm_up, readings: Mutex::default() }
    }

    /// `None` if no step followed the warm-up.
    fn measured_window(&self) -> Option<MeterWindow> {
        let readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let [Some(first), Some(last)] = readings else { return None };
        let since = |(stage, seconds): (String, f64)| {
            let first_seconds = first.stages.get(&stage).copied().unwrap_or(0.0);
            (stage, seconds - first_seconds)
        };
        Some(MeterWindow {
            samples: last.samples - first.samples,
            seconds: (last.at - first.at).as_secs_f64(),
            cpu_seconds: (last.cpu - first.cpu).as_secs_f64(),
            loss: last.loss,
            stages: last.stages.into_iter().map(since).collect(),
        })
    }

    fn reading(&self, samples: u64, loss: f64) -> MeterReading {
        MeterReading { samples, loss, at: Instant::now(), cpu: cpu_time(), stages: stages(&self.registry) }
    }
}

impl Observer for StepMeter {
    fn observe(&self, event: &WorkerEvent) {
        let WorkerEvent::Step(report) = event else { return };
        if report.step < self.warm_up {
            return;
        }
        let reading = self.reading(report.samples, report.loss);
        let place = usize::from(report.step > self.warm_up);
        self.readings.lock().unwrap_or_else(PoisonError::into_inner)[place] = Some(reading);
    }
}

fn stages(registry: &Registry) -> BTreeMap<String, f64> {
    let families = registry.gather();
    let counted = families.iter().filter(|family| family.name() == STAGES).flat_map(|family| family.get_metric());
    let named = counted.filter_map(|metric| {
        let stage = metric.get_label().iter().find(|label| label.name() == "stage")?;
        Some((stage.value().to_owned(), metric.get_counter().get_value()))
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use zagros_dense_worker::StepReport;

    use super::*;

    #[test]
    fn the_job_has_a_table_for_each_column_of_a_batch() {
        let job = parse_job(&job_text(8, "kind = \"ffnn\"", "", "servers = 3")).unwrap();
        let tables: Vec<usize> = job.features.categorical.iter().map(|feature| feature.table).collect();
        assert_eq!(tables, Vec::from_iter(0..26));
        assert!(job.tables.iter().all(|table| table.dim == 8) && job.cluster.servers == 3);
        let batch = make_batches(2).remove(1);
        assert_eq!((batch.size, batch.categorical.len()), (BATCH, tables.len()));
    }

    fn step(meter: &StepMeter, step: u64) {
        let report = StepReport { step, samples: step * 10, ..StepReport::default() };
        meter.observe(&WorkerEvent::Step(report));
    }

    #[test]
    fn only_steps_after_the_warm_up_are_counted() {
        let meter = StepMeter::new(Registry::new(), 2);
        step(&meter, 1);
        step(&meter, 2);
        assert!(meter.measured_window().is_none());
        step(&meter, 3);
        step(&meter, 4);
        assert_eq!(meter.measured_window().map(|window| window.samples), Some(20));
    }
}
