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
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};
use zagros_embedding_client::Shard;
use zagros_embedding_server::{EmbeddingService, LocalShard};
use zagros_job::{DurabilityLevel, Job, Overrides};
use zagros_plumbing::Deadline;
use zagros_protocol::control::{LoadRequest, SaveRequest};
use zagros_protocol::datapath::{Encoding, PushRequest};
use zagros_protocol::packed::{encode_ids, encode_values};
use zagros_protocol::{BucketMap, Generation, Segment, Segments, ServerIndex, TableId};
use zagros_rows::log::{LogWriter, SEGMENT_BYTES, SyncMode, SystemDisk, WriterConfig};
use zagros_table::{ChangeKind, StripeChange, UpdateLog};
use zagros_zip::ZipEq;

const DIM: usize = 16;
const ROWS: u64 = 16 << 10;
const JOB: &str = r#"
data = { format = "delimited", train = "train.csv", columns = ["label", "item"], header = false }
features = { label = "label", categorical = ["item"] }
embedding = { dim = 16, optimizer = { kind = "adagrad", lr = 0.1 } }
model = { kind = "ffnn" }
"#;

struct Plan {
    pushes: u64,
    rows: Vec<u64>,
    folder: PathBuf,
}

fn main() {
    let plan = plan(std::env::args().skip(1));
    compare_forms(&plan);
    compare_modes(&plan);
    println!(
        "\nrecovery of one server, dim {DIM} with Adagrad; beside it the same rows saved as a checkpoint and loaded from it\n\n\
         \x20     rows     pushed in         base          tail  recovered in  its CPU  saved in  loaded in"
    );
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
                let span = |words: usize| stripe * share * words..(stripe + 1) * share * words;
                let slots = &words[span(words.len() / ids.len())];
                let kind = ChangeKind::Rows { ids: &ids[span(1)], slots, access: &[] };
                log.append(&StripeChange { table: 0, stripe: stripe as u32, origin: None, kind });
            }
            log.flush_appended().expect("a disk with room");
            log.delete_before(log.durable_lsn()).expect("a file is deleted");
        }
        let rows = (plan.pushes * ROWS) as f64;
        results.push((name, log.durable_lsn() as f64 / rows, start.elapsed().as_secs_f64() * 1e9 / rows));
    }
    println!("the log's form, {} pushes of {ROWS} rows\n", plan.pushes);
    println!("                            bytes a row  × requests   ns a row  × requests");
    let (_, bytes, nanos) = results[0];
    for (name, of_bytes, of_nanos) in &results {
        println!("{name:<26}  {of_bytes:11.1}  {:10.2}  {of_nanos:9.1}  {:10.2}", of_bytes / bytes, of_nanos / nanos);
    }
}

/// Wall time of each push, and CPU of the whole process meanwhile: what the log's own thread does is in it.
#[derive(Default)]
struct Spent {
    wall: Vec<f64>,
    cpu: f64,
}

/// The same pushes to three servers, in turns.
fn compare_modes(plan: &Plan) {
    use DurabilityLevel::{Checkpoint, Machine, Process};
    let modes = [("checkpoint", Checkpoint), ("process", Process), ("machine", Machine)];
    let servers = modes.map(|(name, mode)| Server::start(&fresh(&plan.folder.join(name)), mode));
    let mut spent: [Spent; 3] = Default::default();
    for seq in 1..=plan.pushes {
        for (server, spent) in servers.iter().zip_eq(&mut spent) {
            let request = push_of(seq, (seq % 16) * ROWS, ROWS);
            let (start, cpu) = (Instant::now(), cpu_seconds());
            server.push(request);
            // The first pushes make the rows.
            if seq > plan.pushes / 4 {
                spent.wall.push(start.elapsed().as_secs_f64());
                spent.cpu += cpu_seconds() - cpu;
            }
        }
    }
    println!(
        "\npushes of {ROWS} rows by cluster.durability, in turns; the ratio of wall times is the median over the turns\n\n\
         \x20             CPU ns a row  × checkpoint  wall ns a row  × checkpoint"
    );
    let rows = (spent[0].wall.len() as u64 * ROWS) as f64;
    for ((name, _), of) in modes.iter().zip_eq(&spent) {
        let ratios = of.wall.iter().zip_eq(&spent[0].wall).map(|(own, first)| own / first).collect();
        let (cpu, wall) = (of.cpu * 1e9 / rows, of.wall.iter().sum::<f64>() * 1e9 / rows);
        println!("{name:<12}  {cpu:12.1}  {:12.2}  {wall:13.1}  {:12.2}", of.cpu / spent[0].cpu, median(ratios));
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn recover(plan: &Plan, rows: u64) {
    let folder = fresh(&plan.folder.join("recovery"));
    let server = Server::start(&folder, DurabilityLevel::Process);
    let start = Instant::now();
    for seq in 0..rows.div_ceil(ROWS) {
        server.push(push_of(seq + 1, seq * ROWS, ROWS.min(rows - seq * ROWS)));
    }
    let (pushed, held) = (start.elapsed(), server.service.current_load());
    let (saved, save) = server.save(&folder.join("saved"));
    drop(server);
    let (base, tail) = log_bytes(&folder.join("log-server-0"));

    let (start, cpu) = (Instant::now(), cpu_seconds());
    let server = Server::start(&folder, DurabilityLevel::Process);
    let (recovered, cpu) = (start.elapsed(), cpu_seconds() - cpu);
    assert!(server.service.has_recovered());
    assert_eq!(server.service.current_load().rows, held.rows);
    drop(server);

    let load = Server::start(&fresh(&plan.folder.join("loaded")), DurabilityLevel::Checkpoint).load(&saved);
    let megabytes = |bytes: u64| bytes / 1_000_000;
    println!(
        "{rows:>10}  {:>10.2} s  {:>9} MB  {:>9} MB  {:>10.2} s  {cpu:>10.2} s  {:>6.2} s  {:>6.2} s",
        pushed.as_secs_f64(),
        megabytes(base),
        megabytes(tail),
        recovered.as_secs_f64(),
        save.as_secs_f64(),
        load.as_secs_f64()
    );
    fresh(&plan.folder.join("loaded"));
    fresh(&folder);
}

/// Bytes of the bases of a log, and of its segments.
fn log_bytes(folder: &Path) -> (u64, u64) {
    let files = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).expect("a folder");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    };
    let all = files(folder);
    let named = |prefix: &'static str| {
        all.iter().filter(move |path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)))
    };
    let bytes = |path: &PathBuf| path.metadata().map_or(0, |data| data.len());
    let base = named("base-").flat_map(|path| files(path)).map(|path| bytes(&path)).sum();
    (base, named("segment-").map(bytes).sum())
}

struct Server {
    service: Arc<EmbeddingService>,
    shard: LocalShard,
    runtime: Runtime,
}

impl Server {
    fn start(folder: &Path, durability: DurabilityLevel) -> Self {
        let mut job = Job::parse(JOB, Path::new("bench.toml"), &Overrides::none()).expect("the job is good");
        job.output.folder = folder.to_owned();
        job.cluster.durability = durability;
        let service = EmbeddingService::open(&job, ServerIndex(0), &Registry::new()).expect("a server");
        service.set_placement(Arc::new(BucketMap::split_evenly(Generation(1), job.cluster.buckets, 1)));
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        Self { shard: LocalShard::new(Arc::clone(&service)), service, runtime }
    }

    fn push(&self, request: PushRequest) {
        let push = async { self.shard.push(request, Deadline::from_now(Duration::from_secs(600))).await };
        self.runtime.block_on(push).expect("a push");
    }

    /// Saves all rows, and answers what is needed to load them, and how long it took.
    fn save(&self, folder: &Path) -> (LoadRequest, Duration) {
        let start = Instant::now();
        let request = SaveRequest { folder: folder.display().to_string(), ..SaveRequest::default() };
        let saved = self.runtime.block_on(self.shard.save(request.clone())).expect("a save");
        (LoadRequest { folder: request.folder, files: saved.files, ..LoadRequest::default() }, start.elapsed())
    }

    fn load(&self, saved: &LoadRequest) -> Duration {
        let start = Instant::now();
        self.runtime.block_on(self.shard.load(saved.clone())).expect("a load");
        start.elapsed()
    }
}

fn push_of(seq: u64, first: u64, rows: u64) -> PushRequest {
    let ids: Vec<u64> = (first..first + rows).collect();
    let segment = Segment { table: TableId(0), rows: ids.len() as u32, dim: DIM as u32 };
    let encoding = Encoding::F32 as i32;
    let gradients = encode_values(&vec![0.5; ids.len() * DIM], encoding).expect("f32 is known").into();
    let (segments, ids) = (Segments::new(vec![segment]).pack().into(), encode_ids(&ids).into());
    let payload = PushRequest { segments, ids, gradients, encoding, ..PushRequest::default() };
    PushRequest { generation: 1, writer: 1, incarnation: 1, seq, step: seq, ..payload }
}

fn fresh(folder: &Path) -> PathBuf {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).expect("a folder that can be written");
    folder.to_owned()
}
