//! The digest of a file: size and SHA-256.

use std::io::{self, Read};

use sha2::{Digest as _, Sha256};

/// Bytes that one read takes.
const PIECE: usize = 1 << 20;

/// Size and SHA-256 of a content. Two contents with one digest are taken as equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentDigest {
    pub bytes: u64,
    pub sha256: [u8; 32],
}

impl ContentDigest {
    #[must_use]
    pub fn compute(content: &[u8]) -> Self {
        Self { bytes: content.len() as u64, sha256: Sha256::digest(content).into() }
    }

    /// The digest of everything left to read. Now and then `passed` gets the number of bytes read so far.
    pub fn read(mut from: impl Read, passed: &dyn Fn(u64)) -> io::Result<Self> {
        let (mut sha256, mut bytes, mut piece) = (Sha256::new(), 0, vec![0; PIECE]);
        loop {
            let read = match from.read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            if read == 0 {
                return Ok(Self { bytes, sha256: sha256.finalize().into() });
            }
            sha256.update(&piece[..read]);
            bytes += read as u64;
            passed(read as u64);
        }
    }
}

/// Hexadecimal digits, as `sha256sum` prints them.
#[must_use]
pub fn hex_digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_equals_the_one_of_sha256sum_however_it_is_read() {
        // `printf abc | sha256sum`
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex_digits(&ContentDigest::compute(b"abc").sha256), expected);
        let long = vec![7; 3 * PIECE + 5];
        let passed = std::cell::Cell::new(0);
        let read = ContentDigest::read(&long[..], &|bytes| passed.set(passed.get() + bytes)).unwrap();
        assert_eq!((read, passed.get()), (ContentDigest::compute(&long), long.len() as u64));
    }
}
