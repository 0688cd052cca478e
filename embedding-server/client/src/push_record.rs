//! A record of a worker's pushes, on a local socket, for the test program that breaks runs and checks every row (`tests/chaos`).
//! A message is:
//!
//! ```text
//! kind u8 │ call u64 │ length u32 │ payload        little-endian
//! ```
//!
//! What is written to a socket outlives its writer: a worker that is killed has said what it had sent.

pub mod grid;
mod recorder;

use std::io::{self, ErrorKind, Read};

use prost::Message;
use zagros_protocol::datapath::PushRequest;

pub use recorder::PushRecorder;

const HEAD: usize = 13;
/// Longer payloads are no push of any worker.
const LONGEST: usize = 1 << 30;

#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// The worker's index. The first message.
    Hello { worker: u32 },
    /// A push is about to be sent to a server.
    Sent { call: u64, push: PushRequest },
    /// The server has acknowledged it.
    Acknowledged { call: u64 },
    /// The worker no longer waits for an answer. The server may have applied the push.
    GivenUp { call: u64 },
    /// The worker has got its place in the run.
    Joined { writer: u64, incarnation: u32 },
    /// The worker's client is about to route a push.
    Started(StartedPush),
    /// By the client's word, all of the push is acknowledged.
    Finished { seq: u64 },
    /// The worker has trained to the end. The hash of its dense network.
    Trained { network: u64 },
}

/// A push before any part of it is routed.
#[derive(Clone, PartialEq, Message)]
pub struct StartedPush {
    #[prost(uint64, tag = "1")]
    pub seq: u64,
    /// Training steps before that of the push.
    #[prost(uint64, tag = "2")]
    pub step: u64,
    /// Samples of its batch.
    #[prost(uint64, tag = "3")]
    pub samples: u64,
    /// Splits whose last row is in the batch.
    #[prost(uint64, repeated, tag = "4")]
    pub splits: Vec<u64>,
    #[prost(message, repeated, tag = "5")]
    pub tables: Vec<TableRows>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TableRows {
    #[prost(uint32, tag = "1")]
    pub table: u32,
    #[prost(uint64, repeated, tag = "2")]
    pub ids: Vec<u64>,
}

impl Frame {
    pub fn encode(&self) -> Vec<u8> {
        let (kind, call, payload) = match self {
            Self::Hello { worker } => (0, u64::from(*worker), Vec::new()),
            Self::Sent { call, push } => (1, *call, push.encode_to_vec()),
            Self::Acknowledged { call } => (2, *call, Vec::new()),
            Self::GivenUp { call } => (3, *call, Vec::new()),
            Self::Joined { writer, incarnation } => (4, *writer, incarnation.to_le_bytes().to_vec()),
            Self::Started(push) => (5, push.seq, push.encode_to_vec()),
            Self::Finished { seq } => (6, *seq, Vec::new()),
            Self::Trained { network } => (7, *network, Vec::new()),
        };
        let mut bytes = Vec::with_capacity(HEAD + payload.len());
        bytes.push(kind);
        bytes.extend(call.to_le_bytes());
        bytes.extend((payload.len() as u32).to_le_bytes());
        bytes.extend(payload);
        bytes
    }

    /// Reads the next message; `None` where the writer ended, also in the middle of a message.
    pub fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut head = [0; HEAD];
        if !fill(from, &mut head)? {
            return Ok(None);
        }
        let (kind, rest) = head.split_at(1);
        let (call, length) = rest.split_at(8);
        let call = u64::from_le_bytes(call.try_into().map_err(io::Error::other)?);
        let length = u32::from_le_bytes(length.try_into().map_err(io::Error::other)?) as usize;
        if length > LONGEST {
            return Err(io::Error::new(ErrorKind::InvalidData, format!("a message of {length} bytes")));
        }
        let mut payload = vec![0; length];
        if !fill(from, &mut payload)? {
            return Ok(None);
        }
        Ok(Some(match kind[0] {
            0 => Self::Hello { worker: u32::try_from(call).map_err(io::Error::other)? },
            1 => Self::Sent { call, push: PushRequest::decode(&payload[..])? },
            2 => Self::Acknowledged { call },
            3 => Self::GivenUp { call },
            4 => {
                let incarnation = u32::from_le_bytes(payload.as_slice().try_into().map_err(io::Error::other)?);
                Self::Joined { writer: call, incarnation }
            }
            5 => Self::Started(StartedPush::decode(&payload[..])?),
            6 => Self::Finished { seq: call },
            7 => Self::Trained { network: call },
            kind => return Err(io::Error::new(ErrorKind::InvalidData, format!("a message of kind {kind}"))),
        }))
    }
}

/// Fills `bytes`; `false` where the writer ended before.
fn fill(from: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match from.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_back_and_half_a_message_is_none() {
        let push = PushRequest { writer: 3, seq: 7, ids: vec![1; 16].into(), ..PushRequest::default() };
        let started = StartedPush { step: 4, samples: 2, splits: vec![9], ..StartedPush::default() };
        let frames = [
            Frame::Hello { worker: 1 },
            Frame::Sent { call: 9, push },
            Frame::Acknowledged { call: 9 },
            Frame::GivenUp { call: 8 },
            Frame::Joined { writer: 3, incarnation: 2 },
            Frame::Started(StartedPush { seq: 7, tables: vec![TableRows { table: 1, ids: vec![5] }], ..started }),
            Frame::Finished { seq: 7 },
            Frame::Trained { network: 11 },
        ];
        let bytes: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
        let mut from = &bytes[..];
        for frame in &frames {
            assert_eq!(Frame::read(&mut from).unwrap().as_ref(), Some(frame));
        }
        assert_eq!(Frame::read(&mut from).unwrap(), None);
        let half = &frames[1].encode()[..20];
        assert_eq!(Frame::read(&mut &half[..]).unwrap(), None);
        let mut unknown = Frame::GivenUp { call: 1 }.encode();
        unknown[0] = 9;
        assert!(Frame::read(&mut &unknown[..]).is_err());
    }
}
