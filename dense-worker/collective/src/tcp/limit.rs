//! Reads and writes of whole messages end with the time of their call, or once the group is interrupted (invariant WT-1).

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::GroupInterrupt;

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
