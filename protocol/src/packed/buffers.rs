//! Reusable memory for values. The rows of a batch take megabytes. When freed, memory of this size returns to the
//! system, and using it again costs a page fault per 4 KiB.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::numbers::encode_into;
use super::{PackError, decode_values, expect_length, value_bytes};
use crate::datapath::Encoding;

/// Largest number of kept buffers. A few concurrent requests use as many.
const KEPT: usize = 8;
/// A buffer with more values than this is freed. It is 16 MiB of values.
const LARGEST: usize = 4 << 20;

#[derive(Debug)]
pub struct ValueBuffers {
    kept: Mutex<Vec<Vec<f32>>>,
    /// Largest number of values in all kept buffers together.
    most: usize,
}

impl Default for ValueBuffers {
    fn default() -> Self {
        Self::with_capacity(KEPT * LARGEST * size_of::<f32>())
    }
}

/// A vector of values that returns to its [`ValueBuffers`] when it is dropped.
#[derive(Debug)]
pub struct ValueBuffer {
    values: Vec<f32>,
    pool: Arc<ValueBuffers>,
}

/// The values of a payload, borrowed or decoded.
#[derive(Debug)]
pub enum PayloadValues<'a> {
    Borrowed(&'a [f32]),
    Decoded(ValueBuffer),
}

impl ValueBuffers {
    /// Keeps buffers of at most `bytes` bytes in total.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { kept: Mutex::default(), most: bytes / size_of::<f32>() }
    }

    /// Lends a buffer of `count` values. It contains arbitrary old values.
    pub fn take_buffer(self: &Arc<Self>, count: usize) -> ValueBuffer {
        let mut values = self.kept().pop().unwrap_or_default();
        values.resize(count, 0.0);
        ValueBuffer { values, pool: Arc::clone(self) }
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Vec<Vec<f32>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ValueBuffer {
    /// The values as bytes in the given encoding. Those of f32 are not copied. The memory returns when
    /// the last of the bytes is dropped.
    pub fn into_bytes(self, encoding: i32) -> Result<Bytes, PackError> {
        if encoding == Encoding::F32 as i32 {
            return Ok(Bytes::from_owner(self));
        }
        let bytes = self.len() * value_bytes(encoding)?;
        let mut encoded = self.pool.take_buffer(bytes.div_ceil(size_of::<f32>()));
        encode_into(&self, encoding, &mut bytemuck::cast_slice_mut(&mut encoded.values)[..bytes])?;
        Ok(Bytes::from_owner(encoded).slice(..bytes))
    }
}

impl AsRef<[u8]> for ValueBuffer {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.values)
    }
}

impl Deref for ValueBuffer {
    type Target = Vec<f32>;
    fn deref(&self) -> &Vec<f32> {
        &self.values
    }
}

impl DerefMut for ValueBuffer {
    fn deref_mut(&mut self) -> &mut Vec<f32> {
        &mut self.values
    }
}

impl Drop for ValueBuffer {
    fn drop(&mut self) {
        let values = std::mem::take(&mut self.values);
        let mut kept = self.pool.kept();
        let held: usize = kept.iter().map(Vec::capacity).sum();
        if kept.len() < KEPT && values.capacity() <= LARGEST && held + values.capacity() <= self.pool.most {
            kept.push(values);
        }
    }
}

impl<'a> PayloadValues<'a> {
    /// Reads exactly `count` values of a payload. Bytes from a socket may be unaligned. They are then decoded into a
    /// buffer, like narrow values. `what` names the payload in an error.
    pub fn read(
        what: &'static str,
        bytes: &'a [u8],
        encoding: i32,
        count: usize,
        buffers: &Arc<ValueBuffers>,
    ) -> Result<Self, PackError> {
        expect_length(what, count.checked_mul(value_bytes(encoding)?), bytes.len())?;
        match bytemuck::try_cast_slice(bytes) {
            Ok(values) if encoding == Encoding::F32 as i32 => Ok(Self::Borrowed(values)),
            _ => {
                let mut values = buffers.take_buffer(count);
                decode_values(bytes, encoding, &mut values)?;
                Ok(Self::Decoded(values))
            }
        }
    }
}

impl Deref for PayloadValues<'_> {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        match self {
            Self::Borrowed(values) => values,
            Self::Decoded(values) => values,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::encode_values;
    use super::super::numbers::tests::{ENCODINGS, bits, shifted};
    use super::*;

    proptest! {
        /// Old values in a buffer and the alignment of the bytes must not matter.
        #[test]
        fn values_are_decoded_as_by_the_plain_way(values: Vec<f32>, left in prop::collection::vec(any::<f32>(), 0..60)) {
            let buffers = Arc::new(ValueBuffers::default());
            for encoding in ENCODINGS {
                buffers.take_buffer(0).extend_from_slice(&left);
                let mut buffer = buffers.take_buffer(values.len());
                buffer.copy_from_slice(&values);
                let bytes = encode_values(&values, encoding).unwrap();
                prop_assert_eq!(&buffer.into_bytes(encoding).unwrap()[..], &bytes[..]);

                let mut long = vec![0.0; values.len()];
                decode_values(&bytes, encoding, &mut long).unwrap();
                for bytes in [&bytes[..], &shifted(&bytes)[1..]] {
                    let read = PayloadValues::read("values", bytes, encoding, values.len(), &buffers).unwrap();
                    prop_assert_eq!(bits(&read), bits(&long));
                }
            }
        }
    }

    #[test]
    fn memory_returns_when_the_last_of_its_bytes_is_dropped_up_to_a_limit() {
        let buffers = Arc::new(ValueBuffers::default());
        let buffer = buffers.take_buffer(1000);
        let place = buffer.as_ptr();
        let bytes = buffer.into_bytes(Encoding::F32 as i32).unwrap();
        let part = bytes.slice(8..16);
        drop(bytes);
        assert_ne!(buffers.take_buffer(10).as_ptr(), place);
        drop(part);
        assert_eq!(buffers.take_buffer(500).as_ptr(), place);
        let many: Vec<ValueBuffer> = (0..2 * KEPT).map(|_| buffers.take_buffer(1)).collect();
        drop(many);
        assert_eq!(buffers.kept().len(), KEPT);
        buffers.kept().clear();
        drop(buffers.take_buffer(LARGEST + 1));
        assert!(buffers.kept().is_empty());
    }

    /// Invariant DP-2.
    #[test]
    fn a_payload_of_another_length_or_encoding_is_refused() {
        let buffers = Arc::new(ValueBuffers::default());
        for (bytes, encoding) in [(7, Encoding::F32 as i32), (8, Encoding::F16 as i32), (8, 0), (8, 9)] {
            assert!(PayloadValues::read("values", &vec![0; bytes], encoding, 2, &buffers).is_err());
        }
        let read_error = |bytes: &[u8], count| {
            PayloadValues::read("gradients", bytes, Encoding::F32 as i32, count, &buffers).unwrap_err()
        };
        assert_eq!(read_error(&[0; 7], 2).to_string(), "gradients: expected 8 bytes, found 7");
        assert_eq!(read_error(&[], usize::MAX), PackError::TooLarge("gradients"));
        assert!(buffers.take_buffer(2).into_bytes(9).is_err());
    }
}
