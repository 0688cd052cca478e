//! Flat payloads: how many rows of which table, and values in little-endian bytes.

use half::{bf16, f16};

use crate::TableId;
use crate::datapath::Encoding;

/// A run of rows of one table inside a flat payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The table the rows belong to.
    pub table: TableId,
    /// How many rows.
    pub rows: u32,
    /// Values per row, stated so that the receiver can check it (invariant DP-2).
    pub dim: u32,
}

/// A payload that does not have the shape it claims.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// Byte lengths disagree.
    #[error("{what}: expected {expected} bytes, found {found}")]
    Length {
        /// Which payload.
        what: &'static str,
        /// Bytes implied by the rest of the message.
        expected: usize,
        /// Bytes that came.
        found: usize,
    },
    /// The sender did not say how values are written.
    #[error("unknown value encoding {0}")]
    Encoding(i32),
    /// Sizes that overflow when multiplied.
    #[error("{0} is too large")]
    TooLarge(&'static str),
}

/// The segments of one message, checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segments(Vec<Segment>);

impl Segments {
    /// Takes segments as they are.
    #[must_use]
    pub fn new(segments: Vec<Segment>) -> Self {
        Self(segments)
    }

    /// Bytes as the wire has them: three u32 per segment.
    #[must_use]
    pub fn pack(&self) -> Vec<u8> {
        self.0
            .iter()
            .flat_map(|segment| [segment.table.0, segment.rows, segment.dim])
            .flat_map(u32::to_le_bytes)
            .collect()
    }

    /// The reverse of [`Self::pack`], which also checks the id payload against the row counts.
    ///
    /// # Errors
    /// When lengths disagree or overflow: nothing of the message may be used then.
    pub fn unpack(segments: &[u8], ids: &[u8]) -> Result<Self, PackError> {
        let (words, rest) = segments.as_chunks::<4>();
        if !rest.is_empty() || words.len() % 3 != 0 {
            let whole = segments.len().next_multiple_of(12);
            return Err(PackError::Length { what: "segments", expected: whole, found: segments.len() });
        }
        let word = |index: usize| u32::from_le_bytes(words[index]);
        let segments = (0..words.len() / 3)
            .map(|s| Segment { table: TableId(word(3 * s)), rows: word(3 * s + 1), dim: word(3 * s + 2) })
            .collect();
        let segments = Self(segments);
        expect_length("ids", segments.total_rows()?.checked_mul(8), ids.len())?;
        Ok(segments)
    }

    /// The segments in order.
    pub fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.0.iter()
    }

    /// Sum of rows.
    ///
    /// # Errors
    /// On overflow.
    pub fn total_rows(&self) -> Result<usize, PackError> {
        let sum = self.0.iter().try_fold(0_usize, |sum, segment| sum.checked_add(segment.rows as usize));
        sum.ok_or(PackError::TooLarge("row count"))
    }

    /// Sum of rows × dim: values in the payload.
    ///
    /// # Errors
    /// On overflow.
    pub fn total_values(&self) -> Result<usize, PackError> {
        let values = |segment: &Segment| (segment.rows as usize).checked_mul(segment.dim as usize);
        let sum = self.0.iter().try_fold(0_usize, |sum, segment| sum.checked_add(values(segment)?));
        sum.ok_or(PackError::TooLarge("value count"))
    }
}

/// Bytes of one value.
///
/// # Errors
/// When the encoding is not one of ours.
pub fn value_bytes(encoding: i32) -> Result<usize, PackError> {
    match Encoding::try_from(encoding) {
        Ok(Encoding::F32) => Ok(4),
        Ok(Encoding::F16 | Encoding::Bf16) => Ok(2),
        Ok(Encoding::Unspecified) | Err(_) => Err(PackError::Encoding(encoding)),
    }
}

/// Values as bytes of the wanted encoding. Narrow encodings round to nearest even.
///
/// # Errors
/// When the encoding is not one of ours.
pub fn encode_values(values: &[f32], encoding: i32) -> Result<Vec<u8>, PackError> {
    value_bytes(encoding)?;
    Ok(match Encoding::try_from(encoding) {
        Ok(Encoding::F16) => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        Ok(Encoding::Bf16) => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        _ if cfg!(target_endian = "little") => bytemuck::cast_slice(values).to_vec(),
        _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    })
}

/// Decodes exactly `into.len()` values.
///
/// # Errors
/// When the payload has another length or an unknown encoding; `into` is untouched then.
pub fn decode_values(bytes: &[u8], encoding: i32, into: &mut [f32]) -> Result<(), PackError> {
    expect_length("values", into.len().checked_mul(value_bytes(encoding)?), bytes.len())?;
    match Encoding::try_from(encoding) {
        Ok(Encoding::F16) => decode(bytes, into, |word| f16::from_le_bytes(word).to_f32()),
        Ok(Encoding::Bf16) => decode(bytes, into, |word| bf16::from_le_bytes(word).to_f32()),
        _ => decode(bytes, into, f32::from_le_bytes),
    }
    Ok(())
}

fn decode<const N: usize>(bytes: &[u8], into: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    // Lengths were checked by the caller, so the shorter side is never cut.
    for (word, slot) in bytes.as_chunks::<N>().0.iter().zip(into) {
        *slot = value(*word);
    }
}

/// Ids as bytes of the wire.
#[must_use]
pub fn encode_ids(ids: &[u64]) -> Vec<u8> {
    if cfg!(target_endian = "little") {
        return bytemuck::cast_slice(ids).to_vec();
    }
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

/// The reverse of [`encode_ids`]; a trailing part of an id is ignored, [`Segments::unpack`] refuses it first.
#[must_use]
pub fn decode_ids(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Checks a payload's length against what the message says it holds.
///
/// # Errors
/// When they differ, or when `expected` had overflowed.
pub fn expect_length(what: &'static str, expected: Option<usize>, found: usize) -> Result<(), PackError> {
    match expected {
        None => Err(PackError::TooLarge(what)),
        Some(expected) if expected != found => Err(PackError::Length { what, expected, found }),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn segment() -> impl Strategy<Value = Segment> {
        (any::<u32>(), 0_u32..50, 1_u32..130).prop_map(|(table, rows, dim)| Segment {
            table: TableId(table),
            rows,
            dim,
        })
    }

    proptest! {
        #[test]
        fn segments_survive_the_wire(list in prop::collection::vec(segment(), 0..20)) {
            let segments = Segments::new(list);
            let ids = vec![0; segments.total_rows().unwrap() * 8];
            prop_assert_eq!(Segments::unpack(&segments.pack(), &ids), Ok(segments));
        }

        #[test]
        fn any_bytes_are_refused_or_read_but_never_panic(bytes: Vec<u8>, ids: Vec<u8>) {
            if let Ok(segments) = Segments::unpack(&bytes, &ids) {
                prop_assert_eq!(segments.total_rows().unwrap() * 8, ids.len());
            }
        }

        #[test]
        fn f32_is_exact_and_narrow_encodings_are_near(values: Vec<f32>) {
            for (encoding, tolerance) in [(Encoding::F32, 0.0), (Encoding::Bf16, 1.0 / 256.0)] {
                let bytes = encode_values(&values, encoding as i32).unwrap();
                let mut back = vec![0.0; values.len()];
                decode_values(&bytes, encoding as i32, &mut back).unwrap();
                for index in 0..values.len() {
                    let (want, got) = (values[index], back[index]);
                    let same = want.to_bits() == got.to_bits() || (want.is_nan() && got.is_nan());
                    let near = (want - got).abs() <= want.abs() * tolerance + f32::MIN_POSITIVE;
                    prop_assert!(same || (tolerance > 0.0 && (near || got.is_infinite())), "{want} became {got}");
                }
            }
        }
    }

    #[test]
    fn a_missing_id_is_refused() {
        let segments = Segments::new(vec![Segment { table: TableId(0), rows: 2, dim: 4 }]);
        let refused = Segments::unpack(&segments.pack(), &encode_ids(&[1]));
        assert_eq!(refused, Err(PackError::Length { what: "ids", expected: 16, found: 8 }));
    }

    #[test]
    fn a_short_value_payload_leaves_the_target_untouched() {
        let mut into = [7.0; 2];
        assert!(decode_values(&[0; 7], Encoding::F32 as i32, &mut into).is_err());
        assert!(decode_values(&[0; 8], 0, &mut into).is_err());
        assert_eq!(into, [7.0; 2]);
    }
}
