//! A gRPC message as a list of pieces. A long field is a piece of its own: it is sent from where it is in memory, and
//! read from where it arrived.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use prost::{EncodeError, Message, encode_length_delimiter, length_delimiter_len};
use tonic::Status;

use super::MAX_MESSAGE_BYTES;

/// Bytes before each message: whether it is compressed (one byte, here always no) and its length (big-endian).
const PREFIX: usize = 5;
/// A piece needs a frame of its own. Copying a shorter field is cheaper.
const LONG: usize = 4096;
/// Protobuf's wire type of a field with a length.
const LENGTH_DELIMITED: usize = 2;

/// A message, with its long fields separate.
#[derive(Debug)]
pub struct OutgoingMessage<M> {
    head: M,
    payloads: Vec<(u32, Bytes)>,
}

/// A body in memory: the pieces of a message, then trailers if it is an answer.
pub(super) struct OutgoingBody {
    pieces: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
}

#[derive(Debug, Default)]
struct IncomingMessage {
    pieces: VecDeque<Bytes>,
    bytes: usize,
    /// Length in the prefix. `None` before the prefix has arrived.
    stated: Option<usize>,
}

impl<M: Message> OutgoingMessage<M> {
    /// `payloads` are the numbers and contents of fields of type `bytes`. These fields are empty in `head`.
    pub fn new(head: M, payloads: impl IntoIterator<Item = (u32, Bytes)>) -> Self {
        // An empty field equals a missing field.
        let payloads = payloads.into_iter().filter(|(_, payload)| !payload.is_empty()).collect();
        Self { head, payloads }
    }

    /// The message in the form of the wire. Protobuf allows any order of fields, so the long ones come last.
    pub(super) fn into_pieces(self, trailers: Option<HeaderMap>) -> Result<OutgoingBody, Status> {
        let length = self.encoded_len();
        check_length(length)?;
        let mut short = BytesMut::with_capacity(PREFIX + self.head.encoded_len() + 64);
        short.put_u8(0);
        // The limit is far below 4 GiB, so this cannot fail.
        short.put_u32(length as u32);
        self.head.encode(&mut short).map_err(unencodable)?;
        let mut pieces = VecDeque::new();
        for (number, payload) in self.payloads {
            encode_length_delimiter(key(number), &mut short).map_err(unencodable)?;
            encode_length_delimiter(payload.len(), &mut short).map_err(unencodable)?;
            if payload.len() < LONG {
                short.put(payload);
            } else {
                pieces.extend([short.split().freeze(), payload]);
            }
        }
        pieces.push_back(short.freeze());
        Ok(OutgoingBody { pieces, trailers })
    }

    fn encoded_len(&self) -> usize {
        let field = |(number, payload): &(u32, Bytes)| {
            length_delimiter_len(key(*number)) + length_delimiter_len(payload.len()) + payload.len()
        };
        self.head.encoded_len() + self.payloads.iter().map(field).sum::<usize>()
    }
}

/// The key before a length-delimited field, a varint.
fn key(number: u32) -> usize {
    (number as usize) << 3 | LENGTH_DELIMITED
}

impl Body for OutgoingBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        while let Some(piece) = self.pieces.pop_front() {
            if !piece.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.trailers.is_none() && self.pieces.iter().all(Bytes::is_empty)
    }
}

/// Reads a body to its end. Returns its only message, if it has one, and its trailers.
pub(super) async fn read<M, B>(body: B) -> Result<(Option<M>, Option<HeaderMap>), Status>
where
    M: Message + Default,
    B: Body<Data = Bytes, Error = Status>,
{
    let mut body = std::pin::pin!(body);
    let (mut arrived, mut trailers) = (IncomingMessage::default(), None);
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(piece) => arrived.push(piece)?,
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    Ok((arrived.into_message()?, trailers))
}

impl IncomingMessage {
    /// Adds a piece. Never keeps more than one frame beyond the length in the prefix.
    fn push(&mut self, piece: Bytes) -> Result<(), Status> {
        if !piece.is_empty() {
            self.bytes += piece.len();
            self.pieces.push_back(piece);
        }
        if self.stated.is_none() && self.bytes >= PREFIX {
            let (is_compressed, length) = (self.get_u8() != 0, self.get_u32() as usize);
            if is_compressed {
                return Err(Status::unimplemented(
                    "the message is compressed, which is not supported; send it uncompressed",
                ));
            }
            check_length(length)?;
            self.stated = Some(length);
        }
        match self.stated {
            Some(stated) if self.bytes > stated => Err(self.unequal(stated)),
            _ => Ok(()),
        }
    }

    fn into_message<M: Message + Default>(self) -> Result<Option<M>, Status> {
        match self.stated {
            None if self.bytes == 0 => Ok(None),
            None => Err(self.unequal(PREFIX)),
            Some(stated) if self.bytes != stated => Err(self.unequal(stated)),
            Some(_) => M::decode(self).map(Some).map_err(|error| Status::invalid_argument(error.to_string())),
        }
    }

    fn unequal(&self, stated: usize) -> Status {
        Status::invalid_argument(format!("message: expected {stated} bytes, found {}", self.bytes))
    }
}

impl Buf for IncomingMessage {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |piece| &piece[..])
    }

    /// # Panics
    /// If `count` is larger than the number of bytes left, as the trait requires.
    fn advance(&mut self, count: usize) {
        assert!(count <= self.bytes, "{count} bytes are more than the {} that are left", self.bytes);
        self.bytes -= count;
        let mut left = count;
        while let Some(front) = self.pieces.front_mut() {
            let here = left.min(front.len());
            front.advance(here);
            left -= here;
            if !front.is_empty() {
                return;
            }
            self.pieces.pop_front();
        }
    }

    /// Copies nothing if the bytes are in one piece.
    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        if let Some(front) = self.pieces.front_mut().filter(|front| front.len() >= count) {
            let taken = front.slice(..count);
            self.advance(count);
            return taken;
        }
        let mut joined = BytesMut::with_capacity(count.min(self.bytes));
        joined.put(self.take(count));
        joined.freeze()
    }
}

fn check_length(bytes: usize) -> Result<(), Status> {
    if bytes <= MAX_MESSAGE_BYTES {
        return Ok(());
    }
    Err(Status::out_of_range(format!("a message of {bytes} bytes is larger than the limit of {MAX_MESSAGE_BYTES}")))
}

/// The buffer grows, so this error should not occur.
fn unencodable(error: EncodeError) -> Status {
    Status::internal(error.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tonic::Code;

    use super::*;

    /// As protobuf's compiler would generate it.
    #[derive(Clone, PartialEq, Message)]
    struct Sample {
        #[prost(uint64, tag = "1")]
        number: u64,
        #[prost(bytes = "bytes", tag = "2")]
        short: Bytes,
        #[prost(bytes = "bytes", tag = "17")]
        long: Bytes,
    }

    fn sent(sample: &Sample) -> Vec<Bytes> {
        let mut head = sample.clone();
        let payloads = [(17, std::mem::take(&mut head.long)), (2, std::mem::take(&mut head.short))];
        let pieces = OutgoingMessage::new(head, payloads).into_pieces(None).unwrap();
        pieces.pieces.into_iter().collect()
    }

    fn receive_pieces(pieces: impl IntoIterator<Item = Bytes>) -> Result<Option<Sample>, Status> {
        let body = tonic::body::Body::new(OutgoingBody { pieces: pieces.into_iter().collect(), trailers: None });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(read(body)).map(|(message, _)| message)
    }

    /// Receives the bytes in pieces that end at `cuts`.
    fn receive(bytes: &[u8], cuts: &[usize]) -> Result<Option<Sample>, Status> {
        let bytes = Bytes::copy_from_slice(bytes);
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).chain([bytes.len()]).collect();
        ends.sort_unstable();
        ends.insert(0, 0);
        receive_pieces(ends.windows(2).map(|ends| bytes.slice(ends[0]..ends[1])))
    }

    fn sample() -> impl Strategy<Value = Sample> {
        let field = |most: usize| (0..most, any::<u8>()).prop_map(|(bytes, byte)| Bytes::from(vec![byte; bytes]));
        (any::<u64>(), field(40), field(20_000)).prop_map(|(number, short, long)| Sample { number, short, long })
    }

    proptest! {
        /// Protobuf data behind gRPC's prefix is read correctly, whatever pieces it arrives in.
        #[test]
        fn a_message_survives_in_any_pieces(sample in sample(), cuts in prop::collection::vec(any::<usize>(), 0..9)) {
            let bytes = sent(&sample).concat();
            prop_assert_eq!(bytes[0], 0);
            prop_assert_eq!(u32::from_be_bytes(bytes[1..5].try_into().unwrap()) as usize, bytes.len() - PREFIX);
            prop_assert_eq!(Sample::decode(&bytes[PREFIX..]).unwrap(), sample.clone());
            prop_assert_eq!(receive(&bytes, &cuts).unwrap(), Some(sample));
        }

        #[test]
        fn any_bytes_are_refused_or_read_but_never_panic(bytes: Vec<u8>, cuts: Vec<usize>) {
            let _ = receive(&bytes, &cuts);
            let length = (bytes.len() as u32).to_be_bytes();
            let _ = receive(&[&[0], &length[..], &bytes].concat(), &cuts);
        }
    }

    #[test]
    fn a_long_field_is_not_copied_on_either_end() {
        let long = Bytes::from(vec![7; 10_000]);
        let pieces = sent(&Sample { number: 3, short: Bytes::from_static(b"short"), long: long.clone() });
        assert!(pieces.iter().any(|piece| piece.as_ptr() == long.as_ptr()));
        let received = receive_pieces(pieces).unwrap().unwrap();
        assert_eq!(received.long.as_ptr(), long.as_ptr());
    }

    #[test]
    fn a_body_that_is_not_one_message_is_refused_with_sizes() {
        let bytes = sent(&Sample { number: 300, ..Sample::default() }).concat();
        let refused = |bytes: &[u8]| receive(bytes, &[]).unwrap_err();
        assert_eq!(receive(&[], &[]).unwrap(), None);
        assert_eq!(refused(&bytes[..4]).message(), "message: expected 5 bytes, found 4");
        assert_eq!(refused(&bytes[..7]).message(), "message: expected 3 bytes, found 2");
        assert_eq!(refused(&[&bytes[..], &bytes].concat()).message(), "message: expected 3 bytes, found 11");
        assert_eq!(refused(&[1, 0, 0, 0, 0]).code(), Code::Unimplemented);
        let oversize = refused(&[0, 255, 255, 255, 255]);
        assert_eq!(oversize.code(), Code::OutOfRange);
        assert!(oversize.message().contains("4294967295 bytes is larger than the limit"), "{oversize}");
    }

    #[test]
    fn a_message_beyond_the_limit_is_not_sent() {
        let long = Bytes::from(vec![0; MAX_MESSAGE_BYTES]);
        let status = OutgoingMessage::new(Sample::default(), [(17, long)]).into_pieces(None).err().unwrap();
        assert_eq!(status.code(), Code::OutOfRange);
    }
}
