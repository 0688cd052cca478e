//! One place for the connection settings of both ends: windows, keep-alive, limits, deadlines.

pub mod unary;

mod intake;
mod message;
mod timeout;

use std::time::Duration;

use tonic::transport::{Channel, Endpoint, Server};
use tower_layer::{Identity, Stack};

pub use intake::{IntakeLayer, IntakeService};
pub use timeout::{state_timeout, stated_timeout};

/// A batch of 4096 samples × 64 features × 64 values in f32 is 64 MiB; leave room above it.
pub const MAX_MESSAGE_BYTES: usize = 256 << 20;
/// Messages of the control path and of saving and loading: a worker that joins brings its files and the splits of an earlier
/// run, a quarter of a million files or half a million splits at most, of which a message of this size has room for either.
pub const MAX_CONTROL_BYTES: usize = 32 << 20;

/// HTTP/2's 64 KiB default window stalls on every few rows; one batch should fit in flight.
const STREAM_WINDOW: u32 = 16 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;
/// With the default of 16 KiB a batch of 1.5 MiB is a hundred system calls on each end, and half of its CPU time on the
/// wire. A field that arrives in one frame is read where it lies ([`unary`]); a frame is held whole before it is handed on.
const FRAME: u32 = 4 << 20;
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests of one connection at a time. A client that has more of them under way waits.
const MOST_STREAMS: u32 = 256;

/// A server with our settings and bounds; serve it on a [`crate::listener::BoundedListener`].
#[must_use]
pub fn server() -> Server<Stack<IntakeLayer, Identity>> {
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

/// A lazily connected channel to `host:port`. Each call is bounded by its caller, who can say whom it waited for
/// (invariant WT-1).
///
/// # Errors
/// When the address does not parse.
pub fn channel(address: &str) -> Result<Channel, BadAddress> {
    let bad = |_| BadAddress { address: address.to_owned() };
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(bad)?;
    Ok(endpoint
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .connect_timeout(CONNECT_TIMEOUT)
        .max_frame_size(FRAME)
        .tcp_nodelay(true)
        .connect_lazy())
}

/// Text that is no `host:port`.
#[derive(Debug, thiserror::Error)]
#[error("{address:?} is not an address; expected host:port, such as 127.0.0.1:7700")]
pub struct BadAddress {
    /// What was given.
    pub address: String,
}
