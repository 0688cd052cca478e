//! The live page over a real port: who gets in, what is sent, and that a slow reader delays no other reader.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use zagros_coordinator::{CoordinatorConfig, CoordinatorEnd, CoordinatorError, RunOutcome, run};
use zagros_job::{Job, Overrides};
use zagros_plumbing::admin::PageToken;
use zagros_plumbing::{Shutdown, StopMeaning};
use zagros_transport::Credentials;

/// Long enough for a slow machine. Only a test that fails waits this long.
const TIMEOUT: Duration = Duration::from_secs(60);
const TOKEN: &str = "0123456789abcdef";

struct Served {
    address: SocketAddr,
    shutdown: Shutdown,
    process: JoinHandle<Result<CoordinatorEnd, CoordinatorError>>,
}

impl Served {
    /// A coordinator that waits for its members.
    async fn start(token: Option<&str>) -> Self {
        let text = "name = 'test'\n[data]\nformat = 'criteo'\ntrain = 'a.txt'\n";
        let job = Arc::new(Job::parse(text, Path::new("job.toml"), &Overrides::none()).unwrap());
        let admin_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = admin_listener.local_addr().unwrap();
        let config = CoordinatorConfig {
            state_file: None,
            end_report: None,
            job,
            grpc_listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            admin_listener: Some(admin_listener),
            credentials: Credentials::Open,
            page_token: token.map(|token| PageToken::parse(token).unwrap()),
            registry: Registry::new(),
            journal: None,
            on_stop: StopMeaning::Drain,
        };
        let shutdown = Shutdown::new();
        let process = tokio::spawn(run(config, shutdown.clone()));
        Self { address, shutdown, process }
    }

    async fn ask(&self, path: &str, headers: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    async fn get(&self, path: &str, headers: &str) -> String {
        let mut answer = String::new();
        let mut stream = self.ask(path, headers).await;
        tokio::time::timeout(TIMEOUT, stream.read_to_string(&mut answer)).await.expect("no end").unwrap();
        answer
    }

    async fn end(self) -> CoordinatorEnd {
        self.shutdown.request();
        tokio::time::timeout(TIMEOUT, self.process).await.expect("the coordinator did not end").unwrap().unwrap()
    }
}

/// Reads until the text arrives. Returns all that was read.
async fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut read = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&read).contains(wanted) {
            assert!(
                stream.read_buf(&mut read).await.unwrap() > 0,
                "no {wanted:?} in {}",
                String::from_utf8_lossy(&read)
            );
        }
    };
    tokio::time::timeout(TIMEOUT, reading).await.expect("it did not come");
    String::from_utf8(read).unwrap()
}

#[tokio::test]
async fn a_token_opens_the_page_once_and_a_cookie_from_then_on() {
    let served = Served::start(Some(TOKEN)).await;
    let refused = served.get("/", "").await;
    assert!(refused.starts_with("HTTP/1.1 401") && refused.contains("needs its token"), "{refused}");
    assert!(served.get("/events", "").await.starts_with("HTTP/1.1 401"));
    let page = served.get(&format!("/?token={TOKEN}"), "").await;
    let cookie = format!("zagros_page_{}={TOKEN}", served.address.port());
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    assert!(page.contains(&format!("set-cookie: {cookie}; Path=/; HttpOnly")), "{page}");
    for header in
        ["content-security-policy: default-src 'none'", "referrer-policy: no-referrer", "cache-control: no-store"]
    {
        assert!(page.contains(header), "no {header} in {page}");
    }
    assert!(served.get("/", &format!("Cookie: {cookie}\r\n")).await.starts_with("HTTP/1.1 200"));
    assert!(served.get("/", &format!("Authorization: Bearer {TOKEN}\r\n")).await.starts_with("HTTP/1.1 200"));
    // Probes send no token. Prometheus and the operator do.
    for path in ["/healthz", "/readyz"] {
        assert!(!served.get(path, "").await.starts_with("HTTP/1.1 401"), "{path}");
    }
    for path in ["/metrics", "/status"] {
        assert!(served.get(path, "").await.starts_with("HTTP/1.1 401"), "{path}");
        let answer = served.get(path, &format!("Authorization: Bearer {TOKEN}\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}");
    }
    served.end().await;
}

#[tokio::test]
async fn events_come_each_second_and_end_with_the_run() {
    let served = Served::start(None).await;
    let mut stream = served.ask("/events", "").await;
    let first = read_until(&mut stream, "\n\n").await;
    assert!(first.contains("content-type: text/event-stream") && first.contains("retry: 2000"), "{first}");
    assert!(first.contains("event: whole") && first.contains("\"job\":\"test\""), "{first}");
    // A run that no process has joined has no points, so each event has the whole report.
    assert!(read_until(&mut stream, "\n\n").await.contains("\"state\":\"waiting\""));
    assert!(matches!(served.end().await, CoordinatorEnd::Over(RunOutcome::Interrupted(_))));
    let mut rest = String::new();
    tokio::time::timeout(TIMEOUT, stream.read_to_string(&mut rest)).await.expect("the stream goes on").unwrap();
    assert!(rest.contains("event: end") && rest.contains("\"state\":\"interrupted\""), "{rest}");
}

#[tokio::test]
async fn listeners_are_bounded_and_one_that_does_not_read_delays_nobody() {
    let served = Served::start(None).await;
    let mut listeners = Vec::new();
    for _ in 0..32 {
        let mut stream = served.ask("/events", "").await;
        read_until(&mut stream, "event: whole").await;
        listeners.push(stream);
    }
    let refused = served.get("/events", "").await;
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("32 browsers watch this run already"), "{refused}");
    assert!(refused.contains("retry-after: 10"), "{refused}");
    // None of them reads, and all else is answered.
    assert!(served.get("/healthz", "").await.contains("ok") && served.get("/status", "").await.contains("waiting"));
    // Once a listener has gone, another one gets in.
    drop(listeners.pop());
    let again = async {
        loop {
            let mut stream = served.ask("/events", "").await;
            if read_until(&mut stream, "\r\n").await.starts_with("HTTP/1.1 200") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, again).await.expect("no new listener gets in");
    served.end().await;
}
