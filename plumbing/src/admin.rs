//! The HTTP port of a role: `/healthz` (the process is alive), `/readyz` (the role can serve, or why not), `/metrics`.
//! The first two are open to every reader of the port, because probes send no token. Every other path needs what
//! [`PageAccess`] says.
//!
//! A port on a loopback address refuses requests whose `Host` does not name this machine. Otherwise a web page could
//! read the port by DNS rebinding: its host name is made to point to 127.0.0.1, and the browser of a user of this
//! machine lets the page's script read every answer.

mod access;
mod serving;

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header, uri::Authority};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use prometheus::Registry;
use serde::Serialize;
use tokio::net::TcpListener;

use crate::{Shutdown, metrics};
use access::{NO_TOKEN, PageEntry};
pub use access::{PageAccess, PageToken};

const PROBES: [&str; 2] = ["/healthz", "/readyz"];

/// Returns whether the role can work now. The error is the reason why not.
pub type Readiness = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The three routes of every role. A role adds its own with [`Router::merge`].
pub fn routes(registry: Registry, readiness: Readiness) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(async move || ready(&readiness)))
        .route("/metrics", get(async move || metrics::render_text(&registry)))
}

/// A route that answers with what a function returns, as JSON.
pub fn json_route<T: Serialize + 'static>(
    path: &str,
    answer: impl Fn() -> T + Clone + Send + Sync + 'static,
) -> Router {
    Router::new().route(path, get(async move || Json(answer())))
}

fn ready(readiness: &Readiness) -> (StatusCode, String) {
    match readiness() {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")),
    }
}

/// Serves those who may read the port, until shutdown is requested.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    access: PageAccess,
    shutdown: Shutdown,
) -> std::io::Result<()> {
    let is_local = listener.local_addr()?.ip().is_loopback();
    let access = Arc::new(access);
    let routes = routes.layer(from_fn(move |request: Request, next: Next| {
        let access = Arc::clone(&access);
        async move { admit(&access, request, next).await }
    }));
    let routes = if is_local { routes.layer(from_fn(refuse_other_hosts)) } else { routes };
    serving::serve(listener, routes, &shutdown).await;
    Ok(())
}

/// Lets a request through that is a probe, or that has the token. The first request with the token in its address gets a
/// cookie.
async fn admit(access: &PageAccess, request: Request, next: Next) -> Response {
    if PROBES.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    match access.check_request(request.headers(), request.uri()) {
        None => NO_TOKEN.into_response(),
        Some(PageEntry::Allowed) => next.run(request).await,
        Some(PageEntry::WithCookie(cookie)) => {
            let mut response = next.run(request).await;
            response.headers_mut().insert(header::SET_COOKIE, cookie);
            response
        }
    }
}

async fn refuse_other_hosts(request: Request, next: Next) -> Response {
    const REFUSAL: &str =
        "this port serves this machine only; open it as http://127.0.0.1 or http://localhost with its port\n";
    if names_this_machine(request.headers()) {
        return next.run(request).await;
    }
    (StatusCode::FORBIDDEN, REFUSAL).into_response()
}

fn names_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST).and_then(|host| host.to_str().ok()) else { return false };
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name == "localhost" || name.ends_with(".localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    async fn get(address: SocketAddr, path: &str) -> String {
        get_as("localhost", address, path).await
    }

    async fn get_as(host: &str, address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    type ServingTask = tokio::task::JoinHandle<std::io::Result<()>>;

    /// The port of a role that is not ready.
    async fn open(host: &str, access: impl FnOnce(SocketAddr) -> PageAccess) -> (SocketAddr, Shutdown, ServingTask) {
        let registry = Registry::new();
        metrics::register(&registry, metrics::IntCounter::new("test_total", "A test.")).inc_by(3);
        let routes = routes(registry, Arc::new(|| Err("waiting for embedding server 2".to_owned())));
        let routes = routes.route("/status", axum::routing::get(async || "{}"));
        let listener = TcpListener::bind((host, 0)).await.unwrap();
        let (address, shutdown) = (listener.local_addr().unwrap(), Shutdown::new());
        let server = tokio::spawn(serve(listener, routes, access(address), shutdown.clone()));
        ((std::net::Ipv4Addr::LOCALHOST, address.port()).into(), shutdown, server)
    }

    #[tokio::test]
    async fn a_role_serves_health_readiness_and_metrics() {
        let (address, shutdown, server) = open("127.0.0.1", |_| PageAccess::ThisMachine).await;
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let unready = get(address, "/readyz").await;
        assert!(unready.starts_with("HTTP/1.1 503") && unready.contains("waiting for embedding server 2"), "{unready}");
        assert!(get(address, "/metrics").await.contains("test_total 3"));
        shutdown.request();
        server.await.unwrap().unwrap();
    }

    /// A port on all addresses, as in containers, is reached by any name: those of their ports are known to the network only.
    #[tokio::test]
    async fn a_loopback_port_refuses_other_host_names() {
        let (address, ..) = open("127.0.0.1", |_| PageAccess::ThisMachine).await;
        for path in ["/metrics", "/status", "/healthz"] {
            for host in ["127.0.0.1:7780", "localhost", "localhost:7780", "[::1]:7780", "a.localhost:1"] {
                assert!(get_as(host, address, path).await.starts_with("HTTP/1.1 200"), "{host} {path}");
            }
            for host in ["evil.example:7780", "10.0.0.1", "localhost.evil.example", ""] {
                let refused = get_as(host, address, path).await;
                let is_refused = refused.starts_with("HTTP/1.1 403") && refused.contains("serves this machine only");
                assert!(is_refused, "{refused}");
            }
        }
        let (anyone, ..) = open("0.0.0.0", |_| PageAccess::Anyone).await;
        assert!(get_as("coordinator:7780", anyone, "/metrics").await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn a_port_that_other_machines_reach_answers_probes_to_all_and_the_rest_to_those_with_the_token() {
        let token = PageToken::parse("0123456789abcdef").unwrap();
        let (address, ..) = open("0.0.0.0", |port| PageAccess::new(port, Some(token))).await;
        for (path, status) in [("/healthz", "HTTP/1.1 200"), ("/readyz", "HTTP/1.1 503")] {
            assert!(get(address, path).await.starts_with(status), "{path}");
        }
        for path in ["/metrics", "/status", "/metrics/", "/status?token=0123456789abcdeF", "/nothing", "//healthz"] {
            assert!(get(address, path).await.starts_with("HTTP/1.1 401"), "{path}");
        }
        for path in ["/metrics", "/status"] {
            let answer = get(address, &format!("{path}?token=0123456789abcdef")).await;
            assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("set-cookie: zagros_page_"), "{answer}");
        }
    }
}
