//! The server's side: accepts connections, checks their proof, and hands them to gRPC.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::transport::server::Connected;
use tracing::{debug, warn};
use zagros_plumbing::listener::{BoundedConnection, BoundedListener, FIRST_BYTES_WITHIN};

use super::handshake::{self, GREETING};
use super::{Credentials, Peer, ProofError};

/// Accepts connections for ever. Each is checked in a task of its own, so that a slow peer delays no other. The listener
/// limits the number of connections, and with it the number of tasks.
pub(super) fn incoming(
    listener: TcpListener,
    credentials: &Credentials,
) -> impl Stream<Item = io::Result<CheckedConnection>> {
    let accepting = Accepting {
        listener: BoundedListener::new(listener),
        credentials: Arc::new(credentials.clone()),
        checks: JoinSet::new(),
    };
    futures::stream::unfold(accepting, async |mut accepting| {
        let connection = accepting.next().await;
        Some((Ok(connection), accepting))
    })
}

struct Accepting {
    listener: BoundedListener,
    credentials: Arc<Credentials>,
    checks: JoinSet<Option<CheckedConnection>>,
}

impl Accepting {
    async fn next(&mut self) -> CheckedConnection {
        loop {
            tokio::select! {
                (connection, peer) = self.listener.accept() => {
                    let credentials = Arc::clone(&self.credentials);
                    self.checks.spawn(async move {
                        let checked = timeout(FIRST_BYTES_WITHIN, check(connection, &credentials)).await;
                        match checked {
                            Ok(Ok(connection)) => Some(connection),
                            Ok(Err(ProofError::Broken(error))) => {
                                debug!(%peer, %error, "a connection ended before its proof of membership");
                                None
                            }
                            Ok(Err(error)) => {
                                warn!(%peer, %error, "refused a connection without a valid proof of membership");
                                None
                            }
                            Err(_) => {
                                debug!(%peer, "a connection did not prove its membership in time");
                                None
                            }
                        }
                    });
                }
                Some(checked) = self.checks.join_next() => {
                    if let Ok(Some(connection)) = checked {
                        return connection;
                    }
                }
            }
        }
    }
}

/// Reads the first bytes. A greeting must lead to a proof. Anything else is a connection that has proven nothing: gRPC
/// reads the bytes, and the gate refuses its requests with words.
async fn check(mut stream: BoundedConnection, credentials: &Credentials) -> Result<CheckedConnection, ProofError> {
    let mut first = [0; GREETING.len()];
    stream.read_exact(&mut first).await.map_err(ProofError::Broken)?;
    let key = match credentials {
        Credentials::Open => None,
        Credentials::Secret(key) => Some(key),
    };
    if first == GREETING {
        let role = handshake::check(&mut stream, key).await?;
        return Ok(CheckedConnection { stream, unread: Vec::new(), peer: Peer::Proven(role) });
    }
    let peer = if key.is_some() { Peer::Unproven } else { Peer::Unchecked };
    Ok(CheckedConnection { stream, unread: first.to_vec(), peer })
}

/// A connection of which it is known what its peer has proven.
#[derive(Debug)]
pub(super) struct CheckedConnection {
    stream: BoundedConnection,
    /// First bytes that gRPC has not read yet.
    unread: Vec<u8>,
    peer: Peer,
}

impl Connected for CheckedConnection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer
    }
}

impl AsyncRead for CheckedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let count = self.unread.len().min(buffer.remaining());
        buffer.put_slice(&self.unread[..count]);
        self.unread.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for CheckedConnection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
