//! Settings of connections between processes: which end of a link that is gone notices it, and when.
//!
//! Packets may vanish without an error, as when a machine loses its power or a cable is pulled. The kernels of both ends find it:
//! what was sent and not acknowledged ends the connection, and a silent connection is probed. A process that is stopped or busy is
//! no dead link, as its kernel acknowledges for it. The keep-alive of HTTP/2 ([`crate::grpc`]) finds such a process later.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// A link that passes nothing for so long is gone. A connection over it ends with an error, and requests are sent again.
const GONE_AFTER: Duration = Duration::from_secs(3);
/// Time between the probes of a silent connection, and before the first one.
const PROBE: Duration = Duration::from_secs(1);

/// Sets a connection up: small messages do not wait for more, and a link that is gone is noticed within three seconds.
/// After an error the connection still works.
pub fn prepare_stream(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(PROBE).with_interval(PROBE).with_retries(2))?;
    socket.set_tcp_user_timeout(Some(GONE_AFTER))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::listener::BoundedListener;

    #[tokio::test]
    async fn both_ends_of_a_connection_notice_a_link_that_is_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        prepare_stream(&client).unwrap();
        let accepted = BoundedListener::with_limit(listener, 8).accept().await.0;
        for stream in [&client, accepted.stream()] {
            let socket = SockRef::from(stream);
            assert!(socket.keepalive().unwrap() && socket.tcp_nodelay().unwrap());
            assert_eq!([socket.tcp_keepalive_time(), socket.tcp_keepalive_interval()].map(Result::unwrap), [PROBE; 2]);
            // A silent link: the first probe and those after it. A link with a request on it: the user timeout.
            assert_eq!(PROBE + PROBE * socket.tcp_keepalive_retries().unwrap(), GONE_AFTER);
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(GONE_AFTER));
        }
    }
}
