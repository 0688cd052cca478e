//! The printed figures.

use std::time::Duration;

use serde::Serialize;
use zagros_protocol::datapath::Encoding;
use zagros_shell::out;

use zagros_calibrate::embedding::drive::{MeasuredCase, MeasuredStretch};
use zagros_calibrate::embedding::limits::SocketLimit;

#[derive(Debug, Serialize)]
pub(super) struct EmbeddingFigures {
    #[serde(flatten)]
    pub(super) shape: WorkloadShape,
    pub(super) cases: Vec<WireCase>,
}

#[derive(Debug, Serialize)]
pub(super) struct WorkloadShape {
    pub(super) workload: &'static str,
    pub(super) dim: usize,
    pub(super) batch: usize,
    pub(super) ids_per_batch: usize,
    pub(super) servers: u32,
    /// Counted batches, and uncounted ones before them.
    pub(super) batches: usize,
    pub(super) warm_up: usize,
}

/// One form of the wire, and both of its ends.
#[derive(Debug, Serialize)]
pub(super) struct WireCase {
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
    pub(super) fn embedded_case(wire: Encoding, measured: &MeasuredCase) -> Self {
        Self::new(wire, "embedded", measured, None)
    }

    pub(super) fn loopback_case(
        wire: Encoding,
        measured: &MeasuredCase,
        embedded: &MeasuredCase,
        limit: SocketLimit,
    ) -> Self {
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
    pub(super) fn print_text(&self) {
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

impl WireCase {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_nearest_rank() {
        let times: Vec<Duration> = (1..=200).rev().map(Duration::from_millis).collect();
        let LatencyQuantiles { p50, p99 } = LatencyQuantiles::new(&times);
        assert_eq!((p50, p99), (100.0, 198.0));
        let LatencyQuantiles { p50, p99 } = LatencyQuantiles::new(&times[..1]);
        assert_eq!((p50, p99), (200.0, 200.0));
        assert_eq!(LatencyQuantiles::new(&[]).p50, 0.0);
    }
}
