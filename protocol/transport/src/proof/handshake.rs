//! The proof of membership at the start of a connection, before HTTP/2.
//!
//! ```text
//! client                                                server
//!   │ greeting, role, nonce C                             │
//!   │ ──────────────────────────────────────────────────► │
//!   │               greeting, verdict, nonce S, server MAC │
//!   │ ◄────────────────────────────────────────────────── │
//!   │ client MAC, then HTTP/2                             │
//!   │ ──────────────────────────────────────────────────► │
//! ```
//!
//! Both MACs are HMAC-SHA256 under the key of the named role, over the side's name, the role and both nonces. The key
//! itself never crosses the wire. A recorded handshake is of no use, because each side chooses its nonce anew. Both sides
//! prove that they know the key: a worker sends no rows to a process that only listens at a server's address.
//!
//! The proof is made once per connection and costs one round trip. Requests carry nothing.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::key::RoleKey;
use super::{PeerRole, ProofError};

/// First bytes of a client that proves its membership. HTTP/2 starts with `PRI * HT`, TLS with the byte 22.
pub(super) const GREETING: [u8; 8] = *b"zagros/1";
const NONCE: usize = 32;
const MAC: usize = 32;

/// The server's verdict, the byte after its greeting: it knows the key of the role, and its MAC follows.
const PROOF: u8 = 0;
/// The server has no key at all.
const NO_SECRET: u8 = 1;
/// The server's key is of a lower role.
const ROLE_ABOVE: u8 = 2;

/// The two sides of a connection. Each signs with its own name, so that one cannot send the other's MAC back.
const CLIENT_SIDE: &[u8] = b"zagros/1 client proof";
const SERVER_SIDE: &[u8] = b"zagros/1 server proof";

/// What both sides sign.
struct HandshakeTranscript {
    role: PeerRole,
    client: [u8; NONCE],
    server: [u8; NONCE],
}

impl HandshakeTranscript {
    fn parts<'a>(&'a self, side: &'a [u8], role: &'a [u8; 1]) -> [&'a [u8]; 4] {
        [side, role, &self.client, &self.server]
    }

    fn mac(&self, key: &RoleKey, side: &[u8]) -> [u8; MAC] {
        let mut mac = [0; MAC];
        mac.copy_from_slice(key.hmac_tag(&self.parts(side, &[self.role.to_byte()])).as_ref());
        mac
    }

    fn is_mac(&self, key: &RoleKey, side: &[u8], mac: &[u8; MAC]) -> bool {
        key.is_tag(&self.parts(side, &[self.role.to_byte()]), mac)
    }
}

/// Proves to the other end that this process knows `key`, and lets the other end prove the same. The caller bounds the
/// wait.
///
/// # Errors
/// If the other end does not prove it. Nothing but nonces and MACs was sent then.
pub(super) async fn prove_role<S>(stream: &mut S, key: &RoleKey) -> Result<(), ProofError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let client: [u8; NONCE] = rand::random();
    let greeting = [&GREETING[..], &[key.role().to_byte()], &client].concat();
    stream.write_all(&greeting).await.map_err(ProofError::Broken)?;
    let mut answer = [0; GREETING.len() + 1];
    stream.read_exact(&mut answer).await.map_err(ProofError::Broken)?;
    match answer.strip_prefix(&GREETING) {
        Some([PROOF]) => {}
        Some([NO_SECRET]) => return Err(ProofError::NoSecretThere),
        Some([ROLE_ABOVE]) => return Err(ProofError::RoleAbove { role: key.role() }),
        _ => return Err(ProofError::NotZagros),
    }
    let (mut server, mut mac) = ([0; NONCE], [0; MAC]);
    stream.read_exact(&mut server).await.map_err(ProofError::Broken)?;
    stream.read_exact(&mut mac).await.map_err(ProofError::Broken)?;
    let transcript = HandshakeTranscript { role: key.role(), client, server };
    if !transcript.is_mac(key, SERVER_SIDE, &mac) {
        return Err(ProofError::OtherSecret);
    }
    stream.write_all(&transcript.mac(key, CLIENT_SIDE)).await.map_err(ProofError::Broken)
}

/// Answers a client whose greeting has been read. Returns what the client has proven to be.
///
/// # Errors
/// If it proves nothing. The connection is then to be closed.
pub(super) async fn check_client<S>(stream: &mut S, key: Option<&RoleKey>) -> Result<PeerRole, ProofError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut role, mut client) = ([0; 1], [0; NONCE]);
    stream.read_exact(&mut role).await.map_err(ProofError::Broken)?;
    stream.read_exact(&mut client).await.map_err(ProofError::Broken)?;
    let Some(key) = key else { return Err(refuse(stream, NO_SECRET, NO_SECRET_HERE).await) };
    let claimed = PeerRole::from_byte(role[0]).and_then(|role| key.derive_key(role));
    let Some(key) = claimed else { return Err(refuse(stream, ROLE_ABOVE, HIGHER_ROLE).await) };
    let transcript = HandshakeTranscript { role: key.role(), client, server: rand::random() };
    let mac = transcript.mac(&key, SERVER_SIDE);
    let answer = [&GREETING[..], &[PROOF], &transcript.server, &mac].concat();
    stream.write_all(&answer).await.map_err(ProofError::Broken)?;
    let mut mac = [0; MAC];
    stream.read_exact(&mut mac).await.map_err(ProofError::Broken)?;
    if !transcript.is_mac(&key, CLIENT_SIDE, &mac) {
        return Err(ProofError::Refused(FALSE_PROOF));
    }
    Ok(key.role())
}

const NO_SECRET_HERE: &str = "the peer proves a run secret, and this process has none";
const HIGHER_ROLE: &str = "the peer claims a role that this process's key cannot check";
const FALSE_PROOF: &str = "the peer does not know this run's secret: it belongs to another run, has an old secret, or is a \
                           stranger";

async fn refuse<S: AsyncWrite + Unpin>(stream: &mut S, verdict: u8, why: &'static str) -> ProofError {
    let answer = [&GREETING[..], &[verdict]].concat();
    if let Err(error) = stream.write_all(&answer).await {
        return ProofError::Broken(error);
    }
    let _ = stream.shutdown().await;
    ProofError::Refused(why)
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    fn key(role: PeerRole) -> RoleKey {
        RoleKey::parse(&"5".repeat(64)).unwrap().derive_key(role).unwrap()
    }

    /// What the client and the server found.
    type HandshakeEnds = (Result<(), ProofError>, Result<PeerRole, ProofError>);

    /// Runs a client with one key against a server with another.
    async fn meet(client: &RoleKey, server: Option<&RoleKey>) -> HandshakeEnds {
        let (mut near, mut far) = duplex(1024);
        let serving = async {
            let mut greeting = [0; GREETING.len()];
            far.read_exact(&mut greeting).await.unwrap();
            assert_eq!(greeting, GREETING);
            let checked = check_client(&mut far, server).await;
            drop(far);
            checked
        };
        let proving = async {
            let proved = prove_role(&mut near, client).await;
            // A client that was refused closes the connection.
            drop(near);
            proved
        };
        tokio::join!(proving, serving)
    }

    #[tokio::test]
    async fn a_peer_proves_its_role_to_a_peer_of_its_own_role_or_a_higher_one() {
        for role in PeerRole::ALL {
            for holder in PeerRole::ALL.into_iter().filter(|holder| *holder >= role) {
                let (proved, checked) = meet(&key(role), Some(&key(holder))).await;
                assert!(proved.is_ok(), "{proved:?}");
                assert_eq!(checked.unwrap(), role);
            }
        }
    }

    #[tokio::test]
    async fn both_sides_learn_of_another_secret() {
        let (proved, other) = meet(&RoleKey::random(), Some(&RoleKey::random())).await;
        assert!(matches!(proved, Err(ProofError::OtherSecret)), "{proved:?}");
        let (proved, none) = meet(&key(PeerRole::DenseWorker), None).await;
        assert!(matches!(proved, Err(ProofError::NoSecretThere)), "{proved:?}");
        let (proved, above) = meet(&key(PeerRole::Coordinator), Some(&key(PeerRole::DenseWorker))).await;
        assert!(matches!(proved, Err(ProofError::RoleAbove { role: PeerRole::Coordinator })), "{proved:?}");
        assert!([other, none, above].iter().all(Result::is_err));
    }

    /// A worker that knows its own key claims to be a server.
    #[tokio::test]
    async fn a_role_cannot_be_forged_with_the_key_of_a_lower_one() {
        let (mut near, mut far) = duplex(1024);
        let serving = tokio::spawn(async move { check_client(&mut far, Some(&key(PeerRole::Coordinator))).await });
        let client = [7; NONCE];
        near.write_all(&[&[PeerRole::EmbeddingServer.to_byte()], &client[..]].concat()).await.unwrap();
        let mut answer = [0; GREETING.len() + 1 + NONCE + MAC];
        near.read_exact(&mut answer).await.unwrap();
        let server = answer[GREETING.len() + 1..][..NONCE].try_into().unwrap();
        let transcript = HandshakeTranscript { role: PeerRole::EmbeddingServer, client, server };
        near.write_all(&transcript.mac(&key(PeerRole::DenseWorker), CLIENT_SIDE)).await.unwrap();
        assert!(matches!(serving.await.unwrap(), Err(ProofError::Refused(FALSE_PROOF))));
    }

    /// All that a client has ever sent, sent once more; and the server's own MAC, sent back.
    #[tokio::test]
    async fn a_recorded_handshake_opens_nothing() {
        let worker = key(PeerRole::DenseWorker);
        let client = [7; NONCE];
        let mut recorded = None;
        for reflected in [false, false, true] {
            let (mut near, mut far) = duplex(1024);
            let held = worker.clone();
            let serving = tokio::spawn(async move { check_client(&mut far, Some(&held)).await });
            near.write_all(&[&[worker.role().to_byte()], &client[..]].concat()).await.unwrap();
            let mut answer = [0; GREETING.len() + 1 + NONCE + MAC];
            near.read_exact(&mut answer).await.unwrap();
            let (server, mac) = answer[GREETING.len() + 1..].split_at(NONCE);
            let transcript = HandshakeTranscript { role: worker.role(), client, server: server.try_into().unwrap() };
            let is_first = recorded.is_none();
            let honest = *recorded.get_or_insert_with(|| transcript.mac(&worker, CLIENT_SIDE));
            let sent = if reflected { mac.try_into().unwrap() } else { honest };
            near.write_all(&sent).await.unwrap();
            assert_eq!(serving.await.unwrap().is_ok(), is_first, "reflected: {reflected}");
        }
    }
}
