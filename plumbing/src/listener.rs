//! Limits the connections of a port, so that silent strangers keep no other peer out.
//!
//! - A connection that has not sent its first bytes within [`FIRST_BYTES_WITHIN`] is closed.
//! - A port has a limit of open connections. One connection more closes the connection that was silent for longest, of
//!   those whose peer has proven nothing. Only if every peer has proven that it is a member, a member's is closed. It
//!   connects again.
//! - Either end of a link that is gone notices it within three seconds. Packets may vanish without an error, as when a machine
//!   loses its power or a cable is pulled. The kernels of both ends find it: what was sent and not acknowledged ends the
//!   connection, and a silent connection is probed. A process that is stopped or busy is no dead link, as its kernel acknowledges
//!   for it. The keep-alive of HTTP/2 ([`crate::grpc`]) finds such a process later.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tracing::warn;

use crate::process::file_limit;

/// HTTP/2's greeting has 24 bytes. The shortest HTTP/1.1 request is longer than this.
const FIRST_BYTES: usize = 16;
/// How long a peer may take to send its first bytes.
pub const FIRST_BYTES_WITHIN: Duration = Duration::from_secs(10);
/// Pause between two tries while the system has no file descriptor for a connection.
const PAUSE: Duration = Duration::from_millis(100);
/// Shortest time between two log lines about it.
const LOG_PAUSE: Duration = Duration::from_secs(10);
/// Largest number of connections of a port, even if the system allows more.
pub const MOST_CONNECTIONS: usize = 4096;
/// A port may use one part in this many of the process's file descriptors. A process has two ports, and other files.
const PORTS_SHARE: usize = 4;

/// A link that passes nothing for so long is gone. A connection over it ends with an error, and requests are sent again.
const GONE_AFTER: Duration = Duration::from_secs(3);
/// Time between the probes of a silent connection, and before the first one.
const PROBE: Duration = Duration::from_secs(1);

/// A listener that limits the number of open connections, and the time until the first bytes.
#[derive(Debug)]
pub struct BoundedListener {
    listener: TcpListener,
    log_pace: LogPace,
    open: Arc<OpenConnections>,
}

impl BoundedListener {
    /// Allows at most `most` connections, and at most a quarter of this process's file descriptors.
    pub fn new(listener: TcpListener, most: usize) -> Self {
        let limit = file_limit().map_or(most, |files| (files as usize / PORTS_SHARE).clamp(1, most));
        Self::with_limit(listener, limit)
    }

    pub fn with_limit(listener: TcpListener, limit: usize) -> Self {
        Self { listener, log_pace: LogPace::new(LOG_PAUSE), open: Arc::new(OpenConnections::new(limit)) }
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub async fn accept(&mut self) -> (BoundedConnection, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    // If it fails, the connection still works.
                    let _ = prepare_stream(&stream);
                    return (OpenConnections::admit(&self.open, stream), peer);
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    if let Some(times) = self.log_pace.count_event() {
                        let open = self.open.count();
                        warn!(%error, open, times, "cannot accept a connection; closes the most silent one");
                    }
                    self.open.close_most_silent();
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

/// Whether the error concerns one connection only: its peer left before it was accepted. The port is fine.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

#[derive(Debug)]
struct OpenConnections {
    limit: usize,
    started: Instant,
    by_number: Mutex<NumberedConnections>,
}

#[derive(Debug, Default)]
struct NumberedConnections {
    next: u64,
    open: HashMap<u64, Arc<ConnectionActivity>>,
}

/// The last activity of a connection, and how to tell it to close.
#[derive(Debug, Default)]
struct ConnectionActivity {
    /// Time of the last byte from the peer, in milliseconds since the port was opened.
    heard: AtomicU64,
    /// The peer has proven that it is a member of the run.
    proven: AtomicBool,
    close: CancellationToken,
}

impl OpenConnections {
    fn new(limit: usize) -> Self {
        Self { limit, started: Instant::now(), by_number: Mutex::default() }
    }

    fn admit(this: &Arc<Self>, stream: TcpStream) -> BoundedConnection {
        if this.count() >= this.limit {
            this.close_most_silent();
        }
        let activity =
            Arc::new(ConnectionActivity { heard: AtomicU64::new(this.now()), ..ConnectionActivity::default() });
        let mut numbered = this.by_number.lock().unwrap_or_else(PoisonError::into_inner);
        let number = numbered.next;
        numbered.next += 1;
        numbered.open.insert(number, Arc::clone(&activity));
        BoundedConnection {
            stream,
            missing: FIRST_BYTES,
            greeting: Some(Box::pin(sleep(FIRST_BYTES_WITHIN))),
            closed: Box::pin(activity.close.clone().cancelled_owned()),
            activity,
            number,
            port: Arc::clone(this),
        }
    }

    fn count(&self) -> usize {
        self.by_number.lock().unwrap_or_else(PoisonError::into_inner).open.len()
    }

    /// Closes the most silent connection, members' connections last. Its place is free at once. Its task drops it soon.
    fn close_most_silent(&self) {
        let mut numbered = self.by_number.lock().unwrap_or_else(PoisonError::into_inner);
        let most_silent = numbered.open.iter().min_by_key(|(number, one)| {
            (one.proven.load(Ordering::Relaxed), one.heard.load(Ordering::Relaxed), **number)
        });
        let most_silent = most_silent.map(|(number, _)| *number);
        if let Some(closed) = most_silent.and_then(|number| numbered.open.remove(&number)) {
            closed.close.cancel();
        }
    }

    fn remove(&self, number: u64) {
        self.by_number.lock().unwrap_or_else(PoisonError::into_inner).open.remove(&number);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[derive(Debug)]
pub struct BoundedConnection {
    stream: TcpStream,
    /// How many of the first bytes are missing.
    missing: usize,
    /// The time limit for the first bytes. `None` once they have arrived.
    greeting: Option<Pin<Box<Sleep>>>,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
    activity: Arc<ConnectionActivity>,
    number: u64,
    port: Arc<OpenConnections>,
}

impl Drop for BoundedConnection {
    fn drop(&mut self) {
        self.port.remove(self.number);
    }
}

impl BoundedConnection {
    /// The peer has proven that it is a member of the run: strangers do not push its connection out.
    pub fn set_proven(&self) {
        self.activity.proven.store(true, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    fn heard(&mut self, bytes: usize) {
        self.missing = self.missing.saturating_sub(bytes);
        if self.missing == 0 {
            self.greeting = None;
        }
        self.activity.heard.store(self.port.now(), Ordering::Relaxed);
    }

    /// Returns why the connection must end now. Otherwise it registers to be woken when the connection must end.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        if self.closed.as_mut().poll(context).is_ready() {
            let why =
                "closed to make room: this port has reached its limit of connections, and this was the most silent one";
            return Poll::Ready(io::Error::new(io::ErrorKind::ConnectionAborted, why));
        }
        match &mut self.greeting {
            Some(greeting) => greeting.as_mut().poll(context).map(|()| {
                let why = format!("the peer sent no request within {FIRST_BYTES_WITHIN:?} of connecting");
                io::Error::new(io::ErrorKind::TimedOut, why)
            }),
            None => Poll::Pending,
        }
    }
}

impl AsyncRead for BoundedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        match read {
            Poll::Ready(Ok(())) => self.heard(buffer.filled().len() - filled),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => return self.poll_end(context).map(Err),
        }
        read
    }
}

impl AsyncWrite for BoundedConnection {
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

/// Sets a connection up: small messages do not wait for more, and a link that is gone is noticed within three seconds.
/// After an error the connection still works.
pub fn prepare_stream(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(PROBE).with_interval(PROBE).with_retries(2))?;
    socket.set_tcp_user_timeout(Some(GONE_AFTER))
}

/// One log line for many equal events, so that a stranger who causes them fills no disk: lets a line pass at most once in a while, and
/// counts the events between.
#[derive(Debug)]
pub struct LogPace {
    every: Duration,
    state: Mutex<PaceState>,
}

#[derive(Debug, Default)]
struct PaceState {
    last: Option<Instant>,
    events: u64,
}

impl LogPace {
    pub fn new(every: Duration) -> Self {
        Self { every, state: Mutex::default() }
    }

    /// Counts an event. Returns how many events its line stands for, or `None` if it has no line now.
    pub fn count_event(&self) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.events += 1;
        if state.last.is_some_and(|last| last.elapsed() < self.every) {
            return None;
        }
        state.last = Some(Instant::now());
        Some(std::mem::take(&mut state.events))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn bounded(limit: usize) -> BoundedListener {
        BoundedListener::with_limit(TcpListener::bind("127.0.0.1:0").await.unwrap(), limit)
    }

    /// Both ends of a new connection.
    async fn connect(listener: &mut BoundedListener) -> (TcpStream, BoundedConnection) {
        let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (peer, listener.accept().await.0)
    }

    /// Reads until the other end sends something or closes.
    async fn read(connection: &mut BoundedConnection) -> io::Result<usize> {
        let read = tokio::time::timeout(FIRST_BYTES_WITHIN * 6, async { connection.read(&mut [0; 64]).await });
        read.await.expect("the connection neither sends nor ends")
    }

    #[tokio::test]
    async fn one_connection_more_closes_the_most_silent_one() {
        let mut listener = bounded(2).await;
        let (mut talker, mut heard) = connect(&mut listener).await;
        let (_silent, mut unheard) = connect(&mut listener).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        talker.write_all(b"I am a member of the run").await.unwrap();
        assert_eq!(read(&mut heard).await.unwrap(), 24);
        let _third = connect(&mut listener).await;
        let closed = read(&mut unheard).await.unwrap_err();
        assert!(closed.to_string().contains("the most silent one"), "{closed}");
        talker.write_all(b"still here").await.unwrap();
        assert_eq!(read(&mut heard).await.unwrap(), 10);
        assert_eq!(listener.open.count(), 2);
        drop((heard, unheard));
        assert_eq!(listener.open.count(), 1, "a closed connection keeps its place");
    }

    #[tokio::test]
    async fn a_connection_of_a_member_outlasts_those_of_strangers() {
        let mut listener = bounded(2).await;
        let (_member, mut proven) = connect(&mut listener).await;
        proven.set_proven();
        let mut strangers = Vec::new();
        let mut held = Vec::new();
        for number in 0..5 {
            let (mut stranger, connection) = connect(&mut listener).await;
            held.push(connection);
            stranger.write_all(b"I was heard a moment ago").await.unwrap();
            assert_eq!(read(&mut held[number]).await.unwrap(), 24);
            strangers.push(stranger);
        }
        for closed in &mut held[..4] {
            assert!(read(closed).await.unwrap_err().to_string().contains("the most silent one"));
        }
        let is_closed = tokio::select! {
            biased;
            _ = read(&mut proven) => true,
            () = std::future::ready(()) => false,
        };
        assert!(!is_closed, "the member was silent for longest, and stays");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_first_bytes_is_closed_and_others_may_be_silent() {
        let mut listener = bounded(8).await;
        let (mut talker, mut heard) = connect(&mut listener).await;
        let (mut mumbler, mut unheard) = connect(&mut listener).await;
        talker.write_all(&[7; FIRST_BYTES]).await.unwrap();
        mumbler.write_all(&[7; FIRST_BYTES - 1]).await.unwrap();
        assert_eq!(read(&mut heard).await.unwrap(), FIRST_BYTES);
        assert_eq!(read(&mut unheard).await.unwrap(), FIRST_BYTES - 1);
        let closed = read(&mut unheard).await.unwrap_err();
        assert_eq!(closed.kind(), io::ErrorKind::TimedOut, "{closed}");
        tokio::select! {
            read = read(&mut heard) => panic!("a connection that was heard ended: {read:?}"),
            () = sleep(FIRST_BYTES_WITHIN * 5) => {}
        }
    }

    #[tokio::test]
    async fn both_ends_of_a_connection_notice_a_link_that_is_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        prepare_stream(&client).unwrap();
        let accepted = BoundedListener::with_limit(listener, 8).accept().await.0;
        for stream in [&client, accepted.stream()] {
            let socket = SockRef::from(stream);
            assert!(socket.keepalive().unwrap() && socket.tcp_nodelay().unwrap());
            assert_eq!([socket.tcp_keepalive_time(), socket.tcp_keepalive_interval()].map(Result::unwrap), [PROBE; 2]);
            // A silent link: the first probe and those after it. A link with a request on it: the user timeout.
            assert_eq!(PROBE + PROBE * socket.tcp_keepalive_retries().unwrap(), GONE_AFTER);
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(GONE_AFTER));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_events_have_one_line_in_a_while_that_counts_them() {
        let pace = LogPace::new(Duration::from_secs(10));
        assert_eq!(pace.count_event(), Some(1), "the first one has its line at once");
        assert!((0..4000).all(|_| pace.count_event().is_none()));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!((pace.count_event(), pace.count_event()), (Some(4001), None));
    }
}
