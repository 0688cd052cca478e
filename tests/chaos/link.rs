//! Faults of the network. Every connection of a round passes through a link: a port of this process that forwards bytes.
//!
//! ```text
//! dense workers ──► link ──► embedding server        one for each server: the address that it advertises
//! each member   ──► link ──► coordinator             one for each member, so that one alone can be cut off
//! ```
//!
//! A link forwards bytes and understands none of them. What it breaks are therefore whole connections, as a network does.
//!
//! One connection of a link: two flows of bytes, until an end closes or the connection is broken.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use zagros_shell::Announcement;
use zagros_shell::launch::RoleName;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkName {
    /// All workers, and an embedding server.
    Server(u32),
    /// A member, and the coordinator.
    Coordinator(RoleName),
}

impl LinkName {
    /// The name for people.
    pub(crate) fn display(self) -> String {
        match self {
            Self::Server(index) => format!("workers ↔ embedding server {index}"),
            Self::Coordinator(member) => format!("{} ↔ coordinator", member.display_name()),
        }
    }

    /// Where the process behind the link listens now; `None` while there is none.
    pub(crate) fn destination(self, run: &Path) -> Option<String> {
        let role = match self {
            Self::Server(index) => RoleName::EmbeddingServer(index),
            Self::Coordinator(_) => RoleName::Coordinator,
        };
        Announcement::read(&role.announcement_file(run)).map(|announced| announced.address)
    }
}

/// How long a link waits for the process behind it to listen. Processes of this machine listen at once or not at all.
const CONNECT: Duration = Duration::from_secs(1);

/// All links of a round. They end with this value.
pub(crate) struct RoundLinks(Vec<RoundLink>);

struct RoundLink {
    name: LinkName,
    address: String,
    state: watch::Sender<LinkState>,
    accepted: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl RoundLinks {
    /// Opens links on free ports to the processes that announce themselves in `run`.
    pub(crate) async fn open(run: &Path, names: &[LinkName]) -> io::Result<Self> {
        let mut links = Vec::new();
        for name in names {
            links.push(RoundLink::open(run.to_owned(), *name).await?);
        }
        Ok(Self(links))
    }

    /// The port of a link; `None` if there is no such link.
    pub(crate) fn address(&self, name: LinkName) -> Option<&str> {
        self.link(name).map(|link| link.address.as_str())
    }

    /// Sets the state of a link. `state` is made of the number of connections that the link has had.
    pub(crate) fn set(&self, name: LinkName, state: impl FnOnce(u64) -> LinkState) {
        if let Some(link) = self.link(name) {
            link.state.send_replace(state(link.accepted.load(Ordering::Acquire)));
        }
    }

    fn link(&self, name: LinkName) -> Option<&RoundLink> {
        self.0.iter().find(|link| link.name == name)
    }
}

impl RoundLink {
    async fn open(run: PathBuf, name: LinkName) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let (state, gates) = watch::channel(LinkState::Open);
        let accepted = Arc::new(AtomicU64::new(0));
        let task = tokio::spawn(serve(listener, run, name, gates, Arc::clone(&accepted)));
        Ok(Self { name, address, state, accepted, task })
    }
}

impl Drop for RoundLink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    listener: TcpListener,
    run: PathBuf,
    name: LinkName,
    gates: watch::Receiver<LinkState>,
    accepted: Arc<AtomicU64>,
) {
    // Connections end with the link.
    let mut connections = JoinSet::new();
    loop {
        let Ok((caller, _)) = listener.accept().await else { continue };
        let gate = LinkGate { number: accepted.fetch_add(1, Ordering::AcqRel), state: gates.clone() };
        let run = run.clone();
        connections.spawn(async move {
            // If no process listens there, the caller sees it by the end of its connection.
            if let Some(server) = reach(name, &run, gate.clone()).await {
                let _ = caller.set_nodelay(true);
                forward(caller, server, gate).await;
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn reach(name: LinkName, run: &Path, mut gate: LinkGate) -> Option<TcpStream> {
    gate.pass().await;
    let destination = name.destination(run)?;
    let server = tokio::time::timeout(CONNECT, TcpStream::connect(destination)).await.ok()?.ok()?;
    let _ = server.set_nodelay(true);
    Some(server)
}

const PART: usize = 64 << 10;
/// How long a link goes on reading from a caller whose requests are to arrive late: a whole request is there by then.
const GATHER: Duration = Duration::from_millis(100);
/// The most bytes that are kept for a late arrival.
const KEPT: usize = 64 << 20;
/// How long a server may take to answer what arrived late. The link drops the answer.
const ANSWER: Duration = Duration::from_secs(2);

/// Errors of a socket end the connection, too: that is what the other end then sees.
pub(crate) async fn forward(mut caller: TcpStream, mut server: TcpStream, mut gate: LinkGate) {
    // Requests that were read and not yet written.
    let mut requests = BytesMut::new();
    let broken = {
        let (mut from_caller, mut to_caller) = caller.split();
        let (mut from_server, mut to_server) = server.split();
        let mut answers = BytesMut::new();
        let there = flow(&mut from_caller, &mut to_server, &mut requests, gate.clone());
        let back = flow(&mut from_server, &mut to_caller, &mut answers, gate.clone());
        tokio::select! {
            // A closed end closes the other one, once its last bytes have passed.
            _ = async { tokio::try_join!(there, back) } => return,
            kind = gate.broken() => kind,
        }
    };
    if broken == BreakKind::Late {
        let _ = tokio::time::timeout(GATHER, gather(&mut caller, &mut requests)).await;
        drop(caller);
        let _ = gate.state.wait_for(|state| !matches!(state, LinkState::Late { .. })).await;
        let _ = tokio::time::timeout(ANSWER, deliver(&mut server, requests)).await;
    }
}

/// Copies until the sender closes. What was read and not written is in `pending` whenever this is given up.
async fn flow(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    pending: &mut BytesMut,
    mut gate: LinkGate,
) -> io::Result<()> {
    loop {
        if pending.is_empty() {
            pending.reserve(PART);
            if from.read_buf(pending).await? == 0 {
                return to.shutdown().await;
            }
        }
        gate.pass().await;
        while !pending.is_empty() {
            to.write_buf(pending).await?;
        }
    }
}

async fn gather(caller: &mut TcpStream, requests: &mut BytesMut) -> io::Result<()> {
    while requests.len() < KEPT && caller.read_buf(requests).await? > 0 {}
    Ok(())
}

async fn deliver(server: &mut TcpStream, mut requests: BytesMut) -> io::Result<()> {
    server.write_all_buf(&mut requests).await?;
    let mut answers = BytesMut::new();
    while server.read_buf(&mut answers).await? > 0 {
        answers.clear();
    }
    Ok(())
}

/// What a link does with bytes at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    Open,
    /// Each part waits so long. A part has at most 64 KiB.
    Slow(Duration),
    /// No byte passes, and no connection ends: a partition, or a peer that is half-open. The bytes arrive afterwards.
    Partitioned,
    /// Connections with a lower number are broken.
    Broken {
        before: u64,
    },
    /// As `Broken`. But what the caller had sent until then arrives afterwards, when its repeated request has long been answered.
    Late {
        before: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakKind {
    AtOnce,
    Late,
}

/// The state of the link as one connection sees it.
#[derive(Clone, Debug)]
pub(crate) struct LinkGate {
    pub(crate) number: u64,
    pub(crate) state: watch::Receiver<LinkState>,
}

impl LinkGate {
    /// Waits until a part may pass. A link that is gone lets everything pass.
    pub(crate) async fn pass(&mut self) {
        let has_no_partition = |state: &LinkState| *state != LinkState::Partitioned;
        let state = self.state.wait_for(has_no_partition).await.map_or(LinkState::Open, |state| *state);
        if let LinkState::Slow(delay) = state {
            tokio::time::sleep(delay).await;
        }
    }

    /// Waits until this connection is to be broken. Never answers if it is not.
    pub(crate) async fn broken(&mut self) -> BreakKind {
        let number = self.number;
        let kind = |state: &LinkState| match *state {
            LinkState::Broken { before } if number < before => Some(BreakKind::AtOnce),
            LinkState::Late { before } if number < before => Some(BreakKind::Late),
            _ => None,
        };
        let found = self.state.wait_for(|state| kind(state).is_some()).await.ok().and_then(|state| kind(&state));
        match found {
            Some(kind) => kind,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    const NAME: LinkName = LinkName::Server(0);

    struct Place {
        folder: tempfile::TempDir,
        server: TcpListener,
        links: RoundLinks,
    }

    impl Place {
        async fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = server.local_addr().unwrap().to_string();
            let announced = Announcement { role: "r".into(), pid: 1, address, admin: String::new() };
            announced.write(&RoleName::EmbeddingServer(0).announcement_file(folder.path())).unwrap();
            let links = RoundLinks::open(folder.path(), &[NAME]).await.unwrap();
            Self { folder, server, links }
        }

        async fn connect(&self) -> (TcpStream, TcpStream) {
            let caller = TcpStream::connect(self.links.address(NAME).unwrap()).await.unwrap();
            (caller, self.server.accept().await.unwrap().0)
        }

        async fn talk(&self) -> (TcpStream, TcpStream) {
            let mut connection = self.connect().await;
            talk(&mut connection).await;
            connection
        }
    }

    async fn read(from: &mut TcpStream, expected: &[u8]) {
        let mut bytes = vec![0; expected.len()];
        from.read_exact(&mut bytes).await.unwrap();
        assert_eq!(bytes, expected);
    }

    async fn talk((caller, server): &mut (TcpStream, TcpStream)) {
        caller.write_all(b"ask").await.unwrap();
        read(server, b"ask").await;
        server.write_all(b"answer").await.unwrap();
        read(caller, b"answer").await;
    }

    #[tokio::test]
    async fn bytes_pass_both_ways_and_an_end_that_closes_closes_the_other() {
        let place = Place::new().await;
        let mut connection = place.talk().await;
        place.links.set(NAME, |_| LinkState::Slow(Duration::from_millis(1)));
        talk(&mut connection).await;
        let (caller, mut server) = connection;
        drop(caller);
        assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_partitioned_link_holds_bytes_and_connections_and_loses_none() {
        let place = Place::new().await;
        let (mut caller, mut server) = place.talk().await;
        place.links.set(NAME, |_| LinkState::Partitioned);
        caller.write_all(b"held").await.unwrap();
        let later = TcpStream::connect(place.links.address(NAME).unwrap()).await.unwrap();
        // The same test with an open link would read these bytes: the link is looked at before each part.
        let quiet = tokio::time::timeout(Duration::from_millis(50), server.read(&mut [0; 8])).await;
        assert!(quiet.is_err(), "bytes passed a partitioned link");
        place.links.set(NAME, |_| LinkState::Open);
        read(&mut server, b"held").await;
        let mut second = (later, place.server.accept().await.unwrap().0);
        talk(&mut second).await;
    }

    #[tokio::test]
    async fn a_broken_link_ends_old_connections_and_takes_new_ones() {
        let place = Place::new().await;
        let (mut caller, mut server) = place.talk().await;
        place.links.set(NAME, |before| LinkState::Broken { before });
        assert!(matches!(caller.read(&mut [0]).await, Ok(0) | Err(_)));
        assert!(matches!(server.read(&mut [0]).await, Ok(0) | Err(_)));
        place.talk().await;
    }

    #[tokio::test]
    async fn late_bytes_arrive_after_those_of_the_next_connection() {
        let place = Place::new().await;
        let (mut caller, mut server) = place.talk().await;
        place.links.set(NAME, |_| LinkState::Partitioned);
        caller.write_all(b"late").await.unwrap();
        place.links.set(NAME, |before| LinkState::Late { before });
        assert!(matches!(caller.read(&mut [0]).await, Ok(0) | Err(_)), "the caller's end is open");
        place.talk().await;
        place.links.set(NAME, |_| LinkState::Open);
        read(&mut server, b"late").await;
    }

    #[tokio::test]
    async fn a_caller_sees_that_nobody_listens() {
        let place = Place::new().await;
        std::fs::remove_dir_all(place.folder.path().join("roles")).unwrap();
        let mut caller = TcpStream::connect(place.links.address(NAME).unwrap()).await.unwrap();
        assert!(matches!(caller.read(&mut [0]).await, Ok(0) | Err(_)));
    }
}
