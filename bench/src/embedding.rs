//! `zagros-bench embedding`: the cost of looking up and updating the rows of a batch over loopback, compared with the
//! cost in one process and with that of the sockets alone.

use std::time::Duration;

use serde::Serialize;
use zagros_calibrate::embedding::ServerSide;
use zagros_calibrate::embedding::drive::{BenchClients, MeasuredCase, MeasuredStretch};
use zagros_calibrate::embedding::limits::{self, ByteExchange, SocketLimit};
use zagros_calibrate::workload::{self, BATCH};
use zagros_ingest::Batch;
use zagros_protocol::datapath::Encoding;
use zagros_shell::{Exit, Failure, out, print_figures};

use crate::args::EmbeddingArgs;
use crate::program;

/// Batches before the counted ones, while tables grow, caches warm and connections open.
const WARM_UP: u64 = 20;

/// The measured forms of the wire: exact, and with half of its bytes.
const WIRES: [Encoding; 2] = [Encoding::F32, Encoding::Bf16];

/// Measures every case, checks that all have the same rows, and prints.
pub(crate) async fn run(args: EmbeddingArgs) -> Result<Exit, Failure> {
    let bench = EmbeddingBench::new(args)?;
    let mut cases = Vec::new();
    for wire in WIRES {
        bench.measure_wire(wire, &mut cases).await?;
    }
    let figures = EmbeddingFigures { shape: bench.shape(), cases };
    print_figures(&figures, bench.args.json, EmbeddingFigures::print_text)
}

struct EmbeddingBench {
    args: EmbeddingArgs,
    job_text: String,
    batches: Vec<Batch>,
    warm_up: usize,
}

impl EmbeddingBench {
    fn new(args: EmbeddingArgs) -> Result<Self, Failure> {
        let (warm_up, counted) = if args.quick { (2, 4) } else { (WARM_UP, args.batches) };
        // A client that pushes is a worker of the run.
        let workers = args.clients.iter().copied().max().unwrap_or(1);
        let cluster = format!("servers = {}\nworkers = {workers}", args.servers);
        let job_text = workload::job_text(args.dim, "kind = \"dlrm\"", "", &cluster);
        let batches = workload::load_batches(args.data.as_deref(), (warm_up + counted) as usize)?;
        Ok(Self { args, job_text, batches, warm_up: warm_up as usize })
    }

    /// Measures in one process, then over sockets with each number of clients. All must find the same rows.
    async fn measure_wire(&self, wire: Encoding, cases: &mut Vec<WireCase>) -> Result<(), Failure> {
        let job = workload::parse_job(&self.job_text)?;
        let embedded = self.measure(ServerSide::start_embedded(&job).await?, wire, 1).await?;
        let exchange = ByteExchange::new(&embedded.trained, self.args.dim, wire);
        cases.push(WireCase::new(wire, "embedded", &embedded, None));
        for clients in self.args.clients.iter().map(|clients| *clients as usize) {
            let limit = limits::measure_loopback(exchange, self.counted(), clients)?;
            let side = ServerSide::start_processes(&program::zagros_program()?, &self.job_text, &job).await?;
            let measured = self.measure(side, wire, clients).await?;
            measured.check_against(&embedded)?;
            cases.push(WireCase::loopback_case(wire, &measured, &embedded, limit));
        }
        Ok(())
    }

    async fn measure(&self, side: ServerSide, wire: Encoding, clients: usize) -> Result<MeasuredCase, Failure> {
        let mut drivers = BenchClients::join(&side, wire, clients, self.args.dim as u32).await?;
        drivers.train(&side, &self.batches[..self.warm_up]).await?;
        let trained = drivers.train(&side, &self.batches[self.warm_up..]).await?;
        let (rows, held) = (drivers.read_last().await?, drivers.count_rows().await?);
        // A lookup or an update alone is faster than both, so more calls give as many of the kernel's ticks.
        let calls = 4 * self.counted();
        let looked_up = drivers.look_up(&side, calls).await?;
        let pushed = drivers.push(&side, calls).await?;
        drivers.leave().await?;
        side.stop_processes().await;
        Ok(MeasuredCase { clients, trained, looked_up, pushed, rows, held })
    }

    fn counted(&self) -> usize {
        self.batches.len() - self.warm_up
    }

    fn shape(&self) -> WorkloadShape {
        let ids = self.batches.first().map_or(0, |batch| batch.categorical.len() * BATCH);
        WorkloadShape {
            workload: "crit-zipf",
            dim: self.args.dim,
            batch: BATCH,
            ids_per_batch: ids,
            servers: self.args.servers,
            batches: self.counted(),
            warm_up: self.warm_up,
        }
    }
}

#[derive(Debug, Serialize)]
struct EmbeddingFigures {
    #[serde(flatten)]
    shape: WorkloadShape,
    cases: Vec<WireCase>,
}

#[derive(Debug, Serialize)]
struct WorkloadShape {
    workload: &'static str,
    dim: usize,
    batch: usize,
    ids_per_batch: usize,
    servers: u32,
    /// Counted batches, and uncounted ones before them.
    batches: usize,
    warm_up: usize,
}

/// One form of the wire, and both of its ends.
#[derive(Debug, Serialize)]
struct WireCase {
    wire: &'static str,
    /// `embedded` or `loopback`.
    path: &'static str,
    clients: usize,
    distinct_rows_per_batch: usize,
    /// Distinct ids, lookup and push.
    batch_cpu_ms: CpuMs,
    lookup_cpu_ms: CpuMs,
    push_cpu_ms: CpuMs,
    lookup_ms: LatencyQuantiles,
    push_ms: LatencyQuantiles,
    /// Rows looked up per second by all servers together, without other requests.
    rows_looked_up_per_second: f64,
    rows_updated_per_second: f64,
    limits: Option<CaseLimits>,
}

/// User and system time of client and server, milliseconds per batch. Embedded servers count as the client's.
#[derive(Debug, Serialize)]
struct CpuMs {
    client: f64,
    server: f64,
}

#[derive(Debug, Serialize)]
struct LatencyQuantiles {
    p50: f64,
    p99: f64,
}

/// Milliseconds of CPU for the bytes of a batch, measured in this run.
#[derive(Debug, Serialize)]
struct CaseLimits {
    /// Through loopback sockets, both ends.
    sockets_ms: f64,
    copy_ms: f64,
    /// Batches per second through the sockets, with as many connections as clients.
    sockets_batches_per_second: f64,
    /// The batch's CPU divided by that of the embedded servers and the sockets.
    times_embedded_and_sockets: f64,
}

impl WireCase {
    fn loopback_case(wire: Encoding, measured: &MeasuredCase, embedded: &MeasuredCase, limit: SocketLimit) -> Self {
        let floor = CpuMs::new(&embedded.trained).both() + limit.cpu * 1e3;
        let limits = CaseLimits {
            sockets_ms: limit.cpu * 1e3,
            copy_ms: limit.copy * 1e3,
            sockets_batches_per_second: limit.rate,
            times_embedded_and_sockets: CpuMs::new(&measured.trained).both() / floor,
        };
        Self::new(wire, "loopback", measured, Some(limits))
    }

    fn new(wire: Encoding, path: &'static str, measured: &MeasuredCase, limits: Option<CaseLimits>) -> Self {
        let MeasuredCase { clients, trained, looked_up, pushed, .. } = measured;
        let rate = |stretch: &MeasuredStretch| stretch.tally.rows as f64 / stretch.seconds;
        Self {
            wire: if wire == Encoding::F32 { "f32" } else { "bf16" },
            path,
            clients: *clients,
            distinct_rows_per_batch: trained.tally.rows / trained.tally.batches.max(1),
            batch_cpu_ms: CpuMs::new(trained),
            lookup_cpu_ms: CpuMs::new(looked_up),
            push_cpu_ms: CpuMs::new(pushed),
            lookup_ms: LatencyQuantiles::new(&trained.tally.lookups),
            push_ms: LatencyQuantiles::new(&trained.tally.pushes),
            rows_looked_up_per_second: rate(looked_up),
            rows_updated_per_second: rate(pushed),
            limits,
        }
    }

    fn print(&self) {
        let CpuMs { client, server } = &self.batch_cpu_ms;
        let who = if self.path == "embedded" { "embedded".to_owned() } else { format!("{} client(s)", self.clients) };
        let times = self.limits.as_ref().map_or(String::new(), |l| format!("{:.2}", l.times_embedded_and_sockets));
        out!(
            "  {:<4} {who:<12} {client:>5.2}  {server:>6.2}  {:>6.2}  {times:>8}  {:>6.2}  {:>4.2}  {:>5.2} / {:<5.2}  {:>5.2} / {:<5.2}  {:>8.2}  {:>8.2}",
            self.wire,
            self.batch_cpu_ms.both(),
            self.lookup_cpu_ms.both(),
            self.push_cpu_ms.both(),
            self.lookup_ms.p50,
            self.lookup_ms.p99,
            self.push_ms.p50,
            self.push_ms.p99,
            self.rows_looked_up_per_second / 1e6,
            self.rows_updated_per_second / 1e6,
        );
    }

    fn print_limits(&self) {
        let Some(limits) = &self.limits else { return };
        out!(
            "  {}: the same bytes cost {:.2} ms through sockets (both ends), {:.2} ms copied once",
            self.wire,
            limits.sockets_ms,
            limits.copy_ms
        );
    }
}

impl CpuMs {
    fn new(stretch: &MeasuredStretch) -> Self {
        let per_batch = |time: Duration| time.as_secs_f64() * 1e3 / stretch.tally.batches.max(1) as f64;
        Self { client: per_batch(stretch.cpu.client), server: per_batch(stretch.cpu.server) }
    }

    fn both(&self) -> f64 {
        self.client + self.server
    }
}

impl LatencyQuantiles {
    /// Quantiles in milliseconds, by the nearest rank.
    fn new(times: &[Duration]) -> Self {
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        let quantile = |share: f64| {
            let rank = (sorted.len() as f64 * share).ceil().max(1.0) as usize;
            sorted.get(rank - 1).map_or(0.0, |time| time.as_secs_f64() * 1e3)
        };
        Self { p50: quantile(0.5), p99: quantile(0.99) }
    }
}

impl EmbeddingFigures {
    fn print_text(&self) {
        let WorkloadShape { workload, dim, batch, ids_per_batch, servers, batches, warm_up } = &self.shape;
        let rows = self.cases.first().map_or(0, |case| case.distinct_rows_per_batch);
        out!("{workload}: dim {dim}, {batch} samples a batch = {ids_per_batch} ids, {rows} of them distinct");
        out!("  {batches} batches after {warm_up} to warm up; {servers} server process(es)");
        out!("                 CPU ms a batch                  of which    latency in ms, p50 / p99       M rows/s");
        out!(
            "                 client  server    both   × limit  lookup  push      lookup         push        looked up  updated"
        );
        self.cases.iter().for_each(WireCase::print);
        out!(
            "  a batch is: find the distinct ids, look up, push; limit: the embedded servers' CPU and the sockets' for the"
        );
        out!("  same bytes; lookup and push alone, and rows/s, on rows that exist");
        for case in self.cases.iter().filter(|case| case.clients == 1) {
            case.print_limits();
        }
        out!("  every case held the rows of the embedded servers; one client's were equal bit for bit");
        out!(
            "  PERSIA's embedding path on this workload: 85 ms of CPU a batch at dim 16, 210 ms at dim 64 (another machine)"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_nearest_rank() {
        let times: Vec<Duration> = (1..=200).rev().map(Duration::from_millis).collect();
        for (times, expected) in [(&times[..], (100.0, 198.0)), (&times[..1], (200.0, 200.0)), (&[], (0.0, 0.0))] {
            let LatencyQuantiles { p50, p99 } = LatencyQuantiles::new(times);
            assert_eq!((p50, p99), expected, "{times:?}");
        }
    }
}
