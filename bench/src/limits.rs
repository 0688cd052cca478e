//! The lower bound for any service on this machine: the bytes of a batch through loopback sockets, and copied once.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use zagros_plumbing::process::cpu_time;
use zagros_protocol::datapath::Encoding;
use zagros_shell::{Exit, Failure, OrFailure};

use crate::clients::MeasuredStretch;

/// Far longer than a batch takes on loopback.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of an id.
const ID: usize = 8;
const ACK: usize = 8;

/// Bytes of a batch each way: the request and the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteExchange {
    lookup: [usize; 2],
    push: [usize; 2],
}

/// The cost of moving the bytes of a batch.
#[derive(Clone, Copy, Debug)]
pub struct SocketLimit {
    /// User and system time of both ends, seconds per batch.
    pub cpu: f64,
    /// Batches per second, all connections together.
    pub rate: f64,
    /// User and system time to copy the bytes once, seconds per batch.
    pub copy: f64,
}

impl ByteExchange {
    /// The mean batch of a training.
    pub fn new(trained: &MeasuredStretch, dim: usize, wire: Encoding) -> Self {
        let rows = trained.tally.rows / trained.tally.batches.max(1);
        let values = rows * dim * if wire == Encoding::F32 { 4 } else { 2 };
        Self { lookup: [rows * ID, values], push: [rows * ID + values, ACK] }
    }

    #[must_use]
    pub fn total_bytes(self) -> usize {
        self.lookup.iter().chain(&self.push).sum()
    }

    fn largest_message(self) -> usize {
        self.lookup.into_iter().chain(self.push).max().unwrap_or(0)
    }
}

/// Moves `batches` exchanges over `connections` at once, with blocking calls and nothing in between.
pub fn measure_loopback(exchange: ByteExchange, batches: usize, connections: usize) -> Result<SocketLimit, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).or_internal()?;
    let address = listener.local_addr().or_internal()?;
    let (started, before) = (Instant::now(), cpu_time());
    let share = batches.div_ceil(connections);
    let mut ends = Vec::new();
    for _ in 0..connections {
        let asking = TcpStream::connect(address).or_internal()?;
        let (answering, _) = listener.accept().or_internal()?;
        ends.push(thread::spawn(move || repeat(asking, exchange, share, ask)));
        ends.push(thread::spawn(move || repeat(answering, exchange, share, answer)));
    }
    for end in ends {
        let ended = end.join().map_err(|_| Failure::with_help(Exit::Internal, "a thread panicked", "see above"))?;
        ended.or_internal()?;
    }
    let moved = (share * connections) as f64;
    let cpu = (cpu_time() - before).as_secs_f64() / moved;
    Ok(SocketLimit { cpu, rate: moved / started.elapsed().as_secs_f64(), copy: copy(exchange, batches) })
}

type End = fn(&mut TcpStream, &mut [u8], [usize; 2]) -> std::io::Result<()>;

fn repeat(mut stream: TcpStream, exchange: ByteExchange, batches: usize, end: End) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut buffer = vec![0; exchange.largest_message()];
    for _ in 0..batches {
        end(&mut stream, &mut buffer, exchange.lookup)?;
        end(&mut stream, &mut buffer, exchange.push)?;
    }
    Ok(())
}

fn ask(stream: &mut TcpStream, buffer: &mut [u8], [asked, answered]: [usize; 2]) -> std::io::Result<()> {
    stream.write_all(&buffer[..asked])?;
    stream.read_exact(&mut buffer[..answered])
}

fn answer(stream: &mut TcpStream, buffer: &mut [u8], [asked, answered]: [usize; 2]) -> std::io::Result<()> {
    stream.read_exact(&mut buffer[..asked])?;
    stream.write_all(&buffer[..answered])
}

/// Seconds of CPU to copy a batch's bytes once.
fn copy(exchange: ByteExchange, batches: usize) -> f64 {
    let (from, mut to) = (vec![1_u8; exchange.total_bytes()], vec![0_u8; exchange.total_bytes()]);
    let start = cpu_time();
    for _ in 0..batches {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
    }
    (cpu_time() - start).as_secs_f64() / batches.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::ClientTally;

    #[test]
    fn an_exchange_has_the_bytes_of_the_mean_batch() {
        let tally = ClientTally { batches: 2, rows: 21, ..ClientTally::default() };
        let trained = MeasuredStretch { tally, ..MeasuredStretch::default() };
        let exact = ByteExchange::new(&trained, 16, Encoding::F32);
        assert_eq!(exact, ByteExchange { lookup: [80, 640], push: [720, 8] });
        assert_eq!(ByteExchange::new(&trained, 16, Encoding::Bf16), ByteExchange { lookup: [80, 320], push: [400, 8] });
        assert_eq!((exact.total_bytes(), exact.largest_message()), (1448, 720));
    }

    #[test]
    fn every_connection_moves_its_share() {
        let limit = measure_loopback(ByteExchange { lookup: [100, 70_000], push: [70_000, 8] }, 5, 2).unwrap();
        assert!(limit.cpu > 0.0 && limit.rate > 0.0 && limit.copy >= 0.0, "{limit:?}");
    }
}
