//! HTTP/1.1 with bounds: what a stranger may hold of a port, and for how long.
//!
//! The number of connections has a limit. The headers of a request must come within a time, be few and be short. A connection
//! between two requests has the same time. No path reads a body.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tracing::debug;

use crate::Shutdown;
use crate::listener::{BoundedConnection, BoundedListener};

/// Browsers that watch a run, Prometheus, probes, and as many more.
const MOST_CONNECTIONS: usize = 256;
/// How long the headers of a request may take, from the connection or from the request before.
const HEADERS_WITHIN: Duration = Duration::from_secs(30);
/// Bytes of the headers of one request. Browsers send one or two thousand.
const HEADER_BYTES: usize = 16 << 10;
const MOST_HEADERS: usize = 64;

/// Serves until shutdown is requested and the requests that run then are answered.
pub(super) async fn serve(listener: TcpListener, routes: Router, shutdown: &Shutdown) {
    let mut listener = BoundedListener::new(listener, MOST_CONNECTIONS);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            (connection, _) = listener.accept() => {
                connections.spawn(serve_connection(connection, routes.clone(), shutdown.clone()));
            }
            Some(_) = connections.join_next() => {}
            () = shutdown.requested() => break,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn serve_connection(connection: BoundedConnection, routes: Router, shutdown: Shutdown) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .max_buf_size(HEADER_BYTES)
        .max_headers(MOST_HEADERS);
    let serving = http.serve_connection(TokioIo::new(connection), TowerToHyperService::new(routes));
    let mut serving = std::pin::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = shutdown.requested() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection of the admin port ended");
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    async fn open() -> (SocketAddr, Shutdown) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, shutdown) = (listener.local_addr().unwrap(), Shutdown::new());
        let stop = shutdown.clone();
        tokio::spawn(async move { serve(listener, Router::new().route("/", get(async || "served")), &stop).await });
        (address, shutdown)
    }

    /// What is answered until the other end closes. It may close with an error, if it had not read all that was sent.
    async fn answer(mut stream: TcpStream, sent: &[u8]) -> String {
        let _ = stream.write_all(sent).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_never_ends_is_given_up_and_others_are_served() {
        let (address, _shutdown) = open().await;
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n").await.unwrap();
        let dribbling = async {
            // One header every second, for ever.
            while slow.write_all(b"X: 1\r\n").await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::time::timeout(HEADERS_WITHIN * 2, dribbling).await.expect("the connection is closed");
        let whole = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        assert!(answer(TcpStream::connect(address).await.unwrap(), whole).await.ends_with("served"));
    }

    #[tokio::test]
    async fn headers_that_are_too_long_or_too_many_are_refused() {
        let (address, _shutdown) = open().await;
        let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(HEADER_BYTES * 2));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "X: 1\r\n".repeat(MOST_HEADERS + 1));
        for request in [long, many] {
            let answer = answer(TcpStream::connect(address).await.unwrap(), request.as_bytes()).await;
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
        }
    }

    #[tokio::test]
    async fn a_request_that_runs_is_answered_before_the_end() {
        let (address, shutdown) = open().await;
        let stream = TcpStream::connect(address).await.unwrap();
        let answered = tokio::spawn(answer(stream, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        shutdown.request();
        let answered = tokio::time::timeout(Duration::from_secs(60), answered).await.expect("the port closes").unwrap();
        assert!(answered.is_empty() || answered.ends_with("served"), "{answered}");
    }
}
