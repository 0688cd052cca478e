//! A coordinator process under strangers: what they reach, what they cost, and that a member is served meanwhile.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use http::HeaderMap;
use http::uri::PathAndQuery;
use tonic::{Code, Status};
use zagros_plumbing::grpc::unary::{OutgoingMessage, call};
use zagros_plumbing::process::{file_limit, raise_file_limit};
use zagros_protocol::control::{StatusRequest, StatusResponse};
use zagros_transport::control::coordinator_client::CoordinatorClient;
use zagros_transport::proof::CALLS;
use zagros_transport::{Credentials, PeerRole, RoleKey, open_channel};

const TIMEOUT: Duration = Duration::from_secs(60);
const JOB: &str = r#"
[data]
format = "criteo"
train = "train.txt"
[embedding]
dim = 4
[model]
kind = "dlrm"
bottom = [16]
top = [16]
[cluster]
coordinator = "0.0.0.0:0"
admin = "0.0.0.0:0"
"#;

/// Connections of a port: `plumbing/src/listener.rs` and `plumbing/src/admin/serving.rs`.
const PORT_HOLDS: usize = 4096;
const ADMIN_HOLDS: usize = 256;
/// What one connection may cost the process, in bytes: one that is silent, one that sends without a proof, and one that never
/// completes its headers. docs/security.md states the same.
const SILENT: u64 = 8 << 10;
const UNPROVEN: u64 = 64 << 10;
const HEADERS: u64 = 32 << 10;
/// What the process may take besides, such as for the requests of members.
const BESIDES: u64 = 16 << 20;

/// A coordinator in a process of its own. Other machines could reach its ports, so they ask for proof.
struct Coordinator {
    child: Child,
    grpc: SocketAddr,
    admin: SocketAddr,
    secret: RoleKey,
    _folder: tempfile::TempDir,
}

impl Coordinator {
    fn start() -> Self {
        let (folder, secret) = (tempfile::tempdir().unwrap(), RoleKey::random());
        std::fs::write(folder.path().join("job.toml"), JOB).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_zagros-server"))
            .args(["coordinator", "job.toml", "--announce", "coordinator.json"])
            .env("ZAGROS_RUN_SECRET", secret.expose_secret())
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let announced = announcement(&folder.path().join("coordinator.json"));
        let [grpc, admin] = ["address", "admin"].map(|key| {
            let listens: SocketAddr = announced[key].as_str().unwrap().parse().unwrap();
            SocketAddr::from(([127, 0, 0, 1], listens.port()))
        });
        Self { child, grpc, admin, secret, _folder: folder }
    }

    fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().trim();
        kib.strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
    }

    fn credentials(&self, role: PeerRole) -> Credentials {
        Credentials::Secret(self.secret.derive_key(role).unwrap())
    }

    /// What a worker that connects now is answered.
    async fn status(&self) -> Result<StatusResponse, Status> {
        let credentials = self.credentials(PeerRole::DenseWorker);
        let mut client =
            CoordinatorClient::new(open_channel(&self.grpc.to_string(), &credentials, PeerRole::Coordinator).unwrap());
        let answer = tokio::time::timeout(TIMEOUT, client.status(StatusRequest {})).await.expect("no answer");
        answer.map(tonic::Response::into_inner)
    }

    /// The first line that the admin port answers.
    fn http(&self, path: &str, header: &str) -> String {
        let mut stream = connect(self.admin);
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut line = [0; 12];
        stream.read_exact(&mut line).unwrap();
        String::from_utf8_lossy(&line).into_owned()
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn announcement(path: &Path) -> serde_json::Value {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Ok(bytes) = std::fs::read(path) {
            return serde_json::from_slice(&bytes).unwrap();
        }
        assert!(Instant::now() < deadline, "the coordinator does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect_timeout(&address, TIMEOUT).unwrap()
}

/// Sends as much as the other end takes now. The other end may have closed.
fn send(stream: &mut TcpStream, bytes: &[u8]) {
    stream.set_nonblocking(true).unwrap();
    let mut left = bytes;
    while !left.is_empty() {
        match stream.write(left) {
            Ok(sent) => left = &left[sent..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Each kind of stranger holds its connections while a member is served, and the process does not grow beyond its bound.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_cost_what_is_stated_and_members_are_served_meanwhile() {
    raise_file_limit();
    let files = file_limit().map_or(usize::MAX, |files| files as usize);
    let coordinator = Coordinator::start();
    coordinator.status().await.unwrap();
    assert_eq!(coordinator.http("/healthz", ""), "HTTP/1.1 200");

    let check = async |what: &str, strangers: &[TcpStream], before: u64, bound: u64| {
        for _ in 0..4 {
            coordinator.status().await.unwrap_or_else(|refused| panic!("{what}: {refused}"));
        }
        assert_eq!(coordinator.http("/healthz", ""), "HTTP/1.1 200", "{what}");
        let (count, after) = (strangers.len(), coordinator.memory());
        println!("{count} {what}: {} KiB before, {} KiB after", before >> 10, after >> 10);
        assert!(after <= before + bound, "{what}: {before} bytes before, {after} after, {bound} allowed");
    };

    let memory_before = coordinator.memory();
    let count = 10_000.min(files.saturating_sub(1_000));
    let silent: Vec<_> = (0..count).map(|_| connect(coordinator.grpc)).collect();
    check("silent connections", &silent, memory_before, SILENT * PORT_HOLDS.min(count) as u64 + BESIDES).await;
    drop(silent);

    // A frame of HTTP/2 of the largest size that never ends.
    let memory_before = coordinator.memory();
    let mut frame = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    frame.extend([0x3f, 0xff, 0xff, 0, 0, 0, 0, 0, 1]);
    frame.resize(1 << 20, 7);
    let mut unproven: Vec<_> = (0..500.min(count)).map(|_| connect(coordinator.grpc)).collect();
    unproven.iter_mut().for_each(|stream| send(stream, &frame));
    check("connections that send a frame without a proof", &unproven, memory_before, UNPROVEN * 500 + BESIDES).await;
    drop(unproven);

    // Slowloris: headers that go on and on.
    let memory_before = coordinator.memory();
    let mut slow: Vec<_> = (0..2 * ADMIN_HOLDS).map(|_| connect(coordinator.admin)).collect();
    for _ in 0..20 {
        slow.iter_mut()
            .for_each(|stream| send(stream, format!("GET /metrics HTTP/1.1\r\nX: {}\r\n", "x".repeat(500)).as_bytes()));
    }
    check("connections with headers that never end", &slow, memory_before, HEADERS * ADMIN_HOLDS as u64 + BESIDES)
        .await;
}

/// Invariant MB-7, of a process: every call of the protocol and every path of its HTTP port.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_reaches_nothing_but_probes() {
    let coordinator = Coordinator::start();
    let mut stranger = open_channel(&coordinator.grpc.to_string(), &Credentials::Open, PeerRole::Coordinator).unwrap();
    for (path, ..) in CALLS {
        let message = OutgoingMessage::new((), []);
        let called = call::<(), ()>(&mut stranger, PathAndQuery::from_static(path), HeaderMap::new(), message);
        let refused = tokio::time::timeout(TIMEOUT, called).await.expect("no answer").unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated, "{path}: {refused}");
    }
    for path in ["/healthz", "/readyz"] {
        assert_ne!(coordinator.http(path, ""), "HTTP/1.1 401", "{path}");
    }
    let token = coordinator.credentials(PeerRole::Client).page_token().unwrap();
    for path in http_paths() {
        assert_eq!(coordinator.http(&path, ""), "HTTP/1.1 401", "{path}");
        assert_eq!(coordinator.http(&path, "Authorization: Bearer 0123456789abcdef\r\n"), "HTTP/1.1 401", "{path}");
    }
    assert_eq!(coordinator.http("/status", &format!("Authorization: Bearer {token}\r\n")), "HTTP/1.1 200");
    coordinator.status().await.unwrap();
}

/// Every path that any role's HTTP port has, but the probes, and one that none has.
fn http_paths() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths = vec!["/nothing".to_owned()];
    let roles = ["coordinator/src/page.rs", "coordinator/src/process.rs", "embedding-server/src/server.rs"];
    let others = ["dense-worker/src/control.rs", "cli/src/commands/dense_worker.rs", "plumbing/src/admin.rs"];
    for source in [roles, others].concat() {
        let text = std::fs::read_to_string(root.join(source)).unwrap();
        let served = text.split("#[cfg(test)]").next().unwrap();
        for start in [".route(\"", "admin::json_route(\""] {
            let named = served.split(start).skip(1).filter_map(|rest| rest.split_once('"'));
            paths.extend(named.map(|(path, _)| path.to_owned()));
        }
    }
    paths.retain(|path| !["/healthz", "/readyz"].contains(&path.as_str()));
    assert!(
        ["/", "/events", "/metrics", "/status", "/waits"].iter().all(|path| paths.iter().any(|found| found == path))
    );
    paths
}
