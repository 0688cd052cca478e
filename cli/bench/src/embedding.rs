//! `zagros-bench embedding`: the cost of looking up and updating the rows of a batch over loopback, compared with the
//! cost in one process and with that of the sockets alone.

use std::time::Duration;

use serde::Serialize;
use zagros_bench::clients::{ClientPlan, MeasuredCase, MeasuredStretch};
use zagros_bench::cluster::{ByteExchange, ServerSide, SocketLimit, measure_loopback};
use zagros_bench::workload::{self, BATCH};
use zagros_ingest::Batch;
use zagros_protocol::datapath::Encoding;
use zagros_shell::{CommandReport, Exit, Failure, ReportTable, print_figures};

use crate::args::EmbeddingArgs;
use crate::runs::zagros_program;

/// Batches before the counted ones, while tables grow, caches warm and connections open.
const WARM_UP: u64 = 20;

/// The measured forms of the wire: exact, and with half of its bytes.
const WIRES: [Encoding; 2] = [Encoding::F32, Encoding::Bf16];

/// Measures every case, checks that all have the same rows, and prints.
pub(crate) async fn run(args: EmbeddingArgs) -> Result<Exit, Failure> {
    let bench = EmbeddingBench::new(args);
    let mut cases = Vec::new();
    for wire in WIRES {
        bench.measure_wire(wire, &mut cases).await?;
    }
    let figures = EmbeddingFigures { about: bench.describe(), cases };
    print_figures(&figures, bench.args.output.json, EmbeddingFigures::print)
}

struct EmbeddingBench {
    args: EmbeddingArgs,
    job_text: String,
    batches: Vec<Batch>,
    warm_up: usize,
}

impl EmbeddingBench {
    fn new(args: EmbeddingArgs) -> Self {
        let (warm_up, counted) = if args.output.quick { (2, 4) } else { (WARM_UP, args.batches) };
        // A client that pushes is a worker of the run.
        let workers = args.clients.iter().copied().max().unwrap_or(1);
        let cluster = format!("servers = {}\nworkers = {workers}", args.servers);
        let job_text = workload::job_text(args.dim, "kind = \"dlrm\"", "", &cluster);
        let batches = workload::make_batches((warm_up + counted) as usize);
        Self { args, job_text, batches, warm_up: warm_up as usize }
    }

    /// Measures in one process, then over sockets with each number of clients. All must find the same rows.
    async fn measure_wire(&self, wire: Encoding, cases: &mut Vec<WireCase>) -> Result<(), Failure> {
        let job = workload::parse_job(&self.job_text)?;
        let embedded = self.measure(ServerSide::start_embedded(&job).await?, wire, 1).await?;
        let exchange = ByteExchange::new(embedded.trained.batch_rows(), self.args.dim, wire);
        cases.push(WireCase::new(wire, &embedded, None));
        for clients in self.args.clients.iter().map(|clients| *clients as usize) {
            let limit = measure_loopback(exchange, self.counted(), clients)?;
            let side = ServerSide::start_processes(&zagros_program()?, &self.job_text, &job).await?;
            let measured = self.measure(side, wire, clients).await?;
            measured.check_against(&embedded)?;
            cases.push(WireCase::new(wire, &measured, Some((&embedded, limit))));
        }
        Ok(())
    }

    async fn measure(&self, side: ServerSide, wire: Encoding, clients: usize) -> Result<MeasuredCase, Failure> {
        let (warm_up, counted) = self.batches.split_at(self.warm_up);
        // A lookup or an update alone is faster than both, so more calls give as many of the kernel's ticks.
        let calls = 4 * self.counted();
        let plan = ClientPlan { clients, wire, dim: self.args.dim, warm_up, counted, calls, small: &[] };
        MeasuredCase::measure(side, plan).await
    }

    fn counted(&self) -> usize {
        self.batches.len() - self.warm_up
    }

    fn describe(&self) -> String {
        let ids = self.batches.first().map_or(0, |batch| batch.categorical.len() * BATCH);
        format!(
            "crit-zipf: dim {}, {BATCH} samples a batch = {ids} ids; {} batches after {} to warm up; {} server process(es)",
            self.args.dim,
            self.counted(),
            self.warm_up,
            self.args.servers
        )
    }
}

#[derive(Debug, Serialize)]
struct EmbeddingFigures {
    about: String,
    cases: Vec<WireCase>,
}

/// One form of the wire, and both of its ends. Times are milliseconds a batch; user and system time of embedded servers counts as the client's.
#[derive(Debug, Serialize)]
struct WireCase {
    wire: &'static str,
    /// `embedded` or `loopback`.
    path: &'static str,
    clients: usize,
    distinct_rows_per_batch: usize,
    /// CPU of distinct ids, lookup and push: at the client and at the servers.
    client_cpu_ms: f64,
    server_cpu_ms: f64,
    /// CPU of both ends for lookups and for pushes alone, on rows that exist.
    lookup_cpu_ms: f64,
    push_cpu_ms: f64,
    lookup_ms: LatencyQuantiles,
    push_ms: LatencyQuantiles,
    /// Rows looked up per second by all servers together, without other requests.
    rows_looked_up_per_second: f64,
    rows_updated_per_second: f64,
    limits: Option<CaseLimits>,
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
    /// Batches per second through the sockets, with as many connections as clients.
    sockets_batches_per_second: f64,
    /// The batch's CPU divided by that of the embedded servers and the sockets.
    times_embedded_and_sockets: f64,
}

impl WireCase {
    /// `limit` is of a case over loopback: the embedded servers, and the sockets alone.
    fn new(wire: Encoding, measured: &MeasuredCase, limit: Option<(&MeasuredCase, SocketLimit)>) -> Self {
        let MeasuredCase { clients, trained, looked_up, pushed, .. } = measured;
        let rate = |stretch: &MeasuredStretch| stretch.tally.rows as f64 / stretch.seconds;
        let limits = limit.map(|(embedded, limit)| CaseLimits {
            sockets_ms: limit.cpu * 1e3,
            sockets_batches_per_second: limit.rate,
            times_embedded_and_sockets: cpu_ms(trained) / (cpu_ms(&embedded.trained) + limit.cpu * 1e3),
        });
        Self {
            wire: if wire == Encoding::F32 { "f32" } else { "bf16" },
            path: if limits.is_none() { "embedded" } else { "loopback" },
            clients: *clients,
            distinct_rows_per_batch: trained.batch_rows(),
            client_cpu_ms: per_batch_ms(trained, trained.cpu.client),
            server_cpu_ms: per_batch_ms(trained, trained.cpu.server),
            lookup_cpu_ms: cpu_ms(looked_up),
            push_cpu_ms: cpu_ms(pushed),
            lookup_ms: LatencyQuantiles::new(&trained.tally.lookups),
            push_ms: LatencyQuantiles::new(&trained.tally.pushes),
            rows_looked_up_per_second: rate(looked_up),
            rows_updated_per_second: rate(pushed),
            limits,
        }
    }

    fn table_cells(&self) -> Vec<String> {
        let limits = self.limits.as_ref();
        let times = limits.map_or(String::new(), |limits| format!("{:.2}", limits.times_embedded_and_sockets));
        let sockets = limits.map_or(String::new(), |limits| format!("{:.2}", limits.sockets_ms));
        let latency = |LatencyQuantiles { p50, p99 }: &LatencyQuantiles| format!("{p50:.2} / {p99:.2}");
        vec![
            self.wire.to_owned(),
            if limits.is_none() { "embedded".to_owned() } else { format!("{} client(s)", self.clients) },
            self.distinct_rows_per_batch.to_string(),
            format!("{:.2}", self.client_cpu_ms),
            format!("{:.2}", self.server_cpu_ms),
            times,
            format!("{:.2}", self.lookup_cpu_ms),
            format!("{:.2}", self.push_cpu_ms),
            latency(&self.lookup_ms),
            latency(&self.push_ms),
            format!("{:.2}", self.rows_looked_up_per_second / 1e6),
            format!("{:.2}", self.rows_updated_per_second / 1e6),
            sockets,
        ]
    }
}

fn per_batch_ms(stretch: &MeasuredStretch, time: Duration) -> f64 {
    time.as_secs_f64() * 1e3 / stretch.tally.batches.max(1) as f64
}

/// Of client and servers together.
fn cpu_ms(stretch: &MeasuredStretch) -> f64 {
    per_batch_ms(stretch, stretch.cpu.client + stretch.cpu.server)
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
    fn print(&self) {
        const COLUMNS: [&str; 13] = [
            "wire",
            "servers",
            "distinct rows",
            "client CPU",
            "server CPU",
            "× limit",
            "lookup CPU",
            "push CPU",
            "lookup p50 / p99",
            "push p50 / p99",
            "M rows/s looked up",
            "updated",
            "sockets",
        ];
        let mut report = CommandReport::default();
        report.add_lead(&self.about);
        let rows = self.cases.iter().map(WireCase::table_cells).collect();
        report
            .add_title("Milliseconds a batch")
            .add_table(ReportTable::new(&COLUMNS, rows))
            .add_note(
                "a batch is: find the distinct ids, look up, push; limit: the embedded servers' CPU and the sockets' for the same bytes; lookup \
                 CPU, push CPU and rows/s are those of one kind of request alone, on rows that exist",
            )
            .add_note("sockets: CPU of the same bytes through sockets, both ends")
            .add_note("every case held the rows of the embedded servers; one client's were equal bit for bit");
        report.print();
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
