//! Who may call: proof of membership at the start of each connection, and a gate before all services.
//!
//! ```text
//! client process                                   server process
//! channel ── ProvenConnector ── handshake ──► incoming ── Peer ──► gate ──► services
//!              its role's key                   the role    CALLS: least role of each call
//! ```
//!
//! [`open_channel`] and [`serve`] are the only doors: a test (`tests/tidy`) lets no other code make a gRPC channel or server.
//! A new call is therefore behind the proof without a line of its own, and refused until [`CALLS`] lists it.

mod accept;
mod calls;
mod error;
mod gate;
mod handshake;
mod key;

use std::future::Future;
use std::io;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tonic::service::Routes;
use tonic::transport::Channel;
use tower_service::Service;
use zagros_plumbing::grpc::{self, InvalidAddress};
use zagros_plumbing::listener::prepare_stream;
use zagros_plumbing::metrics::IntCounter;

use handshake::prove_role;

pub use calls::{CALLS, least_role, most_bytes};
pub use error::ProofError;
pub use gate::Peer;
pub use key::{BadKey, PeerRole, RoleKey};

/// What a process shows to others, and asks of others.
#[derive(Clone, Debug, Default)]
pub enum Credentials {
    /// Nothing. Only for ports that no other machine reaches, or at the wish of the job.
    #[default]
    Open,
    /// A proof that the other end knows the run's secret, or a key that is derived from it.
    Secret(RoleKey),
}

impl Credentials {
    /// Whether a peer must prove that it belongs to the run.
    pub fn is_checked(&self) -> bool {
        !matches!(self, Self::Open)
    }

    /// The token that opens this process's HTTP pages, if there is a secret to derive it from.
    pub fn page_token(&self) -> Option<String> {
        self.key().map(RoleKey::page_token)
    }

    fn key(&self) -> Option<&RoleKey> {
        if let Self::Secret(key) = self { Some(key) } else { None }
    }
}

/// A channel to a process of the role `to` at `host:port`. It connects on first use, and proves this process's role
/// before the first request. The caller bounds each call.
pub fn open_channel(address: &str, credentials: &Credentials, to: PeerRole) -> Result<Channel, InvalidAddress> {
    let endpoint = grpc::channel_endpoint(address)?;
    // The other end may not know a key above its own role.
    let key = credentials.key().map(|key| key.derive_key(to).unwrap_or_else(|| key.clone()));
    Ok(endpoint.connect_with_connector_lazy(ProvenConnector { key }))
}

/// Serves the calls of `services` until `stop` is done, to peers that prove their role. Counts connections whose proof is refused.
pub async fn serve(
    listener: TcpListener,
    credentials: &Credentials,
    refused: IntCounter,
    services: Routes,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let incoming = accept::accept_checked(listener, credentials, refused);
    let mut server = grpc::server_builder().layer(gate::GateLayer);
    server.add_routes(services).serve_with_incoming_shutdown(incoming, stop).await
}

/// Opens a connection, and proves that this process knows a key if it has one.
#[derive(Clone, Debug)]
struct ProvenConnector {
    key: Option<RoleKey>,
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
    let _ = prepare_stream(&stream);
    Ok(stream)
}
