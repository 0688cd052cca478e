//! Groups across processes over plain TCP, between processors alone.
//!
//! Each rank connects to the ranks below it, and the ranks above it connect to it. Every two ranks have two connections. One carries
//! values. Over the other each rank says that it is alive, once a call has failed: so the ranks that are missing are known by name,
//! wherever in a message the call broke off.
//!
//! A sum is made in two halves, which are calls of their own, too. Each rank adds up one part of the values:
//!
//! ```text
//!                   rank 0      rank 1      rank 2
//! values            a0 a1 a2    b0 b1 b2    c0 c1 c2
//! reduce-scatter    a0+b0+c0    a1+b1+c1    a2+b2+c2     parts go to the rank that adds them up
//! all-gather        all sums    all sums    all sums     sums go to all ranks
//! ```

mod greeting;
mod mesh;

use std::collections::BTreeMap;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use greeting::{LineKind, PeerLine, WaitLimit, dial, welcome};
use mesh::{RankMesh, TcpRank};

use crate::{CollectiveError, CollectiveGroup, ProcessGroupConfig, Rendezvous, SingleRank, WAIT_SLICE, split_address};

/// Time between two looks for connections.
const POLL: Duration = Duration::from_millis(5);

/// How long a connection may take to greet, and how many may be about to at once. Strangers hold no more.
const GREETING_TIME: Duration = Duration::from_secs(10);
const MOST_SILENT: usize = 256;

/// The connections of a group that forms, or why the newest try has failed.
type FormingLines = BTreeMap<PeerLine, io::Result<TcpStream>>;

#[derive(Debug)]
pub struct TcpRendezvous {
    listener: TcpListener,
    address: String,
}

impl TcpRendezvous {
    /// `address` is the `host:port` at which the others reach `listener`.
    ///
    /// # Errors
    /// [`CollectiveError::Address`] when it is not a valid address, or the listener cannot be used.
    pub fn new(listener: TcpListener, address: String) -> Result<Self, CollectiveError> {
        split_address(&address)?;
        match listener.set_nonblocking(true) {
            Ok(()) => Ok(Self { listener, address }),
            Err(error) => Err(CollectiveError::Address { address, reason: error.to_string() }),
        }
    }
}

impl Rendezvous for TcpRendezvous {
    fn address(&self) -> &str {
        &self.address
    }

    fn transport(&self) -> &'static str {
        "tcp"
    }

    fn form_group(&self, place: &ProcessGroupConfig) -> Result<Box<dyn CollectiveGroup>, CollectiveError> {
        if place.world <= 1 {
            return Ok(Box::new(SingleRank));
        }
        let limit = WaitLimit::new(place.timeout, place.interrupt.clone());
        let (results, made) = mpsc::channel();
        for line in (0..place.rank).flat_map(|rank| LineKind::ALL.map(|kind| (rank, kind))) {
            let (place, limit, results) = (place.clone(), limit.clone(), results.clone());
            start_thread(move || {
                loop {
                    let dialled = dial(&place, line, &limit);
                    let is_connected = dialled.is_ok();
                    // No one receives it once the group has formed or was given up.
                    if results.send((line, dialled)).is_err() || is_connected {
                        return;
                    }
                    thread::sleep(WAIT_SLICE);
                }
            });
        }
        let (mut lines, greeters) = (FormingLines::new(), Arc::new(()));
        loop {
            while Arc::strong_count(&greeters) <= MOST_SILENT
                && let Ok((stream, _)) = self.listener.accept()
            {
                let (place, results, greeter) = (place.clone(), results.clone(), Arc::clone(&greeters));
                start_thread(move || {
                    let limit = WaitLimit::new(GREETING_TIME, place.interrupt.clone());
                    // Another connection is closed: it is of a stranger, of another run or group, or of a rank that comes too early.
                    if let Ok((line, stream)) = welcome(stream, &place, &limit) {
                        let _ = results.send((line, Ok(stream)));
                    }
                    drop(greeter);
                });
            }
            lines.extend(made.try_iter());
            if lines.values().filter(|line| line.is_ok()).count() == (place.world - 1) * LineKind::ALL.len() {
                return Ok(Box::new(TcpRank::start(RankMesh::new(place, lines))));
            }
            if let Err(reason) = limit.check() {
                return Err(missing_ranks(place, &lines, limit.started.elapsed(), reason));
            }
            thread::sleep(POLL);
        }
    }
}

/// What there is no thread for is missing in the end.
fn start_thread(work: impl FnOnce() + Send + 'static) {
    drop(thread::Builder::new().name("rendezvous".to_owned()).spawn(work));
}

fn missing_ranks(place: &ProcessGroupConfig, lines: &FormingLines, waited: Duration, reason: &str) -> CollectiveError {
    let is_missing = |rank: &usize| LineKind::ALL.iter().any(|kind| !matches!(lines.get(&(*rank, *kind)), Some(Ok(_))));
    let ranks: Vec<usize> = (0..place.world).filter(|rank| *rank != place.rank).filter(is_missing).collect();
    let describe = |rank: &usize| match lines.get(&(*rank, LineKind::Values)) {
        Some(Err(error)) => format!("{} ({error})", place.rank_address(*rank)),
        _ => place.rank_address(*rank).to_owned(),
    };
    let addresses: Vec<String> = ranks.iter().map(describe).collect();
    let reason = format!("{}: {reason}", addresses.join(", "));
    CollectiveError::Missing { ranks, call: "forming the group", waited, reason }
}

#[cfg(test)]
mod tests;
