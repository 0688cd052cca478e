//! One connection of a link: two flows of bytes, until an end closes or the connection is broken.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

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
