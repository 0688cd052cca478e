//! Measures a stretch of training steps in one process from outside: wall clock, CPU time of the process, stage counters.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use zagros_dense_worker::{Observer, Worker, WorkerEvent, WorkerInput};
use zagros_ingest::Batch;
use zagros_job::Job;
use zagros_model::Backend;
use zagros_plumbing::metrics::Registry;
use zagros_plumbing::process::cpu_time;
use zagros_shell::launch::EmbeddedCluster;
use zagros_shell::{Failure, OrFailure};

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

/// Observes a training.
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
