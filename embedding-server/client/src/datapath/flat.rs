//! Owned numbers as wire bytes: on a little-endian machine the vector itself becomes the payload, without a copy.

use bytes::Bytes;
use zagros_protocol::datapath::Encoding;
use zagros_protocol::packed::{PackError, encode_ids, encode_values};

/// A vector that reads as the bytes it consists of.
struct Flat<T>(Vec<T>);

impl<T: bytemuck::NoUninit> AsRef<[u8]> for Flat<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// Ids as the wire has them.
pub(crate) fn ids(ids: Vec<u64>) -> Bytes {
    if cfg!(target_endian = "little") {
        return Bytes::from_owner(Flat(ids));
    }
    encode_ids(&ids).into()
}

/// Values as the wire has them.
pub(crate) fn values(values: Vec<f32>, encoding: Encoding) -> Result<Bytes, PackError> {
    if cfg!(target_endian = "little") && encoding == Encoding::F32 {
        return Ok(Bytes::from_owner(Flat(values)));
    }
    encode_values(&values, encoding as i32).map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use zagros_protocol::packed::{decode_ids, decode_values};

    use super::*;

    #[test]
    fn the_short_way_writes_the_same_bytes_as_the_long_one() {
        let (some_ids, some_values) = (vec![1, u64::MAX, 1 << 40], vec![0.5, -3.0e-9, f32::INFINITY]);
        assert_eq!(ids(some_ids.clone()), encode_ids(&some_ids));
        assert_eq!(decode_ids(&ids(some_ids.clone())), some_ids);
        for encoding in [Encoding::F32, Encoding::F16, Encoding::Bf16] {
            let flat = values(some_values.clone(), encoding).unwrap();
            assert_eq!(flat, encode_values(&some_values, encoding as i32).unwrap());
        }
        let mut back = [0.0; 3];
        decode_values(&values(some_values.clone(), Encoding::F32).unwrap(), Encoding::F32 as i32, &mut back).unwrap();
        assert_eq!(back[..], some_values[..]);
    }
}
