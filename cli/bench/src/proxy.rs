//! A TCP proxy that makes loopback behave like a network: bytes arrive later, and no faster than a line's rate.
//!
//! Its threads block: a runtime's timers are exact only to a millisecond, and the delay may be a millisecond.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const CHUNK: usize = 64 << 10;
/// The most chunks on a line at a time: more than any delay and rate of a benchmark need.
const CHUNKS: usize = 4096;

#[derive(Debug)]
pub(crate) struct LineProxy {
    listener: TcpListener,
    line: NetworkLine,
}

/// Accepts connections while it lives. An accepted connection ends with either end.
#[derive(Debug)]
pub(crate) struct RunningProxy {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
}

impl LineProxy {
    /// Listens. Connections wait until [`Self::run`].
    pub(crate) fn listen(line: NetworkLine) -> std::io::Result<Self> {
        Ok(Self { listener: TcpListener::bind("127.0.0.1:0")?, line })
    }

    pub(crate) fn listen_address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Leads every connection to `server`. All connections share the line, which is separate for each direction.
    pub(crate) fn run(self, server: String) -> std::io::Result<RunningProxy> {
        let (address, ended) = (self.listen_address()?, Arc::new(AtomicBool::new(false)));
        let flag = Arc::clone(&ended);
        let links = [BusyLine::new(self.line), BusyLine::new(self.line)].map(|link| Arc::new(Mutex::new(link)));
        spawn("proxy", move || {
            for client in self.listener.incoming().map_while(Result::ok) {
                if flag.load(Ordering::Acquire) {
                    return;
                }
                // Either end sees that its connection closes, and reports it.
                let _ = connect(client, &server, &links);
            }
        })?;
        Ok(RunningProxy { address, ended })
    }
}

impl Drop for RunningProxy {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        // Wakes the thread, which then ends.
        let _ = TcpStream::connect(self.address);
    }
}

type SharedLink = Arc<Mutex<BusyLine>>;

fn connect(client: TcpStream, server: &str, [there, back]: &[SharedLink; 2]) -> std::io::Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    direct(client.try_clone()?, server.try_clone()?, Arc::clone(there))?;
    direct(server, client, Arc::clone(back))
}

/// Copies from one socket to another, and delays each chunk until it arrives.
fn direct(from: TcpStream, to: TcpStream, link: SharedLink) -> std::io::Result<()> {
    let (send, chunks) = sync_channel(CHUNKS);
    spawn("proxy-read", move || read(from, &send, &link))?;
    spawn("proxy-write", move || write(to, chunks))
}

fn read(mut from: TcpStream, send: &SyncSender<(Instant, Vec<u8>)>, link: &SharedLink) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        let arrives = link.lock().unwrap_or_else(PoisonError::into_inner).send(Instant::now(), bytes);
        if send.send((arrives, buffer[..bytes].to_vec())).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Read);
}

fn write(mut to: TcpStream, chunks: Receiver<(Instant, Vec<u8>)>) {
    for (arrives, chunk) in chunks {
        thread::sleep(arrives.saturating_duration_since(Instant::now()));
        if to.write_all(&chunk).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    // The thread ends with its connection, which ends with the processes at its ends.
    thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

/// A line that is slower than loopback.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NetworkLine {
    /// Time from the last byte in to the last byte out.
    pub(crate) delay: Duration,
    /// Bytes per second; `None` for no limit.
    pub(crate) rate: Option<f64>,
}

#[derive(Clone, Copy, Debug)]
struct BusyLine {
    line: NetworkLine,
    /// When all bytes sent so far have left.
    free_at: Option<Instant>,
}

impl BusyLine {
    fn new(line: NetworkLine) -> Self {
        Self { line, free_at: None }
    }

    /// Puts bytes on the line at `now`. Returns when the last of them arrives.
    fn send(&mut self, now: Instant, bytes: usize) -> Instant {
        let starts = self.free_at.map_or(now, |free| free.max(now));
        let takes = self.line.rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(bytes as f64 / rate));
        let left = starts + takes;
        self.free_at = Some(left);
        left + self.line.delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server behind a proxy. The server sends everything back.
    fn echo_behind(line: NetworkLine) -> (TcpStream, RunningProxy) {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = LineProxy::listen(line).unwrap();
        let client = TcpStream::connect(proxy.listen_address().unwrap()).unwrap();
        let running = proxy.run(server.local_addr().unwrap().to_string()).unwrap();
        thread::spawn(move || {
            let (mut connection, _) = server.accept().unwrap();
            let _ = std::io::copy(&mut connection.try_clone().unwrap(), &mut connection);
        });
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        (client, running)
    }

    #[test]
    fn every_byte_arrives_in_order_and_no_earlier_than_there_and_back() {
        let delay = Duration::from_millis(20);
        let (mut client, _running) = echo_behind(NetworkLine { delay, rate: Some(100e6) });
        let sent: Vec<u8> = (0..300_000_u32).map(|byte| (byte % 251) as u8).collect();
        let started = Instant::now();
        let mut writer = client.try_clone().unwrap();
        let copy = sent.clone();
        let writing = thread::spawn(move || writer.write_all(&copy).unwrap());
        let mut found = vec![0; sent.len()];
        client.read_exact(&mut found).unwrap();
        assert!(started.elapsed() >= 2 * delay, "{:?}", started.elapsed());
        writing.join().unwrap();
        assert!(found == sent, "bytes were changed on their way");
    }

    #[test]
    fn an_end_that_closes_closes_the_other() {
        let (client, _running) = echo_behind(NetworkLine { delay: Duration::ZERO, rate: None });
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!((&client).read(&mut [0; 8]).unwrap(), 0);
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn without_a_rate_everything_takes_the_delay() {
        let mut link = BusyLine::new(NetworkLine { delay: 2 * MS, rate: None });
        let start = Instant::now();
        assert_eq!(link.send(start, 1), start + 2 * MS);
        assert_eq!(link.send(start, 1 << 30), start + 2 * MS);
    }

    #[test]
    fn a_rate_makes_later_bytes_wait() {
        let mut link = BusyLine::new(NetworkLine { delay: MS, rate: Some(1e6) });
        let start = Instant::now();
        assert_eq!(link.send(start, 3000), start + 4 * MS);
        assert_eq!(link.send(start + MS, 1000), start + 5 * MS);
        // The line is idle by then.
        assert_eq!(link.send(start + 100 * MS, 1000), start + 102 * MS);
    }
}
