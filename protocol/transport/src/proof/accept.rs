//! The server's side: accepts connections, checks their proof, and hands them to gRPC.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep, timeout};
use tonic::transport::server::Connected;
use tracing::{debug, warn};
use zagros_plumbing::LogPace;
use zagros_plumbing::listener::{BoundedConnection, BoundedListener, FIRST_BYTES_WITHIN, MOST_CONNECTIONS};
use zagros_plumbing::metrics::IntCounter;

use super::handshake::{self, GREETING};
use super::{Credentials, Peer, ProofError};

/// Accepts connections for ever. Each is checked in a task of its own, so that a slow peer delays no other. The listener
/// limits the number of connections, and with it the number of tasks.
pub(super) fn accept_checked(
    listener: TcpListener,
    credentials: &Credentials,
    refused: IntCounter,
) -> impl Stream<Item = io::Result<CheckedConnection>> {
    let accepting = ConnectionAcceptor {
        listener: BoundedListener::new(listener, MOST_CONNECTIONS),
        credentials: Arc::new(credentials.clone()),
        refusals: Arc::new(RefusalCounter { counter: refused, pace: LogPace::new(REFUSALS_PAUSE) }),
        checks: JoinSet::new(),
    };
    futures::stream::unfold(accepting, async |mut accepting| {
        let connection = accepting.next().await;
        Some((Ok(connection), accepting))
    })
}

/// Shortest time between two log lines about refused connections.
const REFUSALS_PAUSE: Duration = Duration::from_secs(10);

/// Connections without a valid proof. Each is counted; a stranger who makes thousands fills no disk with log lines.
struct RefusalCounter {
    counter: IntCounter,
    pace: LogPace,
}

impl RefusalCounter {
    fn note(&self, peer: SocketAddr, error: &ProofError) {
        self.counter.inc();
        if let Some(connections) = self.pace.count_event() {
            warn!(%peer, %error, connections, "refused connections without a valid proof of membership");
        }
    }
}

struct ConnectionAcceptor {
    listener: BoundedListener,
    credentials: Arc<Credentials>,
    refusals: Arc<RefusalCounter>,
    checks: JoinSet<Option<CheckedConnection>>,
}

impl ConnectionAcceptor {
    async fn next(&mut self) -> CheckedConnection {
        loop {
            tokio::select! {
                (connection, peer) = self.listener.accept() => {
                    let (credentials, refusals) = (Arc::clone(&self.credentials), Arc::clone(&self.refusals));
                    self.checks.spawn(async move {
                        match timeout(FIRST_BYTES_WITHIN, check(connection, &credentials)).await {
                            Ok(Ok(connection)) => return Some(connection),
                            Ok(Err(ProofError::Broken(error))) => {
                                debug!(%peer, %error, "a connection ended before its proof of membership");
                            }
                            Ok(Err(error)) => refusals.note(peer, &error),
                            Err(_) => debug!(%peer, "a connection did not prove its membership in time"),
                        }
                        None
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
    let key = credentials.key();
    if first == GREETING {
        let role = handshake::check_client(&mut stream, key).await?;
        stream.set_proven();
        return Ok(CheckedConnection { stream, unread: Vec::new(), peer: Peer::Proven(role), bounds: None });
    }
    let bounds = key.map(|_| UnprovenBounds { left: UNPROVEN_BYTES, end: Box::pin(sleep(UNPROVEN_FOR)) });
    let peer = if key.is_some() { Peer::Unproven } else { Peer::Unchecked };
    Ok(CheckedConnection { stream, unread: first.to_vec(), peer, bounds })
}

/// How long a connection stays open whose peer has proven nothing. The peer reads a refusal, and needs no longer.
const UNPROVEN_FOR: Duration = Duration::from_secs(10);
/// Bytes that are read from such a peer. A frame of HTTP/2 stays in memory until it is complete, so this is also what the peer
/// can make the port hold. A request to which a refusal is due is far shorter.
const UNPROVEN_BYTES: usize = 32 << 10;

/// A connection of which it is known what its peer has proven.
#[derive(Debug)]
pub(super) struct CheckedConnection {
    stream: BoundedConnection,
    /// First bytes that gRPC has not read yet.
    unread: Vec<u8>,
    peer: Peer,
    /// `None` if the peer has proven its role, or need not.
    bounds: Option<UnprovenBounds>,
}

/// What is left to a peer that has proven nothing.
#[derive(Debug)]
struct UnprovenBounds {
    left: usize,
    end: Pin<Box<Sleep>>,
}

impl UnprovenBounds {
    /// Reads as long as bytes and time are left. A peer without bytes is not closed at once: it would lose the refusal that it
    /// was sent.
    fn poll_read(
        &mut self,
        stream: &mut BoundedConnection,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.end.as_mut().poll(context).is_ready() {
            let why = format!("the peer has proven no membership, and its connection is closed after {UNPROVEN_FOR:?}");
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
        }
        if self.left == 0 {
            return Poll::Pending;
        }
        let mut piece = [0; 1024];
        let most = self.left.min(buffer.remaining()).min(piece.len());
        let mut piece = ReadBuf::new(&mut piece[..most]);
        let read = Pin::new(stream).poll_read(context, &mut piece);
        self.left -= piece.filled().len();
        buffer.put_slice(piece.filled());
        read
    }
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
            let Self { stream, bounds, .. } = &mut *self;
            return match bounds {
                Some(bounds) => bounds.poll_read(stream, context, buffer),
                None => Pin::new(stream).poll_read(context, buffer),
            };
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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpStream;

    use super::super::RoleKey;
    use super::*;

    /// A stranger that starts a frame of HTTP/2 and never completes it: the port reads little of it, and not for long.
    #[tokio::test(start_paused = true)]
    async fn a_peer_that_has_proven_nothing_is_read_for_a_while_and_not_beyond_a_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut stranger = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let accepted = BoundedListener::with_limit(listener, 8).accept().await.0;
        let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        sent.resize(2 * UNPROVEN_BYTES, 0);
        stranger.write_all(&sent).await.unwrap();
        let mut checked = check(accepted, &Credentials::Secret(RoleKey::random())).await.unwrap();
        assert_eq!(checked.peer, Peer::Unproven);
        let mut read = Vec::new();
        let ended = checked.read_to_end(&mut read).await.unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut, "{ended}");
        assert_eq!(read.len(), UNPROVEN_BYTES + GREETING.len());
        assert_eq!(read, sent[..read.len()]);
    }
}
