//! The HTTP port of a role: `/healthz` (alive), `/readyz` (able to serve, or why not), `/metrics`.

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use prometheus::Registry;
use tokio::net::TcpListener;

use crate::{Shutdown, metrics};

/// Answers whether the role can do its work now; the error says why not, in words.
pub type Readiness = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The three routes every role has; add a role's own with [`Router::merge`].
pub fn routes(registry: Registry, readiness: Readiness) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(async move || ready(&readiness)))
        .route("/metrics", get(async move || metrics::render(&registry)))
}

fn ready(readiness: &Readiness) -> (StatusCode, String) {
    match readiness() {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")),
    }
}

/// Serves until shutdown is requested.
///
/// # Errors
/// When the listener fails.
pub async fn serve(listener: TcpListener, routes: Router, shutdown: Shutdown) -> std::io::Result<()> {
    axum::serve(listener, routes).with_graceful_shutdown(async move { shutdown.requested().await }).await
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    async fn get(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn a_role_tells_health_readiness_and_metrics() {
        let registry = Registry::new();
        let counter = metrics::register(&registry, metrics::IntCounter::new("test_total", "A test."));
        counter.inc_by(3);
        let readiness: Readiness = Arc::new(|| Err("waiting for embedding server 2".to_owned()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = Shutdown::new();
        let server = tokio::spawn(serve(listener, routes(registry, readiness), shutdown.clone()));

        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let unready = get(address, "/readyz").await;
        assert!(unready.starts_with("HTTP/1.1 503") && unready.contains("waiting for embedding server 2"), "{unready}");
        assert!(get(address, "/metrics").await.contains("test_total 3"));
        shutdown.request();
        server.await.unwrap().unwrap();
    }
}
