//! The connection settings of both ends: flow-control windows, keep-alive, limits, deadlines.

pub mod unary;

mod intake;
mod message;
mod timeout;

use std::time::Duration;

use tonic::transport::{Endpoint, Server};
use tower_layer::{Identity, Stack};

pub use intake::{IntakeLayer, IntakeService};
pub use timeout::{state_timeout, stated_timeout};

/// Largest message of the data path. A batch of 4096 samples × 64 features × 64 values in f32 has 64 MiB.
pub const MAX_MESSAGE_BYTES: usize = 256 << 20;
/// Largest message of the control path, and of save and load. A worker that joins sends its files and the splits of an
/// earlier run. A message of this size holds either a quarter of a million files or half a million splits.
pub const MAX_CONTROL_BYTES: usize = 32 << 20;

/// Flow-control window of a stream. HTTP/2's default of 64 KiB would stall after a few rows. One batch should fit.
const STREAM_WINDOW: u32 = 16 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;
/// Largest frame. With the default of 16 KiB a batch of 1.5 MiB takes a hundred system calls on each end, which is half
/// of its CPU time on the wire. A field that arrives in one frame is not copied ([`unary`]). A frame is in memory as a
/// whole.
const FRAME: u32 = 4 << 20;
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Concurrent requests of one connection. A client with more requests waits.
const MOST_STREAMS: u32 = 256;

/// A server with these settings and bounds. It asks for no proof: only `zagros_transport::serve` makes one, behind its
/// gate.
#[must_use]
pub fn server_builder() -> Server<Stack<IntakeLayer, Identity>> {
    Server::builder()
        .layer(IntakeLayer::default())
        .max_concurrent_streams(MOST_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
        .max_frame_size(FRAME)
        .tcp_nodelay(true)
}

/// The settings of a channel to `host:port`. `zagros_transport::open_channel` makes channels from it, which prove that
/// they belong to the run.
pub fn channel_endpoint(address: &str) -> Result<Endpoint, InvalidAddress> {
    let bad = |_| InvalidAddress { address: address.to_owned() };
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(bad)?;
    Ok(endpoint
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .connect_timeout(CONNECT_TIMEOUT)
        .max_frame_size(FRAME)
        .tcp_nodelay(true))
}

/// A text that is not `host:port`.
#[derive(Debug, thiserror::Error)]
#[error("{address:?} is not an address; expected host:port, such as 127.0.0.1:7700")]
pub struct InvalidAddress {
    pub address: String,
}
