//! The live page over a real port: who gets in, what is sent, and that a slow reader delays no other reader.

use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use zagros_coordinator::{CoordinatorEnd, RunOutcome};
use zagros_transport::{Credentials, RoleKey};

use crate::cluster::{TIMEOUT, TestCluster};

async fn start() -> TestCluster {
    TestCluster::listen_as("127.0.0.1:0", 20.0, |_| {}).await
}

/// Reads until the text arrives. Returns all that was read.
async fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut read = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&read).contains(wanted) {
            let count = stream.read_buf(&mut read).await.unwrap();
            assert!(count > 0, "no {wanted:?} in {}", String::from_utf8_lossy(&read));
        }
    };
    tokio::time::timeout(TIMEOUT, reading).await.expect("it did not come");
    String::from_utf8(read).unwrap()
}

#[tokio::test]
async fn a_token_opens_the_page_once_and_a_cookie_from_then_on() {
    let secret = RoleKey::random();
    let token = secret.page_token();
    let exposed = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let served = TestCluster::listen_as("127.0.0.1:0", 20.0, |config| {
        (config.credentials, config.admin_listener) = (Credentials::Secret(secret), Some(exposed));
    })
    .await;
    let refused = served.get("/", "").await;
    assert!(refused.starts_with("HTTP/1.1 401") && refused.contains("needs its token"), "{refused}");
    let page = served.get(&format!("/?token={token}"), "").await;
    let cookie = format!("zagros_page_{}={token}", served.admin.port());
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    assert!(page.contains(&format!("set-cookie: {cookie}; Path=/; HttpOnly")), "{page}");
    for header in
        ["content-security-policy: default-src 'none'", "referrer-policy: no-referrer", "cache-control: no-store"]
    {
        assert!(page.contains(header), "no {header} in {page}");
    }
    assert!(served.get("/", &format!("Cookie: {cookie}\r\n")).await.starts_with("HTTP/1.1 200"));
    assert!(served.get("/", &format!("Authorization: Bearer {token}\r\n")).await.starts_with("HTTP/1.1 200"));
    assert!(served.get("/metrics", &format!("Authorization: Bearer {token}\r\n")).await.starts_with("HTTP/1.1 200"));
    served.stop().await;
}

#[tokio::test]
async fn events_come_each_second_and_end_with_the_run() {
    let served = start().await;
    let mut stream = served.ask("/events", "").await;
    let first = read_until(&mut stream, "\n\n").await;
    assert!(first.contains("content-type: text/event-stream") && first.contains("retry: 2000"), "{first}");
    assert!(first.contains("event: whole") && first.contains("\"job\":\"test\""), "{first}");
    // A run that no process has joined has no points, so each event has the whole report.
    assert!(read_until(&mut stream, "\n\n").await.contains("\"state\":\"waiting\""));
    assert!(matches!(served.stop().await, CoordinatorEnd::Over(RunOutcome::Interrupted(_))));
    let mut rest = String::new();
    tokio::time::timeout(TIMEOUT, stream.read_to_string(&mut rest)).await.expect("the stream goes on").unwrap();
    assert!(rest.contains("event: end") && rest.contains("\"state\":\"interrupted\""), "{rest}");
}

#[tokio::test]
async fn listeners_are_bounded_and_one_that_does_not_read_delays_nobody() {
    let served = start().await;
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
    served.stop().await;
}
