//! Wire bytes as numbers and back, without a copy where the bytes already lie as the machine wants them.

use std::borrow::Cow;

use bytes::Bytes;
use zagros_protocol::PackError;
use zagros_protocol::datapath::Encoding;
use zagros_protocol::packed::{decode_ids, decode_values, encode_values, expect_length, value_bytes};

/// A vector that reads as the bytes it consists of.
struct Flat(Vec<f32>);

impl AsRef<[u8]> for Flat {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// Ids of a payload. Bytes that came through a socket may start anywhere, and are copied then.
pub(crate) fn ids(bytes: &[u8]) -> Cow<'_, [u64]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(ids) if cfg!(target_endian = "little") => Cow::Borrowed(ids),
        _ => Cow::Owned(decode_ids(bytes)),
    }
}

/// Exactly `count` values of a payload.
///
/// # Errors
/// When the payload has another length or an unknown encoding.
pub(crate) fn decode(bytes: &[u8], encoding: i32, count: usize) -> Result<Cow<'_, [f32]>, PackError> {
    expect_length("gradients", count.checked_mul(value_bytes(encoding)?), bytes.len())?;
    let as_they_lie = cfg!(target_endian = "little") && encoding == Encoding::F32 as i32;
    match bytemuck::try_cast_slice(bytes) {
        Ok(values) if as_they_lie => Ok(Cow::Borrowed(values)),
        _ => {
            let mut values = vec![0.0; count];
            decode_values(bytes, encoding, &mut values)?;
            Ok(Cow::Owned(values))
        }
    }
}

/// Values as a payload.
///
/// # Errors
/// When the encoding is unknown.
pub(crate) fn encode(values: Vec<f32>, encoding: i32) -> Result<Bytes, PackError> {
    if cfg!(target_endian = "little") && encoding == Encoding::F32 as i32 {
        return Ok(Bytes::from_owner(Flat(values)));
    }
    encode_values(&values, encoding).map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zagros_protocol::packed::encode_ids;

    use super::*;

    /// The same bytes at an address that is no multiple of eight.
    fn shifted(bytes: &[u8]) -> Vec<u8> {
        [&[0], bytes].concat()
    }

    proptest! {
        #[test]
        fn where_the_bytes_lie_does_not_matter(some_ids: Vec<u64>, some_values: Vec<f32>) {
            let bytes = encode_ids(&some_ids);
            prop_assert_eq!(&ids(&bytes)[..], &some_ids[..]);
            let elsewhere = shifted(&bytes);
            prop_assert_eq!(&ids(&elsewhere[1..])[..], &some_ids[..]);
            for encoding in [Encoding::F32, Encoding::F16, Encoding::Bf16].map(|encoding| encoding as i32) {
                let bytes = encode_values(&some_values, encoding).unwrap();
                prop_assert_eq!(&encode(some_values.clone(), encoding).unwrap()[..], &bytes[..]);
                let here = decode(&bytes, encoding, some_values.len()).unwrap().into_owned();
                let there = decode(&shifted(&bytes)[1..], encoding, some_values.len()).unwrap().into_owned();
                prop_assert!(here.iter().zip(&there).all(|(a, b)| a.to_bits() == b.to_bits()));
                prop_assert_eq!(here.len(), some_values.len());
            }
        }
    }

    #[test]
    fn a_payload_of_another_length_or_encoding_is_refused() {
        assert!(decode(&[0; 7], Encoding::F32 as i32, 2).is_err());
        assert!(decode(&[0; 8], Encoding::F16 as i32, 2).is_err());
        assert!(decode(&[0; 8], 0, 2).is_err() && decode(&[0; 8], 9, 2).is_err());
        assert!(encode(vec![1.0], 0).is_err());
    }
}
