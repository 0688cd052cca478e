//! What a log costs a push, beside the same server without one, and how long recovery takes.
//!
//! `cargo bench -p zagros-embedding-server --bench durability -- [--pushes N] [--rows N,N,…] [--folder PATH] [--quick]`
//!
//! Tables of dim 16 with Adagrad, pushes of 16,384 rows, one thread. The servers take turns push by push. The form of the log is
//! compared by appending the same pushes twice: as rows after their change, and as requests. `--quick` is for tests: few pushes,
//! no time is judged. In every mode the recovered server has the rows that the ended one had.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus::Registry;
use tokio::runtime::{Builder, Runtime};
use zagros_embedding_client::Shard;
use zagros_embedding_server::{EmbeddingService, LocalShard};
use zagros_job::{Durability, Job, Overrides};
use zagros_log::{LogWriter, SEGMENT_BYTES, SyncMode, SystemDisk, WriterConfig};
use zagros_plumbing::Deadline;
use zagros_protocol::datapath::{Encoding, PushRequest};
use zagros_protocol::packed::{encode_ids, encode_values};
use zagros_protocol::{BucketMap, Generation, Segment, Segments, ServerIndex, TableId};
use zagros_table::{ChangeKind, StripeChange, UpdateLog};

const DIM: usize = 16;
const ROWS: u64 = 16 << 10;
const JOB: &str = r#"
[data]
format = "delimited"
train = "train.csv"
columns = ["label", "item"]
header = false
[features]
label = "label"
categorical = ["item"]
[embedding]
dim = 16
optimizer = { kind = "adagrad", lr = 0.1 }
[model]
kind = "ffnn"
"#;

/// What the command line asks for.
struct Plan {
    pushes: u64,
    rows: Vec<u64>,
    folder: PathBuf,
}

fn main() {
    let plan = plan(std::env::args().skip(1));
    compare_forms(&plan);
    compare_modes(&plan);
    println!("\nrecovery of one server, dim {DIM} with Adagrad\n\n      rows     pushed in     recovered in");
    plan.rows.iter().for_each(|rows| recover(&plan, *rows));
}

fn plan(arguments: impl Iterator<Item = String>) -> Plan {
    let mut plan =
        Plan { pushes: 300, rows: vec![1_000_000, 10_000_000], folder: std::env::temp_dir().join("zagros-bench-log") };
    let mut arguments = arguments.filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument} takes a value"));
        match argument.as_str() {
            "--pushes" => plan.pushes = value().parse().expect("a number"),
            "--rows" => plan.rows = value().split(',').map(|rows| rows.parse().expect("a number")).collect(),
            "--folder" => plan.folder = value().into(),
            "--quick" => (plan.pushes, plan.rows) = (3, vec![20_000]),
            other => panic!("unknown argument {other}"),
        }
    }
    plan
}

/// After-images beside requests: the same pushes, appended and flushed.
fn compare_forms(plan: &Plan) {
    let ids: Vec<u64> = (0..ROWS).collect();
    let (slots, gradients) = (vec![1_u32; ids.len() * 2 * DIM], vec![1_u32; ids.len() * DIM]);
    let mut results = Vec::new();
    for (name, words) in [("requests", &gradients), ("rows after their change", &slots)] {
        let folder = fresh(&plan.folder.join("forms"));
        let config = WriterConfig { mode: SyncMode::Process, lineage: 1, segment_bytes: SEGMENT_BYTES, next: 0 };
        let log = LogWriter::open(&folder, Arc::new(SystemDisk), &config).expect("a log");
        let start = Instant::now();
        for _ in 0..plan.pushes {
            // One record for each stripe, as a push makes them.
            for stripe in 0..64 {
                let share = ids.len() / 64;
                let of = |words: usize| stripe * share * words..(stripe + 1) * share * words;
                let slots = &words[of(words.len() / ids.len())];
                let kind = ChangeKind::Rows { ids: &ids[of(1)], slots, access: &[] };
                log.append(&StripeChange { table: 0, stripe: stripe as u32, origin: None, kind });
            }
            log.flush_appended().expect("a disk with room");
            log.delete_before(log.durable()).expect("a file is deleted");
        }
        let rows = (plan.pushes * ROWS) as f64;
        results.push((name, log.durable() as f64 / rows, start.elapsed().as_secs_f64() * 1e9 / rows));
    }
    println!(
        "the log's form, {} pushes of {ROWS} rows\n\n                            bytes a row  × requests   ns a row  × requests",
        plan.pushes
    );
    let (_, bytes, nanos) = results[0];
    for (name, of_bytes, of_nanos) in &results {
        println!("{name:<26}  {of_bytes:11.1}  {:10.2}  {of_nanos:9.1}  {:10.2}", of_bytes / bytes, of_nanos / nanos);
    }
}

/// The same pushes to three servers, in turns.
fn compare_modes(plan: &Plan) {
    let modes =
        [("checkpoint", Durability::Checkpoint), ("process", Durability::Process), ("machine", Durability::Machine)];
    let servers = modes.map(|(name, mode)| Server::start(&fresh(&plan.folder.join(name)), mode));
    let mut spent = [Duration::ZERO; 3];
    for seq in 1..=plan.pushes {
        for (position, server) in servers.iter().enumerate() {
            let request = push_of(seq, (seq % 16) * ROWS, ROWS);
            let start = Instant::now();
            server.push(request);
            // The first pushes make the rows.
            spent[position] += if seq > plan.pushes / 4 { start.elapsed() } else { Duration::ZERO };
        }
    }
    println!("\npushes of {ROWS} rows by cluster.durability\n\n              ns a row  × checkpoint");
    let nanos = |position: usize| spent[position].as_secs_f64() * 1e9 / ((plan.pushes - plan.pushes / 4) * ROWS) as f64;
    for (position, (name, _)) in modes.iter().enumerate() {
        println!("{name:<12}  {:8.1}  {:12.2}", nanos(position), nanos(position) / nanos(0));
    }
}

fn recover(plan: &Plan, rows: u64) {
    let folder = fresh(&plan.folder.join("recovery"));
    let server = Server::start(&folder, Durability::Process);
    let start = Instant::now();
    for seq in 0..rows.div_ceil(ROWS) {
        server.push(push_of(seq + 1, seq * ROWS, ROWS.min(rows - seq * ROWS)));
    }
    let pushed = start.elapsed();
    let held = server.service.held();
    drop(server);
    let start = Instant::now();
    let server = Server::start(&folder, Durability::Process);
    let recovered = start.elapsed();
    assert!(server.service.has_recovered());
    assert_eq!(server.service.held().rows, held.rows);
    println!("{rows:>10}  {:>10.2} s  {:>13.2} s", pushed.as_secs_f64(), recovered.as_secs_f64());
    drop(server);
    fresh(&folder);
}

struct Server {
    service: Arc<EmbeddingService>,
    shard: LocalShard,
    runtime: Runtime,
}

impl Server {
    fn start(folder: &Path, durability: Durability) -> Self {
        let mut job = Job::parse(JOB, Path::new("bench.toml"), &Overrides::none()).expect("the job is good");
        job.output.folder = folder.to_owned();
        job.cluster.durability = durability;
        let service = EmbeddingService::durable(&job, ServerIndex(0), &Registry::new()).expect("a server");
        service.set_placement(Arc::new(BucketMap::even(Generation(1), job.cluster.buckets, 1)));
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        Self { shard: LocalShard::new(Arc::clone(&service)), service, runtime }
    }

    fn push(&self, request: PushRequest) {
        let push = async { self.shard.push(request, Deadline::after(Duration::from_secs(600))).await };
        self.runtime.block_on(push).expect("a push");
    }
}

fn push_of(seq: u64, first: u64, rows: u64) -> PushRequest {
    let ids: Vec<u64> = (first..first + rows).collect();
    let segment = Segment { table: TableId(0), rows: ids.len() as u32, dim: DIM as u32 };
    let values = vec![0.5; ids.len() * DIM];
    PushRequest {
        generation: 1,
        writer: 1,
        incarnation: 1,
        seq,
        step: seq,
        segments: Segments::new(vec![segment]).pack().into(),
        ids: encode_ids(&ids).into(),
        gradients: encode_values(&values, Encoding::F32 as i32).expect("f32 is known").into(),
        encoding: Encoding::F32 as i32,
        ..PushRequest::default()
    }
}

/// An empty folder.
fn fresh(folder: &Path) -> PathBuf {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).expect("a folder that can be written");
    folder.to_owned()
}
