//! Inputs and snapshots as bytes: values as postcard has them, whole. Only the release that has written them reads them.
//!
//! How far the inputs go is in a file beside those of RocksDB ([`EndFile`]).
//!
//! RocksDB takes a damaged record of its log for one that was torn when its process ended: it drops this record and all behind
//! it without a word. So the end is written down once more, after each input and before the input takes effect. An input that
//! took effect and cannot be read is damage then. Like the inputs, the mark survives the end of the process, not a loss of power.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zagros_protocol::RunId;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalTime {
    /// By the core's clock.
    pub at: Duration,
    /// By the wall clock, milliseconds since 1970. It says how long there was no coordinator, and nothing else.
    pub wall_ms: u64,
}

pub(crate) fn encode(value: &impl Serialize) -> Result<Vec<u8>, String> {
    postcard::to_allocvec(value).map_err(|error| error.to_string())
}

/// The value of bytes; why they are none.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let (value, left) = postcard::take_from_bytes(bytes).map_err(|error| error.to_string())?;
    if left.is_empty() { Ok(value) } else { Err(format!("{} bytes follow its end", left.len())) }
}

pub(crate) const END_FILE: &str = "END";
/// Bytes of the file: the mark as postcard has it, at most 60, then zeros, then a checksum of these. They are in one sector: a loss of power leaves all of them or those of before.
const BYTES: usize = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InputsEnd {
    pub(crate) next: u64,
    /// Checksum of all inputs before it, each with the checksum of those before.
    pub(crate) checksum: u32,
}

impl InputsEnd {
    pub(crate) fn new(run: RunId) -> Self {
        Self { next: 0, checksum: crc32c::crc32c(&run.0.to_le_bytes()) }
    }

    pub(crate) fn append(self, input: &[u8]) -> Self {
        Self { next: self.next + 1, checksum: crc32c::crc32c_append(self.checksum, input) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(folder.join(END_FILE))?;
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
        decode_mark(&bytes).map(Some).ok_or_else(|| "its checksum is wrong".to_owned())
    }

    pub(crate) fn write(&self, mark: &EndMark) -> io::Result<()> {
        self.file.write_all_at(&encode_mark(mark)?, 0)
    }

    /// As [`Self::write`], and the mark survives a loss of power.
    pub(crate) fn write_durably(&self, mark: &EndMark) -> io::Result<()> {
        self.write(mark)?;
        self.file.sync_all()
    }
}

fn encode_mark(mark: &EndMark) -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    let written = postcard::to_slice(mark, &mut bytes[..BYTES - 4]);
    written.map_err(|error| io::Error::other(error.to_string()))?;
    let checksum = crc32c::crc32c(&bytes[..BYTES - 4]);
    bytes[BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
    Ok(bytes)
}

fn decode_mark(bytes: &[u8; BYTES]) -> Option<EndMark> {
    let (content, checksum) = bytes.split_last_chunk()?;
    let is_whole = u32::from_le_bytes(*checksum) == crc32c::crc32c(content);
    postcard::take_from_bytes(content).ok().filter(|_| is_whole).map(|(mark, _)| mark)
}

#[cfg(test)]
mod tests {
    use zagros_coordinator_core::{CoreInput, RunOutcome};
    use zagros_protocol::control::{BarrierRequest, CompleteRequest, HeartbeatRequest, JoinRequest, Progress};

    use super::*;

    #[test]
    fn an_input_is_what_its_bytes_say_and_other_bytes_are_none() {
        let time = JournalTime { at: Duration::new(3, 7), wall_ms: 1_700_000_000_123 };
        let progress = Some(Progress { loss: f64::INFINITY, ..Progress::default() });
        for input in [
            CoreInput::Join(JoinRequest { address: "a:1".to_owned(), lineage: 7, ..JoinRequest::default() }),
            CoreInput::Heartbeat(HeartbeatRequest { member: 9, progress, ..HeartbeatRequest::default() }),
            CoreInput::Complete(CompleteRequest { splits: vec![1, 2], ..CompleteRequest::default() }),
            CoreInput::Tick,
            CoreInput::Drain("the coordinator was asked to end".to_owned()),
            CoreInput::End(RunOutcome::Failed("ü".to_owned())),
            CoreInput::Recover,
            CoreInput::Barrier(BarrierRequest { ballot: 3, ..BarrierRequest::default() }),
        ] {
            let bytes = encode(&(time, &input)).unwrap();
            assert!(decode::<(JournalTime, CoreInput)>(&bytes[..bytes.len() - 1]).is_err());
            assert_eq!(decode(&bytes), Ok((time, input)));
        }
        let long = [&encode(&(time, CoreInput::Tick)).unwrap()[..], &[255]].concat();
        assert_eq!(decode::<(JournalTime, CoreInput)>(&long), Err("1 bytes follow its end".to_owned()));
        assert!(decode::<CoreInput>(&[99]).is_err());
    }
}
