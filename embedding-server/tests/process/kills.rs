//! A server process that is killed again and again while clients push. Gradients are whole numbers and the table learns with SGD
//! at a rate of 1, so each row is its first value minus the sum of the acknowledged pushes, exactly.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use zagros_embedding_server::run;
use zagros_job::DurabilityLevel;
use zagros_plumbing::Shutdown;
use zagros_protocol::control::Writer;
use zagros_protocol::datapath::{Access, PushRequest};
use zagros_table::Initializer;
use zagros_transport::datapath::embedding_client::EmbeddingClient;

use crate::fake::{
    DIM, MemberChannel, RUN, ScriptedRun, job, lookup_of, member_channel, push_of, row_values, server_config,
};

const CLIENTS: u64 = 4;
/// Ids that all clients share, so that their pushes meet in the same rows.
const IDS: u64 = 400;
const ROWS: u64 = 40;
/// Names the folder of the run to the process that is killed.
const FOLDER: &str = "ZAGROS_TEST_KILLED_SERVER";
/// How often the process is killed; more of them by this variable.
const KILLS: &str = "ZAGROS_TEST_KILLS";
const TIMEOUT: Duration = Duration::from_secs(60);

/// Invariant DU-1.
#[test]
fn acknowledged_pushes_survive_kills_and_are_applied_once() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return serve(Path::new(&folder));
    }
    let kills = std::env::var(KILLS).ok().and_then(|text| text.parse().ok()).unwrap_or(12);
    let folder = tempfile::tempdir().unwrap();
    let home = Arc::new(ServerFolder { folder: folder.path().to_owned(), address: Mutex::default() });
    let mut child = home.start();
    let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (home, stop, acknowledged) = (Arc::clone(&home), Arc::clone(&stop), Arc::clone(&acknowledged));
            thread::spawn(move || Client::new(number).push_until(&home, &stop, &acknowledged))
        })
        .collect();
    let (mut random, mut before) = (0x9e37_79b9_u64, 0);
    for kill in 0..kills {
        let deadline = Instant::now() + TIMEOUT;
        // Each process acknowledges something, and dies at another moment.
        while acknowledged.load(Ordering::Relaxed) < before + 5 {
            assert!(Instant::now() < deadline, "no push was acknowledged after kill {kill}");
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_micros(next(&mut random) % 150_000));
        child.kill().unwrap();
        child.wait().unwrap();
        before = acknowledged.load(Ordering::Relaxed);
        child = home.start();
    }
    stop.store(true, Ordering::Relaxed);
    let (mut sums, mut retried) = (BTreeMap::<u64, f32>::new(), 0);
    for client in clients {
        let pushed = client.join().unwrap();
        retried += pushed.duplicates;
        pushed.sums.into_iter().for_each(|(id, sum)| *sums.entry(id).or_default() += sum);
    }
    let rows = home.rows();
    for (id, row) in rows.iter().enumerate() {
        let expected = -sums.get(&(id as u64)).copied().unwrap_or(0.0);
        let story = format!("row {id} after {kills} kills, {retried} pushes found applied at their retry");
        assert_eq!(row, &[expected; DIM], "{story}");
    }
    println!(
        "{kills} kills, {} pushes, {retried} of them found applied at their retry",
        acknowledged.load(Ordering::Relaxed)
    );
    child.kill().unwrap();
    child.wait().unwrap();
}

fn writer(client: u64) -> Writer {
    Writer { member: 100 + client, incarnation: 1 }
}

fn serve(folder: &Path) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut job = job();
        job.output.folder = folder.join("runs");
        job.cluster.durability = DurabilityLevel::Process;
        // Whole numbers then, without rounding.
        job.tables.iter_mut().for_each(|table| table.init = Initializer::Zero);
        let coordinator = ScriptedRun::placed(1);
        coordinator.change(|state| state.more_writers = (0..CLIENTS).map(writer).collect());
        let config = server_config(job, 0, coordinator.control_plane()).await;
        fs::write(folder.join("address.new"), &config.advertised).unwrap();
        fs::rename(folder.join("address.new"), folder.join("address")).unwrap();
        run(config, Shutdown::new()).await.unwrap();
    });
}

struct ServerFolder {
    folder: PathBuf,
    address: Mutex<String>,
}

impl ServerFolder {
    fn start(&self) -> Child {
        let _ = fs::remove_file(self.folder.join("address"));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "kills::acknowledged_pushes_survive_kills_and_are_applied_once", "--nocapture"]);
        let child = command.env(FOLDER, &self.folder).stdout(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + TIMEOUT;
        while !self.folder.join("address").exists() {
            assert!(Instant::now() < deadline, "the server has no port after {TIMEOUT:?}");
            thread::sleep(Duration::from_millis(1));
        }
        *self.address.lock().unwrap() = fs::read_to_string(self.folder.join("address")).unwrap();
        child
    }

    fn client(&self) -> EmbeddingClient<MemberChannel> {
        EmbeddingClient::new(member_channel(&self.address.lock().unwrap(), Some(RUN)))
    }

    /// All rows, once the server answers.
    fn rows(&self) -> Vec<[f32; DIM]> {
        let request = lookup_of(1, &(0..IDS).collect::<Vec<_>>(), Access::Read);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answer = runtime.block_on(async {
            let deadline = Instant::now() + TIMEOUT;
            loop {
                match self.client().lookup(request.clone()).await {
                    Ok(answer) => return answer.into_inner(),
                    Err(status) => assert!(Instant::now() < deadline, "{status}"),
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        row_values(&answer).as_chunks().0.to_vec()
    }
}

fn next(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

struct Client {
    number: u64,
    random: u64,
    pushed: PushedSums,
}

#[derive(Default)]
struct PushedSums {
    /// Sums of the gradients of acknowledged pushes, by id.
    sums: BTreeMap<u64, f32>,
    /// Pushes that were answered as applied before.
    duplicates: u64,
}

impl Client {
    fn new(number: u64) -> Self {
        Self { number, random: number * 7919 + 1, pushed: PushedSums::default() }
    }

    /// Repeats each push until it is acknowledged.
    fn push_until(mut self, home: &ServerFolder, stop: &AtomicBool, acknowledged: &AtomicU64) -> PushedSums {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut seq = 0;
            let mut client = home.client();
            while !stop.load(Ordering::Relaxed) {
                seq += 1;
                let (request, ids, gradient) = self.request(seq);
                let deadline = Instant::now() + TIMEOUT;
                let duplicate = loop {
                    let sent = tokio::time::timeout(Duration::from_secs(5), client.push(request.clone())).await;
                    match sent {
                        Ok(Ok(answer)) => break answer.into_inner().duplicate,
                        failed => assert!(Instant::now() < deadline, "push {seq} is not acknowledged: {failed:?}"),
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    client = home.client();
                };
                acknowledged.fetch_add(1, Ordering::Relaxed);
                self.pushed.duplicates += u64::from(duplicate);
                ids.into_iter().for_each(|id| *self.pushed.sums.entry(id).or_default() += gradient);
            }
        });
        self.pushed
    }

    fn request(&mut self, seq: u64) -> (PushRequest, Vec<u64>, f32) {
        let first = next(&mut self.random) % IDS;
        let ids: Vec<u64> = (0..ROWS).map(|row| (first + row * 7) % IDS).collect();
        let gradient = (next(&mut self.random) % 7) as f32 - 3.0;
        let request = push_of(writer(self.number), seq, &ids, &vec![gradient; ids.len() * DIM]);
        (request, ids, gradient)
    }
}
