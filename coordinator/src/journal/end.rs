//! How far the inputs go, in a file beside those of RocksDB.
//!
//! RocksDB takes a damaged record of its log for one that was torn when its process ended: it drops this record and all behind
//! it without a word. So the end is written down once more, after each input and before the input takes effect. An input that
//! took effect and cannot be read is damage then. Like the inputs, the mark survives the end of the process, not a loss of power.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | number of inputs that took effect, little endian; the largest number while no run is kept |
//! | 4 | checksum of these inputs, little endian |
//! | 48 | the start of the machine that they were written under, then zeros |
//! | 4 | checksum of the bytes before |

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use zagros_protocol::RunId;

pub(crate) const FILE: &str = "END";
/// Bytes of the file. They are in one sector: a loss of power leaves all of them or those of before.
const BYTES: usize = 64;
/// Bytes for the start of the machine.
const BOOT: usize = BYTES - 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InputsEnd {
    /// Number of the next input.
    pub(crate) next: u64,
    /// Checksum of all inputs before it, each with the checksum of those before.
    pub(crate) checksum: u32,
}

impl InputsEnd {
    /// Where the inputs of a run begin.
    pub(crate) fn new(run: RunId) -> Self {
        Self { next: 0, checksum: crc32c::crc32c(&run.0.to_le_bytes()) }
    }

    pub(crate) fn append(self, input: &[u8]) -> Self {
        Self { next: self.next + 1, checksum: crc32c::crc32c_append(self.checksum, input) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndMark {
    /// The inputs that took effect; `None` while no run is kept, so that nothing in the folder counts.
    pub(crate) inputs: Option<InputsEnd>,
    /// The start of the machine that they were written under.
    pub(crate) boot: Vec<u8>,
}

pub(crate) struct EndFile {
    file: File,
}

impl EndFile {
    /// Opens the file, which is made empty if need be.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(folder.join(FILE))?;
        Ok(Self { file })
    }

    /// Whether it counts inputs. A process that does not hold the folder may ask.
    pub(crate) fn names_inputs(&self) -> bool {
        self.read().is_ok_and(|mark| mark.is_some_and(|mark| mark.inputs.is_some()))
    }

    /// The mark; `None` in an empty file, and why it is none.
    pub(crate) fn read(&self) -> Result<Option<EndMark>, String> {
        let length = self.file.metadata().map_err(|error| error.to_string())?.len();
        if length == 0 {
            return Ok(None);
        }
        if length != BYTES as u64 {
            return Err(format!("it has {length} bytes instead of {BYTES}"));
        }
        let mut bytes = [0; BYTES];
        self.file.read_exact_at(&mut bytes, 0).map_err(|error| error.to_string())?;
        decode(&bytes).map(Some).ok_or_else(|| "its checksum is wrong".to_owned())
    }

    pub(crate) fn write(&self, mark: &EndMark) -> io::Result<()> {
        self.file.write_all_at(&encode(mark), 0)
    }

    /// As [`Self::write`], and the mark survives a loss of power.
    pub(crate) fn write_durably(&self, mark: &EndMark) -> io::Result<()> {
        self.write(mark)?;
        self.file.sync_all()
    }
}

fn encode(mark: &EndMark) -> [u8; BYTES] {
    let EndMark { inputs, boot } = mark;
    let end = inputs.unwrap_or(InputsEnd { next: u64::MAX, checksum: 0 });
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(&end.next.to_le_bytes());
    bytes[8..12].copy_from_slice(&end.checksum.to_le_bytes());
    let boot = &boot[..boot.len().min(BOOT)];
    bytes[12..12 + boot.len()].copy_from_slice(boot);
    let checksum = crc32c::crc32c(&bytes[..BYTES - 4]);
    bytes[BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; BYTES]) -> Option<EndMark> {
    let (content, checksum) = bytes.split_last_chunk()?;
    if u32::from_le_bytes(*checksum) != crc32c::crc32c(content) {
        return None;
    }
    let (next, rest) = content.split_first_chunk()?;
    let (checksum, boot) = rest.split_first_chunk()?;
    let end = InputsEnd { next: u64::from_le_bytes(*next), checksum: u32::from_le_bytes(*checksum) };
    let length = boot.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    Some(EndMark { inputs: Some(end).filter(|end| end.next != u64::MAX), boot: boot[..length].to_vec() })
}
