//! A connection begins with what each side says of itself: its run, group and rank. One that begins otherwise is closed.
//!
//! A rank answers a greeting only while it forms the group that the greeting names. The number of the run is what strangers do not
//! know (invariant MB-2); it proves nothing to those who can read the network.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::{GroupInterrupt, ProcessGroupConfig, WAIT_SLICE};

const MAGIC: u64 = u64::from_le_bytes(*b"zagros 1");

/// Then another address of the same name is tried.
const MOST_DIAL: Duration = Duration::from_secs(5);

/// Eight numbers, each with its lowest byte first.
type LineGreeting = [[u8; 8]; 8];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LineKind {
    Values,
    /// Signs of life after a call that has failed.
    Roll,
}

impl LineKind {
    pub(super) const ALL: [Self; 2] = [Self::Values, Self::Roll];
}

/// A connection, by the rank at its other end.
pub(super) type PeerLine = (usize, LineKind);

fn greeting(place: &ProcessGroupConfig, kind: LineKind, speaker: usize, listener: usize) -> LineGreeting {
    let (lane, world) = (place.lane as u64, place.world as u64);
    [MAGIC, place.run, place.generation, lane, world, kind as u64, speaker as u64, listener as u64]
        .map(u64::to_le_bytes)
}

/// Connects to a rank below this one, and waits until it forms the same group.
pub(super) fn dial(place: &ProcessGroupConfig, line: PeerLine, limit: &WaitLimit) -> io::Result<TcpStream> {
    let (rank, kind) = line;
    let mut connected: io::Result<TcpStream> = Err(ErrorKind::AddrNotAvailable.into());
    for address in place.rank_address(rank).to_socket_addrs()? {
        connected = TcpStream::connect_timeout(&address, limit.time_left().clamp(WAIT_SLICE, MOST_DIAL));
        if connected.is_ok() {
            break;
        }
    }
    let stream = connected?;
    prepare_stream(&stream)?;
    limit.write_all(&stream, greeting(place, kind, place.rank, rank).as_flattened())?;
    let is_peer = read_greeting(&stream, limit)? == greeting(place, kind, rank, place.rank);
    if is_peer { Ok(stream) } else { Err(io::Error::other("another program listens there")) }
}

/// Answers a rank above this one.
pub(super) fn welcome(
    stream: TcpStream,
    place: &ProcessGroupConfig,
    limit: &WaitLimit,
) -> io::Result<(PeerLine, TcpStream)> {
    prepare_stream(&stream)?;
    let heard = read_greeting(&stream, limit)?;
    let mut lines = (place.rank + 1..place.world).flat_map(|rank| LineKind::ALL.map(|kind| (rank, kind)));
    let line = lines.find(|(rank, kind)| heard == greeting(place, *kind, *rank, place.rank));
    let (rank, kind) = line.ok_or(ErrorKind::InvalidData)?;
    limit.write_all(&stream, greeting(place, kind, place.rank, rank).as_flattened())?;
    Ok(((rank, kind), stream))
}

fn read_greeting(stream: &TcpStream, limit: &WaitLimit) -> io::Result<LineGreeting> {
    let mut heard = LineGreeting::default();
    limit.read_all(stream, heard.as_flattened_mut())?;
    Ok(heard)
}

fn prepare_stream(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(WAIT_SLICE))?;
    stream.set_write_timeout(Some(WAIT_SLICE))
}

/// How long one call waits for other ranks.
#[derive(Clone, Debug)]
pub(super) struct WaitLimit {
    pub(super) started: Instant,
    timeout: Duration,
    interrupt: GroupInterrupt,
}

impl WaitLimit {
    pub(super) fn new(timeout: Duration, interrupt: GroupInterrupt) -> Self {
        Self { started: Instant::now(), timeout, interrupt }
    }

    pub(super) fn time_left(&self) -> Duration {
        self.timeout.saturating_sub(self.started.elapsed())
    }

    /// Why the call waits no longer, if it does not.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        if self.interrupt.is_set() {
            return Err(GroupInterrupt::REASON);
        }
        if self.time_left().is_zero() { Err("not here in time") } else { Ok(()) }
    }

    pub(super) fn read_all(&self, mut stream: &TcpStream, bytes: &mut [u8]) -> io::Result<()> {
        self.repeat(bytes.len(), |done| stream.read(&mut bytes[done..]))
    }

    pub(super) fn write_all(&self, mut stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
        self.repeat(bytes.len(), |done| stream.write(&bytes[done..]))
    }

    /// Repeats a call that moves some of the bytes, until all are moved. A connection gives way after each slice of the wait.
    fn repeat(&self, length: usize, mut move_some: impl FnMut(usize) -> io::Result<usize>) -> io::Result<()> {
        use ErrorKind::{Interrupted, TimedOut, WouldBlock};
        let mut done = 0;
        while done < length {
            match move_some(done) {
                Ok(0) => return Err(io::Error::other("it has closed the connection")),
                Ok(count) => done += count,
                Err(error) if matches!(error.kind(), Interrupted | TimedOut | WouldBlock) => {}
                Err(error) => return Err(error),
            }
            if done < length {
                self.check().map_err(io::Error::other)?;
            }
        }
        Ok(())
    }
}
