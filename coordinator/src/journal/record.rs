//! An input as bytes.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | which input |
//! | 8 | time of the core, nanoseconds, little endian |
//! | 8 | wall clock, milliseconds since 1970, little endian |
//! | the rest | the request as protobuf; a drain's reason as text; an end's outcome as postcard has it |
//!
//! How far the inputs go is in a file beside those of RocksDB ([`EndFile`]).
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
use std::time::Duration;

use prost::Message;
use zagros_coordinator_core::CoreInput;
use zagros_protocol::RunId;

/// Bytes before an input's own.
const HEADER: usize = 17;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalTime {
    /// By the core's clock.
    pub at: Duration,
    /// By the wall clock, milliseconds since 1970. It says how long there was no coordinator, and nothing else.
    pub wall_ms: u64,
}

pub(crate) fn encode(time: JournalTime, input: &CoreInput) -> Vec<u8> {
    let (kind, content) = match input {
        CoreInput::Join(request) => (1, request.encode_to_vec()),
        CoreInput::Heartbeat(request) => (2, request.encode_to_vec()),
        CoreInput::Leave(request) => (3, request.encode_to_vec()),
        CoreInput::Group(request) => (4, request.encode_to_vec()),
        CoreInput::Assign(request) => (5, request.encode_to_vec()),
        CoreInput::Complete(request) => (6, request.encode_to_vec()),
        CoreInput::Transforms(request) => (7, request.encode_to_vec()),
        CoreInput::ReportEvaluation(request) => (8, request.encode_to_vec()),
        CoreInput::Tick => (9, Vec::new()),
        CoreInput::Drain(reason) => (10, reason.clone().into_bytes()),
        // An outcome is a word and a text: it always has bytes.
        CoreInput::End(outcome) => (11, postcard::to_allocvec(outcome).unwrap_or_default()),
        CoreInput::Recover => (12, Vec::new()),
        CoreInput::Barrier(request) => (13, request.encode_to_vec()),
        CoreInput::Scale(request) => (14, request.encode_to_vec()),
        CoreInput::ReportMove(request) => (15, request.encode_to_vec()),
    };
    let mut bytes = Vec::with_capacity(HEADER + content.len());
    bytes.push(kind);
    bytes.extend(u64::try_from(time.at.as_nanos()).unwrap_or(u64::MAX).to_le_bytes());
    bytes.extend(time.wall_ms.to_le_bytes());
    bytes.extend(content);
    bytes
}

/// The input of bytes; why they are none.
pub(crate) fn decode(bytes: &[u8]) -> Result<(JournalTime, CoreInput), String> {
    let Some((header, content)) = bytes.split_at_checked(HEADER) else {
        return Err(format!("an input of {} bytes, and the shortest has {HEADER}", bytes.len()));
    };
    let number = |start: usize| header[start..start + 8].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let time = JournalTime { at: Duration::from_nanos(number(1)), wall_ms: number(9) };
    Ok((time, input(header[0], content)?))
}

fn input(kind: u8, content: &[u8]) -> Result<CoreInput, String> {
    fn message<M: Message + Default>(content: &[u8]) -> Result<M, String> {
        M::decode(content).map_err(|error| error.to_string())
    }
    Ok(match kind {
        1 => CoreInput::Join(message(content)?),
        2 => CoreInput::Heartbeat(message(content)?),
        3 => CoreInput::Leave(message(content)?),
        4 => CoreInput::Group(message(content)?),
        5 => CoreInput::Assign(message(content)?),
        6 => CoreInput::Complete(message(content)?),
        7 => CoreInput::Transforms(message(content)?),
        8 => CoreInput::ReportEvaluation(message(content)?),
        9 => CoreInput::Tick,
        10 => CoreInput::Drain(String::from_utf8(content.to_vec()).map_err(|error| error.to_string())?),
        11 => CoreInput::End(postcard::from_bytes(content).map_err(|error| error.to_string())?),
        12 => CoreInput::Recover,
        13 => CoreInput::Barrier(message(content)?),
        14 => CoreInput::Scale(message(content)?),
        15 => CoreInput::ReportMove(message(content)?),
        other => return Err(format!("input of kind {other}")),
    })
}

pub(crate) const END_FILE: &str = "END";
/// Bytes of the file. They are in one sector: a loss of power leaves all of them or those of before.
const BYTES: usize = 64;
/// Bytes for the start of the machine.
const BOOT: usize = BYTES - 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
        self.file.write_all_at(&encode_mark(mark), 0)
    }

    /// As [`Self::write`], and the mark survives a loss of power.
    pub(crate) fn write_durably(&self, mark: &EndMark) -> io::Result<()> {
        self.write(mark)?;
        self.file.sync_all()
    }
}

fn encode_mark(mark: &EndMark) -> [u8; BYTES] {
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

fn decode_mark(bytes: &[u8; BYTES]) -> Option<EndMark> {
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

#[cfg(test)]
mod tests {
    use zagros_coordinator_core::RunOutcome;
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
            let bytes = encode(time, &input);
            assert_eq!(decode(&bytes), Ok((time, input)));
        }
        let tick = encode(time, &CoreInput::Tick);
        assert!(decode(&tick[..16]).unwrap_err().contains("16 bytes"));
        assert_eq!(decode(&[&[99], &tick[1..]].concat()), Err("input of kind 99".to_owned()));
        assert!(decode(&[&[1], &tick[1..], &[255]].concat()).is_err());
    }
}
