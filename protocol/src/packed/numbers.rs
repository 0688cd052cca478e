//! Ids and values in the form of the wire, which is that of the machine. They are not copied if their bytes are aligned.

use std::borrow::Cow;

use bytes::Bytes;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use zagros_zip::ZipEq;

use super::{PackError, expect_length};
use crate::datapath::Encoding;

/// Owned numbers that can be read as their bytes: a vector is its own payload.
struct FlatNumbers<T>(Vec<T>);

impl<T: bytemuck::NoUninit> AsRef<[u8]> for FlatNumbers<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

pub fn value_bytes(encoding: i32) -> Result<usize, PackError> {
    match Encoding::try_from(encoding) {
        Ok(Encoding::F32) => Ok(4),
        Ok(Encoding::F16 | Encoding::Bf16) => Ok(2),
        Ok(Encoding::Unspecified) | Err(_) => Err(PackError::Encoding(encoding)),
    }
}

/// Values as bytes in the given encoding. Narrow encodings round to the nearest value, ties to even.
pub fn encode_values(values: &[f32], encoding: i32) -> Result<Vec<u8>, PackError> {
    let mut bytes = vec![0; values.len() * value_bytes(encoding)?];
    encode_into(values, encoding, &mut bytes)?;
    Ok(bytes)
}

/// As [`encode_values`], into a slice of the right length.
pub(super) fn encode_into(values: &[f32], encoding: i32, into: &mut [u8]) -> Result<(), PackError> {
    expect_length("values", values.len().checked_mul(value_bytes(encoding)?), into.len())?;
    match Encoding::try_from(encoding) {
        Ok(Encoding::F16) => encode_f16(values, into),
        Ok(Encoding::Bf16) => encode(values, into, |value| bf16::from_f32(value).to_le_bytes()),
        _ => encode(values, into, f32::to_le_bytes),
    }
    Ok(())
}

fn encode<const N: usize>(values: &[f32], into: &mut [u8], word: impl Fn(f32) -> [u8; N]) {
    for (slot, value) in into.as_chunks_mut::<N>().0.iter_mut().zip_eq(values) {
        *slot = word(*value);
    }
}

/// After an error `into` is unchanged.
pub fn decode_values(bytes: &[u8], encoding: i32, into: &mut [f32]) -> Result<(), PackError> {
    expect_length("values", into.len().checked_mul(value_bytes(encoding)?), bytes.len())?;
    match Encoding::try_from(encoding) {
        Ok(Encoding::F16) => decode_f16(bytes, into),
        // bfloat16 is the high half of an f32. In this form compilers vectorise the loop.
        Ok(Encoding::Bf16) => decode(bytes, into, |word| f32::from_bits(u32::from(u16::from_le_bytes(word)) << 16)),
        _ => decode(bytes, into, f32::from_le_bytes),
    }
    Ok(())
}

fn decode<const N: usize>(bytes: &[u8], into: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    for (word, slot) in bytes.as_chunks::<N>().0.iter().zip_eq(into) {
        *slot = value(*word);
    }
}

/// Converts whole slices. With the processor's own instruction this is eight times as fast as one value at a time.
fn encode_f16(values: &[f32], into: &mut [u8]) {
    match bytemuck::try_cast_slice_mut::<u8, f16>(into) {
        Ok(words) => words.convert_from_f32_slice(values),
        Err(_) => encode(values, into, |value| f16::from_f32(value).to_le_bytes()),
    }
}

/// Decodes f16 values. The caller has checked the lengths.
fn decode_f16(bytes: &[u8], into: &mut [f32]) {
    match bytemuck::try_cast_slice::<u8, f16>(bytes) {
        Ok(words) => words.convert_to_f32_slice(into),
        Err(_) => decode(bytes, into, |word| f16::from_le_bytes(word).to_f32()),
    }
}

pub fn encode_ids(ids: &[u64]) -> Vec<u8> {
    bytemuck::cast_slice(ids).to_vec()
}

/// Reads what [`encode_ids`] wrote. An incomplete id at the end is ignored, because [`super::Segments::unpack`] refuses
/// it first.
pub fn decode_ids(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// As [`encode_ids`], but without a copy.
pub fn ids_as_bytes(ids: Vec<u64>) -> Bytes {
    Bytes::from_owner(FlatNumbers(ids))
}

/// As [`decode_ids`], but borrowed if the bytes are aligned. Bytes from a socket may be unaligned. They are then
/// copied.
pub fn ids_of(bytes: &[u8]) -> Cow<'_, [u64]> {
    bytemuck::try_cast_slice(bytes).map_or_else(|_| Cow::Owned(decode_ids(bytes)), Cow::Borrowed)
}

/// Little-endian words, borrowed if the bytes are aligned. An incomplete word at the end is ignored.
pub(super) fn words_of(bytes: &[u8]) -> Cow<'_, [u32]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(words) => Cow::Borrowed(words),
        Err(_) => Cow::Owned(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()),
    }
}

/// Words in the form of the wire, without a copy.
pub(super) fn words_as_bytes(words: Vec<u32>) -> Bytes {
    Bytes::from_owner(FlatNumbers(words))
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) const ENCODINGS: [i32; 3] = [Encoding::F32 as i32, Encoding::F16 as i32, Encoding::Bf16 as i32];

    /// The same bytes at an address that is not a multiple of eight.
    pub(crate) fn shifted(bytes: &[u8]) -> Vec<u8> {
        [&[0], bytes].concat()
    }

    pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    proptest! {
        /// The error is at most half of a unit in the last place: of 11 bits for f16 (or of its smallest step, 2⁻²⁴),
        /// of 8 bits for bf16.
        #[test]
        fn f32_is_exact_and_narrow_encodings_are_the_nearest(values in prop::collection::vec(-60_000.0_f32..60_000.0, 0..50)) {
            for (encoding, relative, absolute) in
                [(Encoding::F32, 0.0, 0.0), (Encoding::F16, 1.0 / 2048.0, 1.0 / (1 << 25) as f32), (Encoding::Bf16, 1.0 / 256.0, 0.0)]
            {
                let mut back = vec![f32::NAN; values.len()];
                decode_values(&encode_values(&values, encoding as i32).unwrap(), encoding as i32, &mut back).unwrap();
                for (want, got) in values.iter().zip_eq(&back) {
                    let most = want.abs() * relative + absolute;
                    prop_assert!((want - got).abs() <= most, "{encoding:?}: {want} became {got}");
                }
            }
        }

        #[test]
        fn any_f32_survives_bit_for_bit(words: Vec<u32>) {
            let values: Vec<f32> = words.iter().map(|word| f32::from_bits(*word)).collect();
            let mut back = vec![0.0; values.len()];
            let encoding = Encoding::F32 as i32;
            decode_values(&encode_values(&values, encoding).unwrap(), encoding, &mut back).unwrap();
            prop_assert_eq!(bits(&back), words);
        }

        #[test]
        fn bytes_are_read_equally_at_any_address(ids: Vec<u64>, values: Vec<f32>) {
            let bytes = encode_ids(&ids);
            prop_assert_eq!(&ids_as_bytes(ids.clone())[..], &bytes[..]);
            prop_assert_eq!(&ids_of(&bytes)[..], &ids[..]);
            prop_assert_eq!(ids_of(&shifted(&bytes)[1..]).into_owned(), ids);
            for encoding in ENCODINGS {
                let bytes = encode_values(&values, encoding).unwrap();
                let mut elsewhere = vec![0; bytes.len() + 1];
                encode_into(&values, encoding, &mut elsewhere[1..]).unwrap();
                prop_assert_eq!(&elsewhere[1..], &bytes[..]);
            }
        }
    }

    /// Invariant DP-2.
    #[test]
    fn a_payload_of_another_length_or_encoding_is_refused_and_leaves_the_target_untouched() {
        let mut into = [7.0; 2];
        for (bytes, encoding) in [(7, Encoding::F32 as i32), (8, Encoding::F16 as i32), (8, 0), (8, 9)] {
            assert!(decode_values(&vec![0; bytes], encoding, &mut into).is_err());
        }
        assert_eq!(into, [7.0; 2]);
        assert!(encode_values(&[1.0], 0).is_err() && encode_values(&[1.0], 9).is_err());
    }
}
