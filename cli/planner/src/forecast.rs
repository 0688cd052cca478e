//! The forecast of a run: all figures that `zagros plan` shows.

use zagros_job::Job;

use crate::PlannerError;
use crate::calibration::Calibration;
use crate::limits::{RateLimits, RoleMemory};
use crate::machines::{MachineGroup, Machines};
use crate::rows_on_disk::RowsOnDisk;
use crate::stages::{RolePlace, StageTimes};
use crate::work::{DataShape, SampleWork};

/// The most workers that a run is thought through for.
const MOST_WORKERS: f64 = 4096.0;
/// A worker pays if it adds at least this share of what the first one made.
const LEAST_GAIN: f64 = 0.5;

#[derive(Clone, Copy, Debug)]
pub struct ForecastInputs<'a> {
    /// The job, with the threads that its processes have.
    pub job: &'a Job,
    pub data: &'a DataShape,
    pub calibration: &'a Calibration,
    pub machines: &'a Machines,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// A sample, whatever the machines.
    pub work: SampleWork,
    pub stages: StageTimes,
    pub limits: RateLimits,
    pub memory: RoleMemory,
    /// The rows on disk; `None` if all of them are in memory, or their number is not known.
    pub rows_on_disk: Option<RowsOnDisk>,
    pub scaling: WorkerScaling,
    /// The smallest batch of a worker at which streamed weights arrive as fast as it uses them: 2·F/b for F operations and b bytes a second,
    /// where the link to the servers bounds them.
    pub streaming_batch: f64,
    /// One epoch over the data; `None` if the number of samples is not known.
    pub epoch: Option<EpochCost>,
}

/// What more workers would do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerScaling {
    /// The most workers of which each adds at least half of what the first one made.
    pub workers: f64,
    pub samples_per_second: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EpochCost {
    pub samples: f64,
    /// Hours of training, without evaluation and checkpoints.
    pub hours: f64,
    /// In the currency of the machines.
    pub money: f64,
}

impl Forecast {
    pub fn new(inputs: ForecastInputs<'_>) -> Result<Self, PlannerError> {
        let ForecastInputs { job, data, calibration, machines } = inputs;
        let work = SampleWork::new(job, data)?;
        let rows_on_disk = RowsOnDisk::estimate(job, data, machines.server_count());
        let run = |machines: &Machines| run(&work, rows_on_disk.as_ref(), calibration, machines);
        let (stages, limits) = run(machines)?;
        let worker = worker_group(machines)?;
        let memory = RoleMemory::new(job, worker.threads.torch, machines.server_count());
        let rate = limits.samples_per_second();
        let epoch = data.samples.map(|samples| {
            let hours = samples as f64 / rate / 3600.0;
            EpochCost { samples: samples as f64, hours, money: hours * machines.hourly_price() }
        });
        let streaming_batch = stages.stream / stages.dense_step.max(f64::MIN_POSITIVE);
        let scaling =
            WorkerScaling::find(machines, |machines| run(machines).map(|(_, limits)| limits.samples_per_second()))?;
        Ok(Self { work, stages, limits, memory, rows_on_disk, scaling, streaming_batch, epoch })
    }

    /// Samples a second of all workers together.
    pub fn samples_per_second(&self) -> f64 {
        self.limits.samples_per_second()
    }

    /// CPU seconds of all processes.
    pub fn cpu_per_sample(&self) -> f64 {
        self.stages.worker_cpu() + self.stages.server_cpu()
    }
}

impl WorkerScaling {
    /// `rate` says how many samples a second machines make.
    fn find(machines: &Machines, rate: impl Fn(&Machines) -> Result<f64, PlannerError>) -> Result<Self, PlannerError> {
        let rate = |workers: f64| rate(&machines.with_workers(workers));
        // One process with all roles has one worker.
        if machines.is_embedded() {
            return Ok(Self { workers: 1.0, samples_per_second: rate(1.0)? });
        }
        let first = rate(1.0)?;
        let mut best = Self { workers: 1.0, samples_per_second: first };
        while best.workers < MOST_WORKERS {
            let next = rate(best.workers + 1.0)?;
            if next - best.samples_per_second < LEAST_GAIN * first {
                break;
            }
            best = Self { workers: best.workers + 1.0, samples_per_second: next };
        }
        Ok(best)
    }
}

fn worker_group(machines: &Machines) -> Result<&MachineGroup, PlannerError> {
    // The slowest decides, because workers step together.
    let with_workers = machines.groups.iter().filter(|group| group.workers > 0.0);
    with_workers.min_by(|a, b| a.core_speed.total_cmp(&b.core_speed)).ok_or(PlannerError::NoRole { role: "worker" })
}

fn run(
    work: &SampleWork,
    rows_on_disk: Option<&RowsOnDisk>,
    calibration: &Calibration,
    machines: &Machines,
) -> Result<(StageTimes, RateLimits), PlannerError> {
    let worker = worker_group(machines)?;
    let with_servers = machines.groups.iter().filter(|group| group.servers > 0.0);
    let server = with_servers.min_by(|a, b| a.core_speed.total_cmp(&b.core_speed)).unwrap_or(worker);
    let (workers, servers) = (machines.worker_count(), machines.server_count());
    let place = RolePlace { calibration, worker, server, workers, servers, rows_on_disk };
    let stages = StageTimes::new(work, place);
    let limits = RateLimits::new(work, &stages, machines);
    Ok((stages, limits))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;
    use zagros_job::Overrides;

    use super::*;
    use crate::limits::RateLimit;
    use crate::stages::PlanStage;

    const JOB: &str = "[data]\nformat = 'criteo'\ntrain = 'a'\n[embedding]\ndim = 16\n[model]\nkind = 'dlrm'\n\
                       bottom = [512, 256]\ntop = [512, 256]\n[train]\nbatch_size = 4096\nthreads = 1\n";

    fn job(sets: &[&str]) -> Job {
        Job::parse(JOB, Path::new("job.toml"), &Overrides::sets(sets.iter().copied())).unwrap()
    }

    fn machines(text: &str) -> Machines {
        Machines::from_toml(text).unwrap()
    }

    const CLUSTER: &str = "[[group]]\nname = 'compute'\ncount = 4\ncores = 16\nmemory = '64GiB'\nworkers = 1\nprice_per_hour = 1.0\n\
                           [[group]]\nname = 'rows'\ncount = 2\ncores = 16\nmemory = '256GiB'\nservers = 1\nprice_per_hour = 2.0\n";

    fn forecast(sets: &[&str], described: &str, change: impl FnOnce(&mut Calibration, &mut DataShape)) -> Forecast {
        let job = job(sets);
        let (mut calibration, mut data) = (Calibration::default(), DataShape::from_job(&job));
        data.samples = Some(36_000_000);
        change(&mut calibration, &mut data);
        let machines = machines(described);
        Forecast::new(ForecastInputs { job: &job, data: &data, calibration: &calibration, machines: &machines })
            .unwrap()
    }

    #[test]
    fn the_slowest_stage_is_the_bottleneck_and_an_epoch_has_its_price() {
        let plan = forecast(&[], CLUSTER, |_, _| ());
        assert_eq!(plan.limits.bottleneck(), Some(&RateLimit::DenseThread));
        let epoch = plan.epoch.unwrap();
        assert!((epoch.hours * 3600.0 * plan.samples_per_second() / 36e6 - 1.0).abs() < 1e-9);
        assert!((epoch.money / epoch.hours - 8.0).abs() < 1e-9);
        let advice = |described: &str| {
            let plan = forecast(&[], described, |_, _| ());
            plan.limits.bottleneck().unwrap().advice(&plan.stages, &machines(described))
        };
        assert!(advice(CLUSTER).starts_with("more train.threads"));
        let device = CLUSTER.replacen("workers = 1", "workers = 1\ngpu = { tflops = 0.05 }", 1);
        assert!(advice(&device).starts_with("a faster device"), "{}", advice(&device));
        let slow_parser = forecast(&[], CLUSTER, |calibration, _| calibration.parse.criteo = 1e6);
        assert_eq!(slow_parser.limits.bottleneck(), Some(&RateLimit::Parsers));
        let slow_rows = forecast(&[], CLUSTER, |calibration, _| slow_push(calibration, 1e6));
        assert_eq!(slow_rows.limits.bottleneck(), Some(&RateLimit::Servers));
        let network = RateLimit::Network { group: "rows".to_owned() };
        for (more, limit) in [("network_gbit = 0.01", network), ("round_trip_us = 1000000", RateLimit::RoundTrips)] {
            assert_eq!(forecast(&[], &of_servers(more), |_, _| ()).limits.bottleneck(), Some(&limit));
        }
    }

    fn slow_push(calibration: &mut Calibration, cost: f64) {
        calibration.rows.iter_mut().for_each(|row| row.server_push = cost);
    }

    /// The cluster, whose machines of servers have one more key.
    fn of_servers(more: &str) -> String {
        CLUSTER.replace("memory = '256GiB'", &format!("memory = '256GiB'\n{more}"))
    }

    const ONE: &str = "[[group]]\nname = 'here'\ncores = 2\nmemory = '8GiB'\nworkers = 1\n";

    #[test]
    fn sync_waits_for_the_servers_and_hybrid_does_not() {
        let slow = of_servers("round_trip_us = 20000");
        let rate = |mode: &str| forecast(&[mode], &slow, |_, _| ()).samples_per_second();
        assert!(rate("train.mode=hybrid") > 1.3 * rate("train.mode=sync"));
    }

    #[test]
    fn one_process_has_all_roles_and_no_bytes_on_a_network() {
        let plan = forecast(&[], ONE, |_, _| ());
        assert_eq!((plan.stages.server_cpu(), plan.scaling.workers), (0.0, 1.0));
        let is_remote = |limit: &RateLimit| matches!(limit, RateLimit::Network { .. } | RateLimit::Servers);
        assert!(!plan.limits.rates.iter().any(|(limit, _)| is_remote(limit)));
        let separate = forecast(&[], &ONE.replace("workers = 1", "workers = 1\nservers = 1"), |_, _| ());
        assert!(separate.cpu_per_sample() > plan.cpu_per_sample());
        assert!(separate.stages.of_stage(PlanStage::ServerApply) > 0.0);
    }

    #[test]
    fn workers_stop_paying_where_the_servers_are_full() {
        let few = forecast(&[], CLUSTER, |calibration, _| slow_push(calibration, 2000.0));
        let many = forecast(&[], CLUSTER, |_, _| ());
        assert!(few.scaling.workers < many.scaling.workers, "{} {}", few.scaling.workers, many.scaling.workers);
        assert!(few.scaling.workers >= 1.0);
    }

    /// Three machines with a network of so many Gbit a second.
    fn streaming(sets: &[&str], gbit: f64) -> Forecast {
        let described =
            CLUSTER.replace("cores = 16", &format!("cores = 16\nnetwork_gbit = {gbit}")).replace("count = 4", "");
        let sets: Vec<&str> = ["train.weights=streamed"].into_iter().chain(sets.iter().copied()).collect();
        forecast(&sets, &described, |_, _| ())
    }

    #[test]
    fn streamed_weights_hide_from_a_batch_on_that_follows_from_arithmetic_and_link() {
        let plan = streaming(&[], 1.0);
        // 2·F/b, but for the last layer, which comes once, and biases, which are no arithmetic.
        let flops = plan.work.dense.flop / plan.stages.dense_step;
        let expected = 2.0 * flops / 0.125e9;
        assert!((plan.streaming_batch / expected - 1.0).abs() < 0.02, "{} {expected}", plan.streaming_batch);
        assert!((streaming(&["cluster.wire=bf16"], 1.0).streaming_batch / plan.streaming_batch - 0.5).abs() < 1e-9);
        let batch =
            |batch: f64| streaming(&[&format!("train.batch_size={}", batch.round())], 1.0).stages.exposed_stream;
        assert!(batch(0.5 * expected) > 0.0);
        assert_eq!(batch(1.1 * expected), 0.0);
        // A batch that is too small waits for the network, and the advice says so.
        let slow = streaming(&["train.batch_size=64"], 1.0);
        let resident = forecast(&["train.batch_size=64"], CLUSTER, |_, _| ());
        assert!(slow.samples_per_second() < 0.5 * resident.samples_per_second());
        assert!(
            slow.memory.job_worker().all_bytes() < resident.memory.job_worker().all_bytes()
                && slow.memory.server_bytes() > 0.0
        );
    }

    #[test]
    fn streamed_weights_move_the_update_to_the_servers_and_cost_as_much() {
        let (streamed, resident) = (streaming(&[], 100.0), forecast(&[], CLUSTER, |_, _| ()));
        assert_eq!(streamed.stages.exposed_stream, 0.0);
        assert!(streamed.stages.server_cpu() > resident.stages.server_cpu());
        assert!(streamed.stages.dense_step < resident.stages.dense_step);
        let here = forecast(&["train.weights=streamed"], ONE, |_, _| ());
        assert!(here.stages.of_stage(PlanStage::Stream) > 0.0 && here.stages.server_cpu() == 0.0);
    }

    /// A forecast of a worker and two servers of which each has 1 GB for 4·10⁷ rows together.
    fn cold(sets: &[&str], change: impl FnOnce(&mut Calibration)) -> Forecast {
        let sets: Vec<&str> = ["cluster.memory=1000MB"].into_iter().chain(sets.iter().copied()).collect();
        // One worker, so that it waits longer than the disks work.
        forecast(&sets, &CLUSTER.replacen("count = 4", "", 1), |calibration, data| {
            data.rows = Some(40_000_000);
            change(calibration);
        })
    }

    #[test]
    fn rows_on_disk_take_the_servers_time_and_no_lookup_waits_for_them() {
        let hidden = cold(&[], |_| ());
        let in_memory = forecast(&[], &CLUSTER.replacen("count = 4", "", 1), |_, data| data.rows = Some(40_000_000));
        let rows = hidden.rows_on_disk.unwrap();
        assert_eq!(rows.in_memory, (2e9 - 12.0 * 4e7) / 140.0);
        let expected = rows.reads * 3.3e-6;
        assert!((hidden.stages.of_stage(PlanStage::ServerColdRows) / expected - 1.0).abs() < 1e-9);
        let busy = rows.reads / 57_000.0 + rows.reads * 144.0 * 1.4 / 5.94e8;
        assert!((hidden.stages.disk / busy - 1.0).abs() < 1e-9);
        // Two machines have a disk each, and a server reads half of the rows.
        let limit = hidden.limits.rates.iter().find(|(limit, _)| *limit == RateLimit::Disks).unwrap().1;
        assert!((limit * busy / 2.0 - 1.0).abs() < 1e-9);
        assert_eq!((in_memory.rows_on_disk, in_memory.stages.round_trips), (None, hidden.stages.round_trips));
    }

    #[test]
    fn a_slow_disk_is_the_bottleneck() {
        let slow = cold(&[], |calibration| calibration.cold.reads_per_second = 1000.0);
        assert_eq!(slow.limits.bottleneck(), Some(&RateLimit::Disks));
        let advice = |plan: &Forecast| plan.limits.bottleneck().unwrap().advice(&plan.stages, &machines(CLUSTER));
        assert!(advice(&slow).starts_with("a larger cluster.memory"));
    }

    #[test]
    fn a_module_of_the_users_has_no_forecast() {
        let mut job = job(&[]);
        let data = DataShape::from_job(&job);
        job.model = zagros_job::Model::TorchScript { file: "net.pt".into(), sha256: String::new(), trust: true };
        let (calibration, machines) = (Calibration::default(), machines(CLUSTER));
        let inputs = ForecastInputs { job: &job, data: &data, calibration: &calibration, machines: &machines };
        assert!(matches!(Forecast::new(inputs), Err(PlannerError::UnknownNetwork)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn faster_machines_and_more_of_them_are_never_slower(
            cores in 2_u32..128, count in 1_u32..64, gbit in 1.0..400.0_f64, trip in 1.0..1e4_f64, batch in 64_u32..20_000,
        ) {
            let described = |count: u32, gbit: f64, trip: f64, speed: f64| format!(
                "[[group]]\nname = 'w'\ncount = {count}\ncores = {cores}\nmemory = '64GiB'\nworkers = 1\nnetwork_gbit = {gbit}\nround_trip_us = {trip}\ncore_speed = {speed}\n\
                 [[group]]\nname = 's'\ncount = {count}\ncores = {cores}\nmemory = '64GiB'\nservers = 1\nnetwork_gbit = {gbit}\nround_trip_us = {trip}\ncore_speed = {speed}\n"
            );
            let set = format!("train.batch_size={batch}");
            let rate = |described: &str| forecast(&[&set], described, |_, _| ()).samples_per_second();
            let here = rate(&described(count, gbit, trip, 1.0));
            prop_assert!(here.is_finite() && here > 0.0);
            prop_assert!(rate(&described(count, 2.0 * gbit, trip, 1.0)) >= here);
            prop_assert!(rate(&described(count, gbit, trip / 2.0, 1.0)) >= here);
            prop_assert!(rate(&described(count, gbit, trip, 2.0)) >= here);
        }
    }
}
