//! Coordinator and embedding servers of a benchmark: in this process, or as processes over loopback. And the lower bound for any service on
//! this machine: the bytes of a batch through loopback sockets.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use tempfile::TempDir;
use zagros_coordinator_client::{ControlPlane, GrpcControlPlane};
use zagros_embedding_client::{Connect, GrpcShard};
use zagros_job::Job;
use zagros_plumbing::process::{cpu_time, cpu_time_of};
use zagros_protocol::datapath::Encoding;
use zagros_shell::launch::{
    ChildOutput, EmbeddedCluster, LaunchPlan, RoleAddresses, RowFolders, RunConsole, Supervisor,
};
use zagros_shell::{Exit, Failure, Logging, OrFailure};
use zagros_transport::RoleKey;

/// Embedding servers, and the client's connection to them.
pub struct ServerSide {
    pub control: Arc<dyn ControlPlane>,
    pub connect: Connect,
    /// Of the job's requests.
    pub timeout: Duration,
    pub fingerprint: u64,
    servers: Vec<Pid>,
    children: Option<ServerProcesses>,
}

/// Coordinator and servers as processes, and the folder with their job.
struct ServerProcesses {
    supervisor: Supervisor,
    _folder: TempDir,
}

/// User and system time since the processes started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuTimes {
    /// Of this process.
    pub client: Duration,
    /// CPU time of all server processes; zero if the servers are in this process.
    pub server: Duration,
}

impl ServerSide {
    /// Servers in this process, called without a socket.
    pub async fn start_embedded(job: &Job) -> Result<Self, Failure> {
        let EmbeddedCluster { control, connect, .. } = EmbeddedCluster::start(job).await?;
        let (timeout, fingerprint) = (job.cluster.timeout, job.fingerprint());
        Ok(Self { control, connect, timeout, fingerprint, servers: Vec::new(), children: None })
    }

    /// Servers and their coordinator, started as by `zagros up`: processes of `program`, which is `zagros`. `text` is the job file.
    pub async fn start_processes(program: &Path, text: &str, job: &Job) -> Result<Self, Failure> {
        let folder = TempDir::new().or_internal()?;
        let job_file = folder.path().join("job.toml");
        std::fs::write(&job_file, text).or_internal()?;
        let timeout = job.cluster.timeout;
        let plan = plan_launch(program, &job_file, folder.path(), job);
        let mut supervisor = Supervisor::new(timeout);
        let coordinator = plan.start_servers(job, &mut supervisor).await?;
        let credentials = plan.credentials();
        let control = GrpcControlPlane::connect(&coordinator, timeout, &credentials).or_internal()?;
        Ok(Self {
            control: Arc::new(control),
            connect: Arc::new(move |entry| GrpcShard::connect(entry, timeout, &credentials)),
            timeout,
            fingerprint: job.fingerprint(),
            servers: supervisor.server_pids(),
            children: Some(ServerProcesses { supervisor, _folder: folder }),
        })
    }

    /// The CPU time of all processes, without the coordinator's.
    pub fn cpu_times(&self) -> Result<CpuTimes, Failure> {
        let times: Option<Vec<Duration>> = self.servers.iter().map(|server| cpu_time_of(*server)).collect();
        let server = times.ok_or_else(|| {
            let what = "the kernel does not report the CPU time of a server process";
            Failure::with_help(Exit::Internal, what, "check above whether it ended; /proc must be mounted")
        })?;
        Ok(CpuTimes { client: cpu_time(), server: server.iter().sum() })
    }

    pub async fn stop_processes(self) {
        if let Some(mut children) = self.children {
            children.supervisor.stop_all().await;
        }
    }
}

/// The processes of a job in this folder, on any free ports.
pub fn plan_launch<'a>(program: &'a Path, job_file: &'a Path, folder: &'a Path, job: &Job) -> LaunchPlan<'a> {
    LaunchPlan {
        program,
        job_file,
        sets: &[],
        folder,
        timeout: job.cluster.timeout,
        logging: Logging::quiet(),
        resume: false,
        output: ChildOutput { console: RunConsole::silent(), logs: None },
        addresses: RoleAddresses::any_ports(),
        row_folders: RowFolders::new(job, folder),
        secret: RoleKey::random(),
    }
}

impl CpuTimes {
    pub fn since(self, earlier: Self) -> Self {
        Self { client: self.client - earlier.client, server: self.server - earlier.server }
    }
}

/// Far longer than a batch takes on loopback.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of an id.
const ID: usize = 8;
const ACK: usize = 8;

/// Bytes of a batch each way: the request and the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteExchange {
    lookup: [usize; 2],
    push: [usize; 2],
}

/// The cost of moving the bytes of a batch.
#[derive(Clone, Copy, Debug)]
pub struct SocketLimit {
    /// User and system time of both ends, seconds per batch.
    pub cpu: f64,
    /// Batches per second, all connections together.
    pub rate: f64,
}

impl ByteExchange {
    /// A batch of so many distinct rows.
    pub fn new(rows: usize, dim: usize, wire: Encoding) -> Self {
        let values = rows * dim * if wire == Encoding::F32 { 4 } else { 2 };
        Self { lookup: [rows * ID, values], push: [rows * ID + values, ACK] }
    }

    pub fn total_bytes(self) -> usize {
        self.lookup.iter().chain(&self.push).sum()
    }

    fn largest_message(self) -> usize {
        self.lookup.into_iter().chain(self.push).max().unwrap_or(0)
    }
}

/// Moves `batches` exchanges over `connections` at once, with blocking calls and nothing in between.
pub fn measure_loopback(exchange: ByteExchange, batches: usize, connections: usize) -> Result<SocketLimit, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).or_internal()?;
    let address = listener.local_addr().or_internal()?;
    let (started, before) = (Instant::now(), cpu_time());
    let share = batches.div_ceil(connections);
    let mut ends = Vec::new();
    for _ in 0..connections {
        let asking = TcpStream::connect(address).or_internal()?;
        let (answering, _) = listener.accept().or_internal()?;
        ends.push(thread::spawn(move || repeat(asking, exchange, share, ask)));
        ends.push(thread::spawn(move || repeat(answering, exchange, share, answer)));
    }
    for end in ends {
        let ended = end.join().map_err(|_| Failure::with_help(Exit::Internal, "a thread panicked", "see above"))?;
        ended.or_internal()?;
    }
    let moved = (share * connections) as f64;
    let cpu = (cpu_time() - before).as_secs_f64() / moved;
    Ok(SocketLimit { cpu, rate: moved / started.elapsed().as_secs_f64() })
}

type End = fn(&mut TcpStream, &mut [u8], [usize; 2]) -> std::io::Result<()>;

fn repeat(mut stream: TcpStream, exchange: ByteExchange, batches: usize, end: End) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut buffer = vec![0; exchange.largest_message()];
    for _ in 0..batches {
        end(&mut stream, &mut buffer, exchange.lookup)?;
        end(&mut stream, &mut buffer, exchange.push)?;
    }
    Ok(())
}

fn ask(stream: &mut TcpStream, buffer: &mut [u8], [asked, answered]: [usize; 2]) -> std::io::Result<()> {
    stream.write_all(&buffer[..asked])?;
    stream.read_exact(&mut buffer[..answered])
}

fn answer(stream: &mut TcpStream, buffer: &mut [u8], [asked, answered]: [usize; 2]) -> std::io::Result<()> {
    stream.read_exact(&mut buffer[..asked])?;
    stream.write_all(&buffer[..answered])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload;

    #[tokio::test]
    async fn an_embedded_side_spends_its_time_in_this_process() {
        let job = workload::parse_job(&workload::job_text(4, "kind = \"ffnn\"", "", "")).unwrap();
        let side = ServerSide::start_embedded(&job).await.unwrap();
        let start = side.cpu_times().unwrap();
        while cpu_time() < start.client + Duration::from_millis(1) {
            std::hint::spin_loop();
        }
        let spent = side.cpu_times().unwrap().since(start);
        assert!(spent.client >= Duration::from_millis(1) && spent.server == Duration::ZERO, "{spent:?}");
        side.stop_processes().await;
    }

    #[test]
    fn an_exchange_has_the_bytes_of_a_batch() {
        let exact = ByteExchange::new(10, 16, Encoding::F32);
        assert_eq!(exact, ByteExchange { lookup: [80, 640], push: [720, 8] });
        assert_eq!(ByteExchange::new(10, 16, Encoding::Bf16), ByteExchange { lookup: [80, 320], push: [400, 8] });
        assert_eq!((exact.total_bytes(), exact.largest_message()), (1448, 720));
    }

    #[test]
    fn every_connection_moves_its_share() {
        let limit = measure_loopback(ByteExchange { lookup: [100, 70_000], push: [70_000, 8] }, 5, 2).unwrap();
        assert!(limit.cpu > 0.0 && limit.rate > 0.0, "{limit:?}");
    }
}
