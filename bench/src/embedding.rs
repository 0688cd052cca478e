//! `zagros-bench embedding`: the cost of looking up and updating the rows of a batch over loopback, compared with the
//! cost in one process and with that of the sockets alone.

mod figures;

use zagros_ingest::Batch;
use zagros_protocol::datapath::Encoding;

use self::figures::{EmbeddingFigures, WireCase, WorkloadShape};
use crate::args::EmbeddingArgs;
use crate::program;
use zagros_calibrate::embedding::drive::{BenchClients, MeasuredCase};
use zagros_calibrate::embedding::limits::{self, ByteExchange};
use zagros_calibrate::embedding::ServerSide;
use zagros_calibrate::workload::{self, BATCH};
use zagros_shell::{Exit, Failure, OrInternal, print_answer};

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
    if bench.args.json {
        print_answer(&serde_json::to_string(&figures).or_internal()?)?;
    } else {
        figures.print_text();
    }
    Ok(Exit::Success)
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
        cases.push(WireCase::embedded_case(wire, &embedded));
        for clients in self.args.clients.iter().map(|clients| *clients as usize) {
            let limit = limits::measure_loopback(exchange, self.counted(), clients)?;
            let measured = self
                .measure(
                    ServerSide::start_processes(&program::zagros_program()?, &self.job_text, &job).await?,
                    wire,
                    clients,
                )
                .await?;
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
