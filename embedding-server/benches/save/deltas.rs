//! A checkpoint of the rows that have changed, beside one of all rows, and what noting the changes costs a push.

use std::path::Path;
use std::time::Instant;

use zagros_embedding_client::Shard;
use zagros_plumbing::Deadline;
use zagros_protocol::control::{SaveRequest, SaveResponse, SaveStage};
use zagros_table::{
    Initializer, LookupMode, Optimizer, RequestBuffers, RequestPart, SnapshotKind, TableConfig, TableResources,
    TableSet,
};
use zagros_zip::ZipEq;

use crate::servers::{BATCH, DIM, Servers, TIMEOUT};
use crate::traffic::push_to;
use crate::{fingerprint, names};

/// Rounds of the comparison of pushes. Each round has one pass of both tables.
const ROUNDS: usize = 21;
const PUSHES: u64 = 200;

/// Checkpoints of all rows, and after pushes to a hundredth of them. `folder` is on the disk that is measured.
pub(crate) fn checkpoints(server: &Servers<'_>, rows: u64, folder: &Path) {
    let whole = checkpoint(server, &folder.join("whole"));
    let every = rows.div_ceil(rows / 100);
    let touched: Vec<u64> = (0..rows).step_by(every as usize).collect();
    for (seq, ids) in touched.chunks(BATCH as usize).enumerate() {
        let request = push_to(1_000_000 + seq as u64, ids);
        server.runtime.block_on(server.shards[0].push(request, Deadline::from_now(TIMEOUT))).expect("a push");
    }
    let delta = checkpoint(server, &folder.join("delta"));
    assert_eq!((delta.files.len(), delta.rows), (2, whole.rows), "a delta beside the file of all rows");
    let share = touched.len() as f64 / rows as f64;
    println!("base     {} bytes, {:.3} s, pause {:.2} ms", whole.bytes, whole.seconds, 1e3 * whole.pause_seconds);
    println!(
        "delta    {} bytes, {:.3} s, pause {:.2} ms, after pushes to {:.2} % of the rows",
        delta.bytes,
        delta.seconds,
        1e3 * delta.pause_seconds,
        100.0 * share
    );
    let (bytes, seconds) = (whole.bytes as f64 / delta.bytes as f64, whole.seconds / delta.seconds);
    println!("ratio    {bytes:.1} times fewer bytes, {seconds:.1} times less time");
    check(server, &folder.join("delta"), &delta);
}

/// The checkpoint loads to the rows that the server has now.
fn check(server: &Servers<'_>, folder: &Path, saved: &SaveResponse) {
    let again = Servers::new(server.runtime, 1);
    let start = Instant::now();
    assert_eq!(again.load(folder, &saved.files), saved.rows);
    println!("load     of both files into 1 server {:.2} s", start.elapsed().as_secs_f64());
    let [here, there] = [server, &again].map(|server| {
        let folder = tempfile::tempdir().expect("a folder for the save");
        let saved = server.save(folder.path()).remove(0);
        fingerprint(folder.path(), &names(&saved.files))
    });
    assert_eq!(here, there, "the checkpoint has other rows");
}

fn checkpoint(server: &Servers<'_>, folder: &Path) -> SaveResponse {
    let save = |stage: SaveStage| {
        let folder = folder.display().to_string();
        let request = SaveRequest { folder, stage: stage.into(), ..SaveRequest::default() };
        server.runtime.block_on(server.shards[0].save(request)).expect("a checkpoint")
    };
    let pause_seconds = save(SaveStage::Capture).pause_seconds;
    SaveResponse { pause_seconds, ..save(SaveStage::Files) }
}

/// Pushes to two equal tables, one of which notes what changes, pass by pass in turns. Then the same with two others, of
/// which the first one notes: a table that is made first may lie better in memory.
pub(crate) fn pushes(rows: u64) {
    let mut nanos = [Vec::new(), Vec::new()];
    let mut ratios: Vec<f64> = Vec::new();
    for noting in [1, 0] {
        let tables = [make_table(rows), make_table(rows)];
        drop(tables[noting].snapshot_of(SnapshotKind::Base).expect("a snapshot"));
        for round in 0..ROUNDS {
            let mut pair = [0.0; 2];
            // In turns, which one comes first.
            for number in [round % 2, 1 - round % 2] {
                pair[usize::from(number == noting)] = pass(&tables[number], rows, round as u64);
            }
            nanos.iter_mut().zip_eq(pair).for_each(|(all, one)| all.push(one));
            ratios.push(pair[1] / pair[0]);
        }
    }
    let pairs = ratios.len();
    let [without, with] = nanos.map(|mut nanos| median(&mut nanos));
    let ratio = median(&mut ratios);
    println!(
        "push     {without:.1} ns a row, {with:.1} ns with changes noted; median ratio of {pairs} pairs {ratio:.3}"
    );
}

fn make_table(rows: u64) -> TableSet {
    let optimizer = Optimizer::Adagrad { lr: 0.05, epsilon: 1e-8, initial_accumulator: 0.0, l2: 0.0 };
    let init = Initializer::Uniform { bound: 0.01 };
    let config = TableConfig { dim: DIM as usize, init, optimizer, ..TableConfig::default() };
    let tables = TableSet::new(1, &[config], TableResources::default()).expect("a table");
    let mut buffers = RequestBuffers::new();
    for start in (0..rows).step_by(BATCH as usize) {
        let ids: Vec<u64> = (start..rows.min(start + BATCH)).collect();
        let part = [RequestPart { table: 0, dim: DIM, ids: &ids }];
        let mut out = vec![0.0; ids.len() * DIM as usize];
        tables.lookup(&part, LookupMode::Train, &mut out, &mut buffers).expect("rows are made");
    }
    tables
}

/// Nanoseconds of a push, for each row.
fn pass(tables: &TableSet, rows: u64, round: u64) -> f64 {
    let (mut buffers, mut pushed, mut nanos) = (RequestBuffers::new(), 0, 0.0);
    let gradients = vec![0.25; (BATCH * u64::from(DIM)) as usize];
    for number in 0..PUSHES {
        let first = (round * PUSHES + number) * BATCH;
        let id = |index: u64| (first + index).wrapping_mul(0x9e37_79b9_7f4a_7c15) % rows;
        let mut ids: Vec<u64> = (0..BATCH).map(id).collect();
        ids.sort_unstable();
        ids.dedup();
        let part = [RequestPart { table: 0, dim: DIM, ids: &ids }];
        let start = Instant::now();
        tables.push(&part, &gradients[..ids.len() * DIM as usize], number, &mut buffers).expect("a push");
        nanos += start.elapsed().as_secs_f64() * 1e9;
        pushed += ids.len();
    }
    nanos / pushed as f64
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
