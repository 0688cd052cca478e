//! A forecast, for a person or as JSON.

use indicatif::{HumanBytes, HumanCount};
use owo_colors::OwoColorize;
use serde::Serialize;
use zagros_cost::{Calibration, DataShape, Forecast, MachineGroup, Machines, RoleMemory};
use zagros_job::{Job, Table};
use zagros_shell::out;

use super::on_disk::DiskFigures;
use super::streaming::{StreamingBalance, short_number};

#[derive(Debug, Serialize)]
pub(crate) struct PlanFigures {
    /// Where the speed of a core comes from.
    calibration: String,
    /// Whether the data's shape was measured on its first rows.
    is_data_measured: bool,
    workers: f64,
    servers: f64,
    samples_per_second: f64,
    /// Of all processes.
    cpu_us_per_sample: f64,
    worker_cpu_us_per_sample: f64,
    bottleneck: String,
    advice: String,
    flop_per_sample: f64,
    dense_parameters: f64,
    distinct_rows_per_sample: f64,
    /// Between a worker and the servers, both ways.
    network_bytes_per_sample: f64,
    all_reduce_bytes_per_sample: f64,
    stages: Vec<StageFigures>,
    limits: Vec<LimitFigures>,
    memory: MemoryFigures,
    /// `null` if all rows are in memory, or their number is not known.
    rows_on_disk: Option<DiskFigures>,
    /// The most workers of which each adds at least half of what the first one made.
    workers_that_pay: f64,
    samples_per_second_with_them: f64,
    /// Whether the dense weights are streamed, and how that goes, in words.
    is_streamed: bool,
    streaming: Option<String>,
    /// Groups whose machines have less memory than their roles need.
    too_little_memory: Vec<String>,
    samples: Option<f64>,
    hours: Option<f64>,
    money: Option<f64>,
    currency: String,
}

#[derive(Debug, Serialize)]
struct StageFigures {
    stage: &'static str,
    role: &'static str,
    cpu_us_per_sample: f64,
}

#[derive(Debug, Serialize)]
struct LimitFigures {
    limit: String,
    samples_per_second: f64,
}

#[derive(Debug, Serialize)]
struct MemoryFigures {
    worker: f64,
    /// Weights and gradients; with streamed weights those of two layers, and messages.
    worker_dense: f64,
    worker_optimizer: f64,
    worker_activations: f64,
    worker_batches: f64,
    /// A server's part of streamed weights and their optimiser state.
    server_dense: f64,
    /// Of a worker with its whole network.
    resident_worker: f64,
    /// Of a worker whose dense weights are streamed, and of each server then.
    streamed_worker: f64,
    streamed_server: f64,
    /// Bytes between a worker and the servers in a step then.
    streamed_bytes_per_step: f64,
    /// The smallest batch at which they arrive as fast as they are used.
    streaming_batch: f64,
    /// Of a million rows, a mean row of all tables.
    million_rows: f64,
    /// Of each server, if the number of rows is known: in memory, and on disk.
    server_rows: Option<f64>,
    server_cold_rows: Option<f64>,
}

impl PlanFigures {
    pub(crate) fn new(
        (job, data): (&Job, &DataShape),
        (calibration, machines): (&Calibration, &Machines),
        forecast: &Forecast,
    ) -> Self {
        let Forecast { work, stages, limits, memory, scaling, epoch, .. } = forecast;
        let micro = |seconds: f64| seconds * 1e6;
        let role = |is_of_servers| if is_of_servers { "embedding server" } else { "dense worker" };
        let stage = |(stage, seconds): &(zagros_cost::PlanStage, f64)| StageFigures {
            stage: stage.name(),
            role: role(stage.is_of_servers()),
            cpu_us_per_sample: micro(*seconds),
        };
        let bottleneck = limits.bottleneck();
        let rows_on_disk = DiskFigures::new(job, forecast, machines);
        let rows = ServerRows::new((job, data), machines, rows_on_disk);
        Self {
            calibration: calibration.source.clone(),
            is_data_measured: data.is_measured,
            workers: machines.worker_count(),
            servers: machines.server_count(),
            samples_per_second: forecast.samples_per_second(),
            cpu_us_per_sample: micro(forecast.cpu_per_sample()),
            worker_cpu_us_per_sample: micro(stages.worker_cpu()),
            bottleneck: bottleneck.map(zagros_cost::RateLimit::name).unwrap_or_default(),
            advice: bottleneck.map(|limit| limit.advice(stages, machines).to_owned()).unwrap_or_default(),
            flop_per_sample: work.dense.flop,
            dense_parameters: work.dense.parameters,
            distinct_rows_per_sample: work.distinct_rows(),
            network_bytes_per_sample: if machines.is_embedded() { 0.0 } else { work.bytes_up + work.bytes_down },
            all_reduce_bytes_per_sample: work.reduce_bytes(machines.worker_count()),
            stages: stages.cpu.iter().map(stage).collect(),
            limits: limits
                .rates
                .iter()
                .map(|(limit, rate)| LimitFigures { limit: limit.name(), samples_per_second: *rate })
                .collect(),
            memory: MemoryFigures::new(job, forecast, rows),
            rows_on_disk,
            is_streamed: memory.is_streamed(),
            streaming: memory.is_streamed().then(|| StreamingBalance::new(forecast).in_words()),
            workers_that_pay: scaling.workers,
            samples_per_second_with_them: scaling.samples_per_second,
            too_little_memory: too_little(memory, machines, rows.map_or(0.0, |rows| rows.in_memory)),
            samples: epoch.map(|epoch| epoch.samples),
            hours: epoch.map(|epoch| epoch.hours),
            money: epoch.map(|epoch| epoch.money).filter(|money| *money > 0.0),
            currency: machines.currency.clone(),
        }
    }

    pub(crate) fn print(&self, job: &Job) {
        out!("{}  forecast; nothing was run\n", job.name.bold());
        out!(
            "  {} samples/s with {} dense worker(s) and {}",
            count(self.samples_per_second),
            self.workers,
            servers_in_words(self.servers)
        );
        out!("  bottleneck: {}", self.bottleneck.bold());
        out!("  next: {}", self.advice);
        if self.servers > 0.0 {
            out!(
                "  workers: up to {} pay, each adds at least half of what the first one makes; {} samples/s with so many",
                self.workers_that_pay,
                count(self.samples_per_second_with_them)
            );
        }
        if let (Some(samples), Some(hours)) = (self.samples, self.hours) {
            let money = self.money.map_or_else(String::new, |money| format!(", {money:.2} {}", self.currency));
            out!("  an epoch of {} samples: {}{money}", count(samples), time(hours));
        }
        self.print_stages();
        self.print_memory();
        if let Some(rows) = &self.rows_on_disk {
            rows.print();
        }
        out!("\n  speed of a core: {}", self.calibration);
        if !self.is_data_measured {
            out!("  the data could not be looked at: ids a sample and distinct rows are assumed");
        }
    }

    fn print_stages(&self) {
        out!("\n{}", "a sample".bold());
        out!("  {:<18}{:<28}{:>12}", "role", "stage", "µs of CPU");
        for stage in &self.stages {
            out!("  {:<18}{:<28}{:>12.2}", stage.role, stage.stage, stage.cpu_us_per_sample);
        }
        out!("  {:<18}{:<28}{:>12.2}", "all", "", self.cpu_us_per_sample);
        out!(
            "  {} FLOP of {} dense weights; {:.1} distinct rows; {} on the network, {} for the all-reduce",
            short_number(self.flop_per_sample),
            short_number(self.dense_parameters),
            self.distinct_rows_per_sample,
            bytes(self.network_bytes_per_sample),
            bytes(self.all_reduce_bytes_per_sample)
        );
        out!("\n{}", "limits".bold());
        for limit in &self.limits {
            out!("  {:<46}{:>12} samples/s", limit.limit, count(limit.samples_per_second));
        }
    }

    fn print_memory(&self) {
        let memory = &self.memory;
        self.too_little_memory.iter().for_each(|group| tracing::warn!("{group}"));
        out!("\n{}", "memory".bold());
        out!(
            "  each dense worker  {}: {} {}, optimiser {}, between layers {}, batches {}",
            bytes(memory.worker),
            if self.is_streamed { "two layers and their gradients" } else { "weights and gradients" },
            bytes(memory.worker_dense),
            bytes(memory.worker_optimizer),
            bytes(memory.worker_activations),
            bytes(memory.worker_batches)
        );
        if self.is_streamed {
            out!("  each server        {} of dense weights and their optimiser state", bytes(memory.server_dense));
        }
        match (memory.server_rows, memory.server_cold_rows) {
            (Some(rows), Some(cold)) if cold > 0.0 => {
                out!(
                    "  each server        {} of rows and index in memory (cluster.memory), {} on disk",
                    bytes(rows),
                    bytes(cold)
                );
            }
            (Some(rows), _) => out!("  each server        {} of rows", bytes(rows)),
            _ => out!(
                "  servers            {} for a million rows (--rows N says what all take)",
                bytes(memory.million_rows)
            ),
        }
        self.print_streaming();
    }

    fn print_streaming(&self) {
        let memory = &self.memory;
        match &self.streaming {
            Some(streaming) => {
                out!("  streamed weights   {streaming}");
                out!("  with its whole network a worker would need {}", bytes(memory.resident_worker));
            }
            None => out!(
                "  dense weights that are streamed from the servers would need {} in a worker and {} in each server, send {} a step, and \
                 hide behind the arithmetic from a batch of {} on",
                bytes(memory.streamed_worker),
                bytes(memory.streamed_server),
                bytes(memory.streamed_bytes_per_step),
                count(memory.streaming_batch.ceil())
            ),
        }
    }
}

impl MemoryFigures {
    fn new(job: &Job, forecast: &Forecast, rows: Option<ServerRows>) -> Self {
        let memory = &forecast.memory;
        let is_streamed = memory.is_streamed();
        let either = |streamed: f64, resident: f64| if is_streamed { streamed } else { resident };
        Self {
            worker: memory.worker_bytes(),
            worker_dense: either(memory.streamed_layers, memory.weights),
            worker_optimizer: either(0.0, memory.optimizer),
            worker_activations: either(memory.streamed_activations, memory.activations),
            worker_batches: memory.batches,
            server_dense: memory.server_bytes(),
            resident_worker: memory.resident_worker(),
            streamed_worker: memory.streamed_worker(),
            streamed_server: memory.streamed_server,
            streamed_bytes_per_step: forecast.work.traffic.step_bytes(),
            streaming_batch: forecast.streaming_batch,
            million_rows: mean_row(job) * 1e6,
            server_rows: rows.map(|rows| rows.in_memory),
            server_cold_rows: rows.map(|rows| rows.on_disk),
        }
    }
}

fn mean_row(job: &Job) -> f64 {
    job.tables.iter().map(|table: &Table| table.row_bytes() as f64).sum::<f64>() / job.tables.len().max(1) as f64
}

#[derive(Clone, Copy, Debug)]
struct ServerRows {
    /// With the index of those on disk.
    in_memory: f64,
    on_disk: f64,
}

impl ServerRows {
    /// `None` if the number of rows is not known.
    fn new((job, data): (&Job, &DataShape), machines: &Machines, on_disk: Option<DiskFigures>) -> Option<Self> {
        let servers = machines.server_count().max(1.0);
        let all = data.rows? as f64 * mean_row(job) / servers;
        let (in_memory, on_disk) = on_disk.map_or((all, 0.0), |rows| rows.of_each(servers));
        Some(Self { in_memory, on_disk })
    }
}

/// The groups whose machines are too small, and by how much. `rows` are the bytes of rows in each server.
fn too_little(memory: &RoleMemory, machines: &Machines, rows: f64) -> Vec<String> {
    let servers = |group: &MachineGroup| if machines.is_embedded() { group.workers } else { group.servers };
    let need =
        |group: &MachineGroup| group.workers * memory.worker_bytes() + servers(group) * (rows + memory.server_bytes());
    let small = machines.groups.iter().filter(|group| group.memory > 0.0 && need(group) > group.memory);
    let words = |group: &MachineGroup| {
        let short = bytes(need(group) - group.memory);
        let (has, need) = (bytes(group.memory), bytes(need(group)));
        format!("each machine of `{}` has {has} of memory, and its roles need {need}: {short} too little", group.name)
    };
    small.map(words).collect()
}

pub(crate) fn print_calibration(calibration: &Calibration) {
    let Calibration { source, memory_bytes_per_second, dense, rows, ids, step, wire, parse, disk, cold, .. } =
        calibration;
    out!("{source}\n");
    for rate in &dense.products {
        out!("  {:<34}{:>10.1} GFLOP/s", format!("dense step, layers of {}²", rate.width), rate.gflops);
    }
    out!("  {:<34}{:>10.2} ns a weight and step", "dense update", dense.weight_ns);
    out!("  {:<34}{:>10.2} × f32, {:.2} × by autograd", "products in bf16", dense.bf16, dense.autograd);
    for point in &dense.threads {
        out!("  {:<34}{:>10.2} × one", format!("a step on {} threads", point.threads), point.speedup);
    }
    for row in rows {
        let far = row.client_lookup + row.server_lookup;
        let far_push = row.client_push + row.server_push;
        out!(
            "  {:<34}{:>10.0} ns looked up, {:.0} updated; {far:.0} and {far_push:.0} over loopback",
            format!("a row of {} values", row.dim),
            row.lookup,
            row.push
        );
    }
    out!("  {:<34}{:>10.1} ns distinct, {:.1} + {:.2} a value moved", "an id", ids.dedup, ids.move_id, ids.move_value);
    out!("  {:<34}{:>10.0} ns a sample, {:.0} µs a step", "training loop", step.sample, step.step / 1e3);
    out!("  {:<34}{:>10.0} MB/s, {:.0} µs a round trip", "loopback", wire.bytes_per_second / 1e6, wire.round_trip_us);
    out!(
        "  {:<34}{:>10.0} MB/s criteo, {:.0} delimited, {:.0} json lines, {:.0} parquet",
        "a core parses",
        parse.criteo / 1e6,
        parse.delimited / 1e6,
        parse.json_lines / 1e6,
        parse.parquet / 1e6
    );
    out!("  {:<34}{:>10.1} GB/s", "memory, copied", memory_bytes_per_second / 1e9);
    out!(
        "  {:<34}{:>10.0} MB/s written, {:.0} read, {:.1} ms a flush",
        "disk",
        disk.write_bytes_per_second / 1e6,
        disk.read_bytes_per_second / 1e6,
        disk.flush_ms
    );
    out!(
        "  {:<34}{:>10.1} µs of CPU read and evicted, {:.0} reads/s",
        "a row on disk",
        cold.row_ns / 1e3,
        cold.reads_per_second
    );
}

pub(crate) fn servers_in_words(servers: f64) -> String {
    if servers == 0.0 { "all roles in one process".to_owned() } else { format!("{servers} embedding server(s)") }
}

pub(crate) fn count(value: f64) -> String {
    HumanCount(value.max(0.0) as u64).to_string()
}

fn bytes(value: f64) -> String {
    HumanBytes(value.max(0.0) as u64).to_string()
}

fn time(hours: f64) -> String {
    match hours {
        hours if hours >= 1.0 => format!("{hours:.1} h"),
        hours if hours >= 1.0 / 60.0 => format!("{:.1} min", hours * 60.0),
        hours => format!("{:.1} s", hours * 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!([1.5e12, 2e6, 999.0].map(short_number), ["1.50 T", "2.00 M", "999 "]);
        assert_eq!([2.5, 0.5, 0.01].map(time), ["2.5 h", "30.0 min", "36.0 s"]);
    }
}
