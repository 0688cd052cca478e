//! A port that asks for proof, over real sockets: who gets in, what others hear, and what strangers cost.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status};
use zagros_plumbing::metrics::IntCounter;
use zagros_protocol::RefusalKind;
use zagros_protocol::control::{
    DescribeRequest, DescribeResponse, ForgetRequest, ForgetResponse, LoadRequest, LoadResponse, SaveRequest,
    SaveResponse,
};
use zagros_transport::control::storage_client::StorageClient;
use zagros_transport::control::storage_server::{Storage, StorageServer};
use zagros_transport::{Credentials, PeerRole, RoleKey, open_channel, refusal_of, serve};

const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Default)]
struct Counting(Arc<AtomicU64>);

#[tonic::async_trait]
impl Storage for Counting {
    async fn describe(&self, _: Request<DescribeRequest>) -> Result<Response<DescribeResponse>, Status> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(DescribeResponse::default()))
    }

    async fn save(&self, _: Request<SaveRequest>) -> Result<Response<SaveResponse>, Status> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(SaveResponse::default()))
    }

    async fn load(&self, _: Request<LoadRequest>) -> Result<Response<LoadResponse>, Status> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(LoadResponse::default()))
    }

    async fn forget(&self, _: Request<ForgetRequest>) -> Result<Response<ForgetResponse>, Status> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(ForgetResponse::default()))
    }
}

struct Port {
    address: SocketAddr,
    reached: Arc<AtomicU64>,
    refused: IntCounter,
    _stop: oneshot::Sender<()>,
}

impl Port {
    async fn open(credentials: Credentials) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = Counting::default();
        let reached = Arc::clone(&service.0);
        let (stop, stopped) = oneshot::channel::<()>();
        let counter = IntCounter::new("refused", "Refused connections.").unwrap();
        let refused = counter.clone();
        tokio::spawn(async move {
            let stopped = async move { drop(stopped.await) };
            serve(listener, &credentials, refused, Routes::new(StorageServer::new(service)), stopped).await.unwrap();
        });
        Self { address, reached, refused: counter, _stop: stop }
    }

    async fn describe_as(&self, credentials: &Credentials) -> Result<(), Status> {
        let channel = open_channel(&self.address.to_string(), credentials, PeerRole::EmbeddingServer).unwrap();
        let call = async { StorageClient::new(channel).describe(DescribeRequest {}).await.map(|_| ()) };
        tokio::time::timeout(TIMEOUT, call).await.expect("no answer")
    }

    fn reached(&self) -> u64 {
        self.reached.load(Ordering::Relaxed)
    }
}

fn role_credentials(secret: &RoleKey, role: PeerRole) -> Credentials {
    Credentials::Secret(secret.derive_key(role).unwrap())
}

/// Invariant MB-7.
#[tokio::test]
async fn members_get_in_and_everyone_else_hears_why_not() {
    let secret = RoleKey::random();
    let port = Port::open(role_credentials(&secret, PeerRole::EmbeddingServer)).await;
    for role in [PeerRole::DenseWorker, PeerRole::EmbeddingServer, PeerRole::Coordinator] {
        port.describe_as(&role_credentials(&secret, role)).await.unwrap_or_else(|refused| panic!("{role}: {refused}"));
    }
    assert_eq!(port.reached(), 3);

    let stranger = port.describe_as(&Credentials::Open).await.unwrap_err();
    assert_eq!(stranger.code(), Code::Unauthenticated);
    assert!(stranger.message().contains("ZAGROS_RUN_SECRET_FILE"), "{stranger}");
    assert_eq!(refusal_of(stranger).kind, RefusalKind::Unauthenticated);

    let client = port.describe_as(&role_credentials(&secret, PeerRole::Client)).await.unwrap_err();
    assert_eq!(client.code(), Code::PermissionDenied);
    assert!(client.message().contains("needs the role dense-worker"), "{client}");

    // The channel gives up before a request is sent, and says why.
    let other = refusal_of(port.describe_as(&Credentials::Secret(RoleKey::random())).await.unwrap_err());
    assert_eq!(other.kind, RefusalKind::Unauthenticated, "{other}");
    assert!(other.message.contains("another run secret"), "{other}");
    assert!(!other.kind.is_retryable());
    assert_eq!(port.reached(), 3);
}

#[tokio::test]
async fn a_port_without_a_secret_is_open_to_those_without_one_and_to_no_others() {
    let port = Port::open(Credentials::Open).await;
    port.describe_as(&Credentials::Open).await.unwrap();
    let refused = refusal_of(port.describe_as(&Credentials::Secret(RoleKey::random())).await.unwrap_err());
    assert_eq!(refused.kind, RefusalKind::Unauthenticated, "{refused}");
    assert!(refused.message.contains("has no run secret"), "{refused}");
    assert_eq!(port.reached(), 1);
}

#[tokio::test]
async fn a_broken_connection_may_be_retried() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = IntCounter::new("refused", "Refused connections.").unwrap();
    let silent = Port { address, reached: Arc::default(), refused, _stop: oneshot::channel().0 };
    let refused = refusal_of(silent.describe_as(&Credentials::Secret(RoleKey::random())).await.unwrap_err());
    assert!(refused.kind.is_retryable(), "{refused:?}");
}

/// Greetings, halves of greetings, noise, silence: the port goes on, and members get in.
#[tokio::test]
async fn strangers_cost_nobody_a_place() {
    let secret = RoleKey::random();
    let port = Port::open(role_credentials(&secret, PeerRole::EmbeddingServer)).await;
    let mut strangers = Vec::new();
    for number in 0..200_u32 {
        let mut stream = TcpStream::connect(port.address).await.unwrap();
        let sent: &[u8] = match number % 5 {
            0 => b"",
            1 => b"zagros/1",
            2 => b"zagros/1\xff01234567890123456789012345678901",
            3 => b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a client of TLS",
            _ => b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n",
        };
        let _ = stream.write_all(sent).await;
        strangers.push(stream);
    }
    port.describe_as(&role_credentials(&secret, PeerRole::DenseWorker)).await.unwrap();
    assert_eq!(port.reached(), 1);
    // A role that is none is refused at once, without a MAC.
    let mut answer = Vec::new();
    tokio::time::timeout(TIMEOUT, strangers[2].read_to_end(&mut answer)).await.expect("no end").unwrap();
    assert_eq!(answer, b"zagros/1\x02");
    let counted = async {
        while port.refused.get() < 40 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, counted).await.expect("a refused connection is not counted");
    assert_eq!(port.refused.get(), 40, "those that only say nothing, or no greeting, claim nothing");
}

/// A save names a folder, and a load may name many files.
#[tokio::test]
async fn a_request_that_is_longer_than_its_call_allows_reaches_nobody() {
    let secret = RoleKey::random();
    let port = Port::open(role_credentials(&secret, PeerRole::EmbeddingServer)).await;
    let credentials = role_credentials(&secret, PeerRole::DenseWorker);
    let channel = open_channel(&port.address.to_string(), &credentials, PeerRole::EmbeddingServer).unwrap();
    let mut client = StorageClient::new(channel);
    let folder = "f".repeat(300 << 10);
    let save = client.save(SaveRequest { folder: folder.clone(), ..SaveRequest::default() });
    let refused = tokio::time::timeout(TIMEOUT, save).await.expect("no answer").unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    assert!(refused.message().contains("Storage/Save has at most 262144 bytes"), "{refused}");
    assert_eq!(port.reached(), 0);
    let load = client.load(LoadRequest { folder, ..LoadRequest::default() });
    tokio::time::timeout(TIMEOUT, load).await.expect("no answer").unwrap();
    assert_eq!(port.reached(), 1);
}
