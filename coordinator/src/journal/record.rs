//! An input as bytes.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | which input |
//! | 8 | time of the core, nanoseconds, little endian |
//! | 8 | wall clock, milliseconds since 1970, little endian |
//! | the rest | the request as protobuf; a drain's reason as text; an end's outcome as postcard has it |

use std::time::Duration;

use prost::Message;
use zagros_coordinator_core::CoreInput;

/// Bytes before an input's own.
const HEADER: usize = 17;

/// When an input came.
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
