//! The connection settings of both ends: flow-control windows, keep-alive, limits, deadlines.

mod intake;
mod message;
pub mod unary;

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::transport::{Endpoint, Server};
use tower_layer::{Identity, Stack};

pub use intake::{IntakeLayer, IntakeService};

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

#[derive(Debug, thiserror::Error)]
#[error("{address:?} is not an address; expected host:port, such as 127.0.0.1:7700")]
pub struct InvalidAddress {
    pub address: String,
}

const TIMEOUT_HEADER: HeaderName = HeaderName::from_static("grpc-timeout");
/// Largest number in the header: it may have eight digits.
const LARGEST_TIMEOUT: u128 = 99_999_999;

/// Adds the sender's timeout to a request, in milliseconds, rounded up. A timeout longer than a day is in seconds.
pub fn state_timeout(headers: &mut HeaderMap, timeout: Duration) {
    let millis = timeout.as_nanos().div_ceil(1_000_000);
    let text = match millis {
        0..=LARGEST_TIMEOUT => format!("{millis}m"),
        _ => format!("{}S", millis.div_ceil(1000).min(LARGEST_TIMEOUT)),
    };
    // Digits and a letter are always a valid header value.
    if let Ok(value) = HeaderValue::try_from(text) {
        headers.insert(TIMEOUT_HEADER, value);
    }
}

/// The timeout of a request's sender. `None` if the header is missing or malformed.
pub fn stated_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(TIMEOUT_HEADER)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(3600 * number)),
        "M" => Some(Duration::from_secs(60 * number)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Duration> {
        stated_timeout(&HeaderMap::from_iter([(TIMEOUT_HEADER, HeaderValue::try_from(text).unwrap())]))
    }

    #[test]
    fn a_stated_timeout_is_read_again_and_never_shorter() {
        let mut headers = HeaderMap::new();
        assert_eq!(stated_timeout(&headers), None);
        for (timeout, stated) in [
            (Duration::ZERO, Duration::ZERO),
            (Duration::from_nanos(1), Duration::from_millis(1)),
            (Duration::from_micros(2_500), Duration::from_millis(3)),
            (Duration::from_secs(300), Duration::from_secs(300)),
            (Duration::from_millis(100_000_001), Duration::from_secs(100_001)),
            (Duration::MAX, Duration::from_secs(99_999_999)),
        ] {
            state_timeout(&mut headers, timeout);
            assert_eq!(stated_timeout(&headers), Some(stated), "{timeout:?}");
        }
    }

    #[test]
    fn every_unit_of_the_protocol_is_read_and_nothing_else() {
        let read_all = ["2H", "2M", "2S", "2m", "2u", "2n"].map(read);
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let nanos = |nanos| Some(Duration::from_nanos(nanos));
        assert_eq!(read_all, [seconds(7200), seconds(120), seconds(2), nanos(2_000_000), nanos(2_000), nanos(2)]);
        for bad in ["", "m", "2", "2x", "-2S", "+2S", "2 S", "123456789n", "2.5S", "2S2S"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert_eq!(read("99999999H"), seconds(3600 * 99_999_999));
    }
}
