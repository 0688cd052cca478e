//! The client's side: connects, proves, and hands the connection to gRPC.

use std::io;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower_service::Service;
use zagros_plumbing::link;

use super::handshake::prove_role;
use super::{ProofError, RoleKey};

/// Opens a connection, and proves that this process knows a key if it has one.
#[derive(Clone, Debug)]
pub(super) struct ProvenConnector {
    key: Option<RoleKey>,
}

impl ProvenConnector {
    pub(super) fn new(key: Option<RoleKey>) -> Self {
        Self { key }
    }
}

impl Service<Uri> for ProvenConnector {
    type Response = TokioIo<TcpStream>;
    type Error = ProofError;
    type Future = BoxFuture<'static, Result<Self::Response, ProofError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ProofError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, address: Uri) -> Self::Future {
        let key = self.key.clone();
        Box::pin(async move {
            let mut stream = connect(&address).await.map_err(ProofError::Broken)?;
            if let Some(key) = &key {
                prove_role(&mut stream, key).await?;
            }
            Ok(TokioIo::new(stream))
        })
    }
}

async fn connect(address: &Uri) -> io::Result<TcpStream> {
    let no_address = || io::Error::new(io::ErrorKind::InvalidInput, "the address has no host and port");
    let authority = address.authority().ok_or_else(no_address)?;
    let stream = TcpStream::connect(authority.as_str()).await?;
    // If it fails, the connection still works.
    let _ = link::prepare_stream(&stream);
    Ok(stream)
}
