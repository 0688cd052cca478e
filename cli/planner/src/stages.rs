//! The time of each stage of a step, for each sample, on a core of a group of machines.

use zagros_job::{Format, Mode, Precision};

use crate::calibration::{Calibration, RowCost};
use crate::machines::{MachineGroup, Machines};
use crate::rows_on_disk::RowsOnDisk;
use crate::work::{MatrixProduct, SampleWork};

const NS: f64 = 1e-9;
/// Samples that a thread of a step takes at once.
const CHUNK: f64 = 1024.0;
/// The side of the matrices whose products are pairs of vectors.
const SMALL: f64 = 64.0;
/// Times the CPU of both ends of plain sockets that one end takes for messages of tiles: it copies values into them and out of them.
const MESSAGES: f64 = 2.2;
/// The share of the backward pass during which the sum of the gradients over the workers can run.
const OVERLAP: f64 = 0.6;
/// The share of forward and backward that is backward.
const BACKWARD: f64 = 2.0 / 3.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlanStage {
    /// Reading and parsing, on threads of their own.
    Parse,
    /// Distinct ids of a batch.
    Dedup,
    /// Looking rows up: the worker's part, or all of it in one process.
    Lookup,
    /// Rows into the input of the network and gradients out of it, on the dense thread.
    Gather,
    /// Forward, backward and update of the dense network.
    Dense,
    /// Summing gradients with the other workers.
    AllReduce,
    /// Pushing gradients: the worker's part, or all of it in one process.
    Push,
    /// Streamed weights and their gradients: the worker's part, or all of it in one process, with the update.
    Stream,
    /// Rows that come from disk and rows that go there, in one process.
    ColdRows,
    /// The measures and messages of the training loop.
    Loop,
    /// Looking rows up: the server's part.
    ServerLookup,
    /// Applying gradients: the server's part.
    ServerApply,
    /// Streamed weights: the server's part, with their update.
    ServerStream,
    /// Rows that come from disk and rows that go there, at the servers.
    ServerColdRows,
}

impl PlanStage {
    pub fn name(self) -> &'static str {
        match self {
            Self::Parse => "parse",
            Self::Dedup => "distinct ids",
            Self::Lookup => "look up",
            Self::Gather => "gather and scatter",
            Self::Dense => "forward, backward, update",
            Self::AllReduce => "all-reduce",
            Self::Push => "push",
            Self::Stream => "stream weights",
            Self::Loop => "training loop",
            Self::ServerLookup => "answer lookups",
            Self::ServerApply => "apply gradients",
            Self::ServerStream => "stream weights, update",
            Self::ColdRows | Self::ServerColdRows => "rows from and to disk",
        }
    }

    pub fn is_of_servers(self) -> bool {
        matches!(self, Self::ServerLookup | Self::ServerApply | Self::ServerStream | Self::ServerColdRows)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct StageTimes {
    /// CPU seconds a sample.
    pub cpu: Vec<(PlanStage, f64)>,
    /// Seconds a sample in which the dense thread of a worker is busy.
    pub dense_thread: f64,
    /// Seconds of `dense_thread` that are forward, backward and update.
    pub dense_step: f64,
    /// Bytes a second that a worker's connections reach.
    pub link: f64,
    /// Seconds of `dense_thread` in which it waits for the other workers.
    pub exposed_reduce: f64,
    /// Seconds of a step in which the weights are on their way, if they are streamed.
    pub stream: f64,
    /// Seconds of `dense_thread` in which it waits for streamed weights.
    pub exposed_stream: f64,
    /// Seconds from the ids of a batch to its rows, and from its gradients to their acknowledgement, together.
    pub round_trips: f64,
    /// Seconds in which a disk is busy with rows, if one disk has all of them. Hints read rows before their lookup, which
    /// does not wait.
    pub disk: f64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RolePlace<'a> {
    pub(crate) calibration: &'a Calibration,
    pub(crate) worker: &'a MachineGroup,
    pub(crate) server: &'a MachineGroup,
    pub(crate) workers: f64,
    pub(crate) servers: f64,
    pub(crate) rows_on_disk: Option<&'a RowsOnDisk>,
}

impl StageTimes {
    pub(crate) fn new(work: &SampleWork, place: RolePlace<'_>) -> Self {
        let RolePlace { calibration, worker, server, workers, servers, .. } = place;
        let rows = row_times(work, calibration);
        let (ids, step) = (&calibration.ids, &calibration.step);
        let core = NS / worker.core_speed;
        let server_core = NS / server.core_speed;
        let moved = (work.ids * ids.move_id + work.id_values * ids.move_value) * core;
        let parse = work.bytes / parse_rate(&work.format, calibration) / worker.core_speed;
        let dense = dense(work, calibration, worker);
        let reduce_bytes = work.reduce_bytes(workers);
        let reduce_cpu = reduce_bytes * calibration.wire.cpu_ns_per_byte * core;
        let training = (step.sample + step.step / work.batch) * core;
        let embedded = servers == 0.0;
        // Half for the lookup and half for the push of a step, at each server.
        let [client_step, server_step] =
            [calibration.wire.client_step, calibration.wire.server_step].map(|step| step * servers / 2.0 / work.batch);
        let mut cpu = vec![
            (PlanStage::Parse, parse),
            (PlanStage::Dedup, work.ids * ids.dedup * core),
            (PlanStage::Lookup, if embedded { rows.lookup } else { rows.client_lookup + client_step } * core),
            (PlanStage::Gather, moved),
            (PlanStage::Dense, dense.cpu),
            (PlanStage::Push, if embedded { rows.push } else { rows.client_push + client_step } * core),
            (PlanStage::Loop, training),
        ];
        if reduce_cpu > 0.0 {
            cpu.push((PlanStage::AllReduce, reduce_cpu));
        }
        if !embedded {
            cpu.push((PlanStage::ServerLookup, (rows.server_lookup + server_step) * server_core));
            cpu.push((PlanStage::ServerApply, (rows.server_push + server_step) * server_core));
        }
        // The processor moves no more bytes than over loopback.
        let loopback = calibration.wire.bytes_per_second * worker.core_speed * worker.cores.max(1.0);
        let link = worker.bytes_per_second().min(loopback);
        let reduce =
            reduce_bytes / link + reduce_trips(work, workers) * (worker.round_trip() + trip(calibration)) / work.batch;
        let exposed_reduce = Self::exposed_reduce(reduce, dense.wall);
        let stream = StreamTimes::new(work, place, link);
        if work.traffic.is_streamed {
            cpu.push((PlanStage::Stream, stream.worker));
            if !embedded {
                cpu.push((PlanStage::ServerStream, stream.server));
            }
        }
        // The next layer comes and the last gradient goes while a layer computes.
        let exposed_stream =
            if work.traffic.is_streamed { (stream.wall / work.batch - dense.wall).max(0.0) } else { 0.0 };
        let cold = ColdTimes::new(place);
        if cold.cpu > 0.0 {
            cpu.push((if embedded { PlanStage::ColdRows } else { PlanStage::ServerColdRows }, cold.cpu));
        }
        // A batch is one request to each server, which serves it with one thread for each table, at most.
        let round_trips = if embedded {
            (rows.lookup + rows.push) * core
        } else {
            let weights = if work.traffic.is_streamed { work.traffic.step_bytes() / work.batch } else { 0.0 };
            let wire = (work.bytes_up + work.bytes_down - weights) / link;
            let requests = 2.0 * (worker.round_trip().max(server.round_trip()) + trip(calibration)) / work.batch;
            let spread = servers * (server.threads.server as f64).min(server.cores).max(1.0);
            requests
                + wire
                + (rows.client_lookup + rows.client_push) * core
                + (rows.server_lookup + rows.server_push) * server_core / spread
        };
        Self {
            cpu,
            dense_thread: moved + dense.wall + exposed_reduce + exposed_stream,
            dense_step: dense.wall,
            link,
            exposed_reduce,
            stream: stream.wall,
            exposed_stream,
            round_trips,
            disk: cold.disk,
        }
    }

    /// The times of workers on the machines of one group, whose rows are on those of another.
    pub fn between_groups(
        work: &SampleWork,
        calibration: &Calibration,
        (worker, server): (&MachineGroup, &MachineGroup),
        machines: &Machines,
    ) -> Self {
        let (workers, servers) = (machines.worker_count(), machines.server_count());
        Self::new(work, RolePlace { calibration, worker, server, workers, servers, rows_on_disk: None })
    }

    /// The part of an all-reduce of `reduce` seconds that a step of `dense_step` seconds does not hide.
    pub fn exposed_reduce(reduce: f64, dense_step: f64) -> f64 {
        (reduce - dense_step * BACKWARD * OVERLAP).max(0.2 * reduce)
    }

    /// CPU seconds a sample.
    pub fn worker_cpu(&self) -> f64 {
        self.cpu.iter().filter(|(stage, _)| !stage.is_of_servers()).map(|(_, seconds)| seconds).sum()
    }

    /// CPU seconds a sample, of all servers together.
    pub fn server_cpu(&self) -> f64 {
        self.cpu.iter().filter(|(stage, _)| stage.is_of_servers()).map(|(_, seconds)| seconds).sum()
    }

    /// CPU seconds a sample.
    pub fn of_stage(&self, wanted: PlanStage) -> f64 {
        self.cpu.iter().filter(|(stage, _)| *stage == wanted).map(|(_, seconds)| seconds).sum()
    }
}

/// Requests one after another in an all-reduce of `workers`.
fn reduce_trips(work: &SampleWork, workers: f64) -> f64 {
    if workers < 2.0 || work.mode == Mode::Async { 0.0 } else { 2.0 * (workers - 1.0) }
}

fn trip(calibration: &Calibration) -> f64 {
    calibration.wire.round_trip_us * 1e-6
}

fn parse_rate(format: &Format, calibration: &Calibration) -> f64 {
    match format {
        Format::Criteo => calibration.parse.criteo,
        Format::Delimited(_) => calibration.parse.delimited,
        Format::Jsonl(_) => calibration.parse.json_lines,
        Format::Parquet(_) | Format::Arrow(_) => calibration.parse.parquet,
    }
}

/// ns a sample for the rows of all tables, whatever their dims.
fn row_times(work: &SampleWork, calibration: &Calibration) -> RowCost {
    let mut all = RowCost::default();
    for table in &work.tables {
        let (row, pushed) = (calibration.row_cost(table.dim), calibration.row_cost(table.push_dim));
        all.lookup += table.distinct * row.lookup;
        all.push += table.distinct * pushed.push;
        all.client_lookup += table.distinct * row.client_lookup;
        all.client_push += table.distinct * row.client_push;
        all.server_lookup += table.distinct * row.server_lookup;
        all.server_push += table.distinct * pushed.server_push;
    }
    all
}

/// Rows from disk and to it, seconds a sample.
struct ColdTimes {
    cpu: f64,
    /// One disk that has all rows is busy for so long.
    disk: f64,
}

impl ColdTimes {
    fn new(place: RolePlace<'_>) -> Self {
        let RolePlace { calibration, server, rows_on_disk, .. } = place;
        let Some(rows) = rows_on_disk else { return Self { cpu: 0.0, disk: 0.0 } };
        let cpu = rows.reads * calibration.cold.row_ns * NS / server.core_speed;
        let read = rows.reads / calibration.cold.reads_per_second;
        let disk = read + rows.written_bytes() / calibration.disk.write_bytes_per_second;
        Self { cpu, disk }
    }
}

struct StreamTimes {
    /// CPU seconds a sample of a worker.
    worker: f64,
    /// The same of all servers together.
    server: f64,
    /// Seconds of a step.
    wall: f64,
}

impl StreamTimes {
    fn new(work: &SampleWork, place: RolePlace<'_>, link: f64) -> Self {
        let RolePlace { calibration, worker, server, servers, workers, .. } = place;
        let (core, server_core) = (NS / worker.core_speed, NS / server.core_speed);
        let bytes = work.traffic.step_bytes();
        let update = work.dense.parameters * calibration.dense.weight_ns;
        if servers == 0.0 {
            // A value is copied out of its row and into its layer, or the other way round.
            let copies = 2.0 * bytes / calibration.memory_bytes_per_second / worker.core_speed;
            let all = copies + update * core;
            return Self { worker: all / work.batch, server: 0.0, wall: all };
        }
        let moved = bytes * MESSAGES * calibration.wire.cpu_ns_per_byte;
        // The servers send the weights once and receive the gradients once, whatever the number of workers.
        let served = (moved + update) * server_core / workers.max(1.0);
        let threads = servers * (server.threads.server as f64).min(server.cores).max(1.0);
        Self {
            worker: moved * core / work.batch,
            server: served / work.batch,
            wall: (bytes / link).max(served / threads),
        }
    }
}

/// The dense step, seconds a sample.
struct DenseTimes {
    cpu: f64,
    wall: f64,
}

fn dense(work: &SampleWork, calibration: &Calibration, worker: &MachineGroup) -> DenseTimes {
    let (rates, network) = (&calibration.dense, &work.dense);
    if let Some(gpu) = &worker.gpu {
        let moved = 2.0 * 4.0 * work.id_values / (gpu.bus_gbytes * 1e9);
        let wall = network.flop / (gpu.tflops * 1e12 * gpu.efficiency) + moved;
        // One thread feeds the device and waits for it.
        return DenseTimes { cpu: wall, wall };
    }
    let faster = if work.precision == Precision::F32 { 1.0 } else { rates.bf16 };
    let product =
        |product: &MatrixProduct| product.flop() / (rates.product_gflops(product.read, product.write) * faster);
    let products: f64 = network.products.iter().map(product).sum();
    // Without autograd a loop of this program makes the pairs, with it libtorch's products of small matrices do.
    let pair = if network.by_autograd { 6.0 / rates.product_gflops(SMALL, SMALL) } else { rates.pair_ns };
    let values = network.loop_values * rates.value_ns + network.pair_values * pair;
    let threads = busy_threads(worker.threads.torch as f64, work.batch);
    // Streamed weights are updated elsewhere.
    let updated = if work.traffic.is_streamed { 0.0 } else { network.parameters };
    let weights = updated * rates.weight_ns / work.batch;
    let factor = rates.in_training * if network.by_autograd { rates.autograd } else { 1.0 };
    // Autograd on layers that come and go makes each forward twice, of three passes that are as long.
    let again = if network.by_autograd && work.traffic.is_streamed { 4.0 / 3.0 } else { 1.0 };
    let parallel = (products + values) * again * factor * NS / worker.core_speed;
    // Each thread reads the weights for itself.
    let weights = weights * factor * NS / worker.core_speed;
    DenseTimes { cpu: parallel + weights * threads, wall: parallel / rates.thread_speedup(threads) + weights }
}

/// Threads that have at least a part of a chunk.
fn busy_threads(threads: f64, batch: f64) -> f64 {
    threads.min((batch / (CHUNK / 16.0)).ceil()).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_few_samples_keeps_few_threads_busy() {
        assert_eq!([busy_threads(8.0, 4096.0), busy_threads(8.0, 100.0), busy_threads(8.0, 1.0)], [8.0, 2.0, 1.0]);
    }
}
