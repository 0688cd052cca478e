//! A client for a role's HTTP port: one request, one answer, a deadline.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Largest answer in bytes: several times a report of a thousand members of a few hundred bytes each.
const MOST: usize = 4 << 20;

#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nothing listens at the address, or it does not speak HTTP.
    #[error("cannot reach {address}: {reason}")]
    Unreachable { address: String, reason: String },
    #[error("{address} does not answer {path} within {timeout:?}")]
    Late { address: String, path: String, timeout: Duration },
}

/// Sends `GET path` to `host:port`, with the token of the port ([`crate::admin::PageAccess`]) where it asks for one. Returns the status
/// and the body of the answer, which may have 4 MiB.
pub async fn ask_path(
    address: &str,
    path: &str,
    token: Option<&str>,
    timeout: Duration,
) -> Result<(StatusCode, Bytes), AskError> {
    match tokio::time::timeout(timeout, get(address, path, token)).await {
        Ok(answer) => {
            answer.map_err(|error| AskError::Unreachable { address: address.to_owned(), reason: error.to_string() })
        }
        Err(_) => Err(AskError::Late { address: address.to_owned(), path: path.to_owned(), timeout }),
    }
}

async fn get(
    address: &str,
    path: &str,
    token: Option<&str>,
) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    let mut request = Request::get(path).header(header::HOST, address);
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Empty::<Bytes>::new())?;
    let answer = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        Ok((status, Limited::new(response.into_body(), MOST).collect().await?.to_bytes()))
    };
    // The connection task reads and writes. It ends with the answer.
    tokio::pin!(connection);
    tokio::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        ended = &mut connection => {
            ended?;
            answer.await
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::Shutdown;
    use crate::admin::{PageAccess, routes, serve};
    use crate::metrics::Registry;

    const TIMEOUT: Duration = Duration::from_secs(2);

    async fn listener() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (listener, address)
    }

    #[tokio::test]
    async fn an_answer_is_a_status_and_a_body() {
        let (listener, address) = listener().await;
        let routes = routes(Registry::new(), std::sync::Arc::new(|| Err("not yet".into())));
        tokio::spawn(serve(listener, routes, PageAccess::ThisMachine, Shutdown::new()));
        assert_eq!(ask_path(&address, "/healthz", None, TIMEOUT).await.unwrap(), (StatusCode::OK, Bytes::from("ok\n")));
        let (status, body) = ask_path(&address, "/readyz", None, TIMEOUT).await.unwrap();
        assert_eq!((status, &body[..]), (StatusCode::SERVICE_UNAVAILABLE, &b"not ready: not yet\n"[..]));
    }

    #[tokio::test]
    async fn an_address_without_a_listener_is_reported_at_once() {
        let (listener, address) = listener().await;
        drop(listener);
        let error = ask_path(&address, "/healthz", None, TIMEOUT).await.unwrap_err().to_string();
        assert!(error.contains(&address) && error.contains("refused"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_listener_is_reported_after_the_timeout() {
        let (_listener, address) = listener().await;
        let error = ask_path(&address, "/status", None, TIMEOUT).await.unwrap_err().to_string();
        assert!(error.ends_with("does not answer /status within 2s"), "{error}");
    }
}
