//! The run's secret, and the keys of the roles that are derived from it.
//!
//! The keys form a chain. Each is a one-way function of the one before:
//!
//! ```text
//! run secret = key of the coordinator ──► embedding server ──► dense worker ──► client ──► page token
//! ```
//!
//! A process gets the key of its own role only. It can make the keys of the roles after its own, so it can check their
//! proofs. It can make no key before its own: a worker cannot act as a server.

use std::fmt;

use ring::hmac::{HMAC_SHA256, Key, Tag, sign, verify};

const BYTES: usize = 32;

#[derive(Clone, PartialEq, Eq)]
pub struct RoleKey {
    role: PeerRole,
    bytes: [u8; BYTES],
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// It has another length, or other characters.
    #[error("a run secret is 64 hexadecimal digits, or ROLE:64 hexadecimal digits")]
    Form,
    /// The name before the colon is no role.
    #[error("{0:?} is no role; roles are coordinator, embedding-server, dense-worker, client")]
    Role(String),
}

impl RoleKey {
    /// A new run secret. It is the key of the coordinator.
    pub fn random() -> Self {
        Self { role: PeerRole::Coordinator, bytes: rand::random() }
    }

    /// Reads a key as [`Self::expose_secret`] writes it. Digits without a role are a run secret.
    pub fn parse(text: &str) -> Result<Self, BadKey> {
        let (role, digits) = match text.trim().split_once(':') {
            Some((name, digits)) => {
                (PeerRole::from_name(name).ok_or_else(|| BadKey::Role(name.chars().take(32).collect()))?, digits)
            }
            None => (PeerRole::Coordinator, text.trim()),
        };
        Ok(Self { role, bytes: from_hex(digits).ok_or(BadKey::Form)? })
    }

    pub fn role(&self) -> PeerRole {
        self.role
    }

    /// The key of a role that is not above this key's. `None` for a role above it.
    pub fn derive_key(&self, role: PeerRole) -> Option<Self> {
        let mut key = self.clone();
        while key.role > role {
            key = key.next()?;
        }
        (key.role == role).then_some(key)
    }

    /// The token that opens HTTP pages and metrics. Every role can make it.
    pub fn page_token(&self) -> String {
        let client = self.derive_key(PeerRole::Client).unwrap_or_else(|| self.clone());
        to_hex(&client.hmac_tag(&[b"zagros/1 page"]).as_ref()[..16])
    }

    /// The key in plain text, for a file that its owner alone may read, or for the environment of a process.
    pub fn expose_secret(&self) -> String {
        format!("{}:{}", self.role, to_hex(&self.bytes))
    }

    fn next(&self) -> Option<Self> {
        let role = PeerRole::ALL.into_iter().rev().find(|role| *role < self.role)?;
        let tag = self.hmac_tag(&[b"zagros/1 key ", role.name().as_bytes()]);
        Some(Self { role, bytes: tag.as_ref().try_into().ok()? })
    }

    /// HMAC-SHA256 of the parts. Callers choose parts whose concatenation has one meaning.
    pub(super) fn hmac_tag(&self, parts: &[&[u8]]) -> Tag {
        sign(&Key::new(HMAC_SHA256, &self.bytes), &parts.concat())
    }

    /// Compares in constant time.
    pub(super) fn is_tag(&self, parts: &[&[u8]], tag: &[u8]) -> bool {
        verify(&Key::new(HMAC_SHA256, &self.bytes), &parts.concat(), tag).is_ok()
    }
}

impl fmt::Debug for RoleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RoleKey({}, …)", self.role)
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(digits: &str) -> Option<[u8; BYTES]> {
    if digits.len() != 2 * BYTES || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; BYTES];
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * place..2 * place + 2], 16).ok()?;
    }
    Some(bytes)
}

/// What a peer proves to be. The order is that of the rights: a role may do what the roles before it may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerRole {
    /// Reads the status of the run.
    Client,
    /// Trains: looks rows up, pushes gradients, saves and loads below the folders of the job.
    DenseWorker,
    EmbeddingServer,
    /// Coordinates the run. A person or an operator who controls the run has this role too.
    Coordinator,
}

impl PeerRole {
    /// Every role, from the fewest rights to the most.
    pub const ALL: [Self; 4] = [Self::Client, Self::DenseWorker, Self::EmbeddingServer, Self::Coordinator];

    /// Its name in key files, in certificates and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::DenseWorker => "dense-worker",
            Self::EmbeddingServer => "embedding-server",
            Self::Coordinator => "coordinator",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    pub(super) fn to_byte(self) -> u8 {
        Self::ALL.iter().position(|role| *role == self).map_or(0, |place| place as u8)
    }

    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

impl fmt::Display for PeerRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> RoleKey {
        RoleKey::parse(&"0123456789abcdef".repeat(4)).unwrap()
    }

    #[test]
    fn a_key_makes_the_keys_of_the_roles_below_it_and_no_other() {
        let secret = secret();
        assert_eq!(secret.role(), PeerRole::Coordinator);
        let worker = secret.derive_key(PeerRole::DenseWorker).unwrap();
        let server = secret.derive_key(PeerRole::EmbeddingServer).unwrap();
        assert_eq!(server.derive_key(PeerRole::DenseWorker), Some(worker.clone()));
        let higher = [PeerRole::EmbeddingServer, PeerRole::Coordinator].map(|role| worker.derive_key(role));
        assert_eq!(higher, [None, None]);
        let keys = std::collections::HashSet::from(PeerRole::ALL.map(|role| secret.derive_key(role).unwrap().bytes));
        assert_eq!(keys.len(), PeerRole::ALL.len());
        assert_eq!(worker.page_token(), secret.page_token());
        assert_ne!(RoleKey::random().bytes, RoleKey::random().bytes);
    }

    /// Processes of different releases must agree on the keys. Computed with another implementation of HMAC-SHA256.
    #[test]
    fn the_keys_are_pinned() {
        let client = secret().derive_key(PeerRole::Client).unwrap().expose_secret();
        assert_eq!(client, "client:ab672c9496a15d494a849a2bd932c65c1ad9f814d1421b83b07c3bc3cd24a3b8");
        assert_eq!(secret().page_token(), "b1c4cebe35dcfc2b6d39339705a3007e");
    }

    #[test]
    fn a_key_is_read_as_it_is_written_and_its_debug_form_hides_it() {
        for role in PeerRole::ALL {
            let key = secret().derive_key(role).unwrap();
            assert_eq!(RoleKey::parse(&format!("{}\n", key.expose_secret())), Ok(key.clone()));
            assert_eq!(format!("{key:?}"), format!("RoleKey({role}, …)"));
        }
        for bad in ["", "hunter2", &"0".repeat(63), &"g".repeat(64), "client:", &"é".repeat(32)] {
            assert_eq!(RoleKey::parse(bad), Err(BadKey::Form), "{bad}");
        }
        assert_eq!(RoleKey::parse(&format!("root:{}", "0".repeat(64))), Err(BadKey::Role("root".to_owned())));
    }

    #[test]
    fn every_role_is_found_by_its_name_and_its_byte() {
        for role in PeerRole::ALL {
            let found = [PeerRole::from_name(role.name()), PeerRole::from_byte(role.to_byte())];
            assert_eq!(found, [Some(role); 2]);
        }
        assert_eq!((PeerRole::from_name("root"), PeerRole::from_byte(4)), (None, None));
        assert!(PeerRole::ALL.is_sorted());
    }
}
