//! Standard input as a data file, `-`: it is read once, from its start to its end.
//!
//! Before the rows are read, a file is opened several times: for its compression, its header and its first rows. So the first
//! bytes are kept until a reader goes on behind them. From then on only this reader can read.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};

use zagros_job::STDIN;

/// Bytes that can be read again: more than is looked at before the rows.
const KEPT: usize = 4 << 20;

/// The size that an input of unknown size is given, larger than any file.
pub(crate) const UNKNOWN_BYTES: u64 = 1 << 50;

static INPUT: LazyLock<Mutex<OneInput<io::Stdin>>> = LazyLock::new(|| Mutex::new(OneInput::new(io::stdin())));

/// Whether a path names standard input.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path == Path::new(STDIN)
}

/// A position in standard input.
#[derive(Debug, Default)]
pub(crate) struct StandardInput {
    at: u64,
}

/// An input that can be read once, and its first bytes.
#[derive(Debug)]
struct OneInput<R> {
    input: R,
    kept: Vec<u8>,
    /// Where the input is.
    at: u64,
    is_over: bool,
}

impl<R: Read> OneInput<R> {
    fn new(input: R) -> Self {
        Self { input, kept: Vec::new(), at: 0, is_over: false }
    }

    fn read_at(&mut self, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if at < self.kept.len() as u64 {
            let kept = &self.kept[at as usize..];
            let taken = kept.len().min(buffer.len());
            buffer[..taken].copy_from_slice(&kept[..taken]);
            return Ok(taken);
        }
        if at != self.at {
            let reason = "standard input was read already and can be read only once; give the rows as a file";
            return Err(io::Error::other(reason));
        }
        if self.is_over {
            return Ok(0);
        }
        let read = self.input.read(buffer)?;
        self.is_over = read == 0 && !buffer.is_empty();
        if self.at < KEPT as u64 {
            self.kept.extend_from_slice(&buffer[..read]);
        } else {
            self.kept = Vec::new();
        }
        self.at += read as u64;
        Ok(read)
    }
}

impl Read for StandardInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = INPUT.lock().unwrap_or_else(PoisonError::into_inner).read_at(self.at, buffer)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for StandardInput {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match to {
            SeekFrom::Start(at) => self.at = at,
            SeekFrom::Current(0) => {}
            SeekFrom::Current(_) | SeekFrom::End(_) => return Err(io::ErrorKind::NotSeekable.into()),
        }
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_from<R: Read>(input: &mut OneInput<R>, mut at: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let (mut all, mut buffer) = (Vec::new(), vec![0; 10_000]);
        while all.len() < bytes {
            let wanted = buffer.len().min(bytes - all.len());
            let read = input.read_at(at, &mut buffer[..wanted])?;
            if read == 0 {
                break;
            }
            all.extend_from_slice(&buffer[..read]);
            at += read as u64;
        }
        Ok(all)
    }

    #[test]
    fn the_start_can_be_read_again_and_the_rest_cannot() {
        let text: Vec<u8> = (0..3 * KEPT as u32).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        let mut input = OneInput::new(&text[..]);
        assert!(read_from(&mut input, 0, 70_000).unwrap() == text[..70_000]);
        assert!(read_from(&mut input, 10, 100_000).unwrap() == text[10..100_010]);
        assert!(read_from(&mut input, 0, usize::MAX).unwrap() == text);
        assert_eq!(input.read_at(text.len() as u64, &mut [0]).unwrap(), 0);
        let error = input.read_at(0, &mut [0]).unwrap_err().to_string();
        assert!(error.contains("can be read only once"), "{error}");
        let mut small = OneInput::new(&b"a,b\n"[..]);
        for _ in 0..2 {
            assert_eq!(read_from(&mut small, 0, usize::MAX).unwrap(), b"a,b\n");
        }
    }
}
