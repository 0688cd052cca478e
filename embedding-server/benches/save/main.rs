//! The cost of a save for training that runs at the same time. Also checks that a save loads into any number of
//! servers.
//!
//! `cargo bench -p zagros-embedding-server --bench save -- [--rows N] [--quick] [--deltas]`
//!
//! One server in this process has one table of dim 16 with Adagrad. One thread pushes 4096 rows at a time. The limit is
//! a plain write of as many bytes with a sync. First it compares a checkpoint of all rows with one after pushes to a
//! hundredth of them, and pushes with and without changes noted; `--deltas` ends after that. `--quick` uses few rows, for tests that judge no time. In every mode the
//! rows must be equal on 1, 2 and 5 servers, bit for bit.

mod deltas;
mod servers;
mod traffic;

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use servers::{Servers, WIDTH};
use tokio::runtime::Runtime;
use traffic::{Pushes, Traffic};
use zagros_protocol::control::{FileDigest, SaveResponse};
use zagros_rows::snapshot::{BlockContent, BlockKind, SnapshotReader};

struct Plan {
    rows: u64,
    /// Duration of the pushes before the save, for comparison.
    before: Duration,
    /// Nothing but checkpoints of changes.
    only_deltas: bool,
}

fn main() {
    let plan = plan(std::env::args().skip(1));
    let runtime = Runtime::new().expect("threads for the servers");
    let folder = tempfile::tempdir().expect("a folder for the save");
    let server = Servers::new(&runtime, 1);
    server.fill(plan.rows);
    println!("{} rows of dim 16 with Adagrad, {} bytes each", plan.rows, 8 + 4 * WIDTH);
    deltas::pushes(plan.rows.min(2_000_000));
    deltas::checkpoints(&server, plan.rows, folder.path());
    if plan.only_deltas {
        return;
    }
    let saved = save_under_traffic(&plan, &server, folder.path());
    drop(server);
    let rows = fingerprint(folder.path(), &names(&saved.files));
    for servers in [1, 2, 5] {
        load(&runtime, servers, folder.path(), &saved, rows);
    }
}

fn save_under_traffic(plan: &Plan, server: &Servers<'_>, folder: &Path) -> SaveResponse {
    let limit = plain_write(folder, plan.rows * (8 + 4 * WIDTH as u64));
    let traffic = Traffic::start(server.runtime.handle(), &server.shards[0], plan.rows);
    std::thread::sleep(plan.before);
    let start = Instant::now();
    let saved = server.save(folder).remove(0);
    let end = Instant::now();
    let pushes = traffic.stop();
    let (before, during) =
        (Pushes::started_between(&pushes, start - plan.before, start), Pushes::started_between(&pushes, start, end));
    let rate = saved.bytes as f64 / saved.seconds / 1e6;
    println!("save     {:.2} s, {rate:.0} MB/s, {:.0} % of a plain write", saved.seconds, 100.0 * rate / limit);
    println!("pause    {:.2} ms in which requests waited for the instant", 1e3 * saved.pause_seconds);
    println!("pushes   {before} before");
    println!("         {during} during: {}", during.compare_to(&before));
    saved
}

/// MB/s of writing and syncing this many bytes.
fn plain_write(folder: &Path, bytes: u64) -> f64 {
    let (path, block) = (folder.join("plain"), vec![7; 4 << 20]);
    let start = Instant::now();
    let mut file = File::create(&path).expect("a file");
    (0..bytes.div_ceil(block.len() as u64)).for_each(|_| file.write_all(&block).expect("room on the disk"));
    file.sync_all().expect("a disk that works");
    let seconds = start.elapsed().as_secs_f64();
    std::fs::remove_file(path).expect("the file is there");
    bytes as f64 / seconds / 1e6
}

/// Loads into `count` servers, saves their rows, and compares.
fn load(runtime: &Runtime, count: u32, folder: &Path, saved: &SaveResponse, rows: u64) {
    let servers = Servers::new(runtime, count);
    let start = Instant::now();
    let loaded = servers.load(folder, &saved.files);
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(loaded, saved.rows, "{count} server(s) took another number of rows");
    let again = tempfile::tempdir().expect("a folder for the save");
    let files: Vec<FileDigest> = servers.save(again.path()).into_iter().flat_map(|saved| saved.files).collect();
    assert_eq!(fingerprint(again.path(), &names(&files)), rows, "rows differ on {count} server(s)");
    println!("load     {count} server(s) one after another {seconds:.2} s, rows identical");
}

fn plan(mut arguments: impl Iterator<Item = String>) -> Plan {
    let mut plan = Plan { rows: 5_000_000, before: Duration::from_secs(5), only_deltas: false };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--rows" => plan.rows = arguments.next().and_then(|rows| rows.parse().ok()).expect("--rows N"),
            "--quick" => (plan.rows, plan.before) = (20_000, Duration::from_millis(50)),
            "--deltas" => plan.only_deltas = true,
            // cargo passes it to every benchmark.
            "--bench" => {}
            other => panic!("unknown argument {other}; see the top of this file"),
        }
    }
    plan
}

fn names(files: &[FileDigest]) -> Vec<String> {
    files.iter().map(|file| file.name.clone()).collect()
}

/// A fingerprint of rows that does not depend on how the rows are divided among files.
///
/// The sum over all rows of a hash of table, id, slot and access metadata.
pub(crate) fn fingerprint(folder: &Path, files: &[String]) -> u64 {
    files.iter().map(|file| of_file(&folder.join(file))).fold(0, u64::wrapping_add)
}

fn of_file(path: &Path) -> u64 {
    let mut reader = SnapshotReader::open(path).expect("a file of rows");
    let mut sum = 0_u64;
    while let Some(block) = reader.next_block(|head| head.kind == BlockKind::Rows).expect("a whole file") {
        let BlockContent::Rows(rows) = block.content else { continue };
        let width = reader.header().tables[block.table].width;
        for (row, id) in rows.ids.iter().enumerate() {
            let mut hasher = DefaultHasher::new();
            (block.table, id, &rows.slots[row * width..][..width], rows.access.get(row)).hash(&mut hasher);
            sum = sum.wrapping_add(hasher.finish());
        }
    }
    sum
}
