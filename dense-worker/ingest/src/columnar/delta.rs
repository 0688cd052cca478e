//! The encodings by differences: numbers, lengths and common prefixes.

use super::bits::{bits_at, signed_varint, varint};
use super::fault::{Result, fail};
use super::pages::MOST_PAGE_BYTES;
use super::thrift::ends_early;

/// Numbers of a block of differences: far more than any writer uses.
const MOST_BLOCK: u64 = 1 << 16;

/// Reads `DELTA_BINARY_PACKED` numbers from `bytes[*at..]`, at most `most` of them.
pub(super) fn integers(bytes: &[u8], at: &mut usize, most: usize) -> Result<Vec<i64>> {
    let (block, parts) = (varint(bytes, at)?, varint(bytes, at)?);
    let count = usize::try_from(varint(bytes, at)?).unwrap_or(usize::MAX);
    let mut value = signed_varint(bytes, at)?;
    if count > most {
        return fail(format!("{count} differences for {most} values"));
    }
    if block == 0 || block > MOST_BLOCK || parts == 0 || !block.is_multiple_of(parts * 8) {
        return fail(format!("differences in blocks of {block} in {parts} parts"));
    }
    let part = (block / parts) as usize;
    // Blocks of equal differences take a few bytes: only as much as comes.
    let mut values = Vec::with_capacity(count.min(bytes.len()));
    if count > 0 {
        values.push(value);
    }
    while values.len() < count {
        let least = signed_varint(bytes, at)?;
        let widths = bytes.get(*at..*at + parts as usize).ok_or_else(ends_early)?;
        *at += parts as usize;
        for width in widths.iter().map(|width| u32::from(*width)) {
            if values.len() == count {
                break;
            }
            if width > 64 {
                return fail(format!("differences of {width} bits"));
            }
            let end = *at + part * width as usize / 8;
            let here = part.min(count - values.len());
            // A last part may be cut off behind its last number.
            let needed = *at + (here * width as usize).div_ceil(8);
            let packed = bytes.get(..end.min(bytes.len())).filter(|_| needed <= bytes.len()).ok_or_else(ends_early)?;
            for n in 0..here {
                let difference = bits_at(packed, *at * 8 + n * width as usize, width);
                value = value.wrapping_add(least).wrapping_add(difference.cast_signed());
                values.push(value);
            }
            *at = end.min(bytes.len());
        }
    }
    Ok(values)
}

/// Where each of the values of a page is, and their bytes if they are not in the page.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces {
    /// Start and end of each.
    pub(super) bounds: Vec<(u32, u32)>,
    /// The bytes, if they were put together from prefixes.
    pub(super) joined: Option<Vec<u8>>,
}

/// Reads `DELTA_LENGTH_BYTE_ARRAY`: all lengths, then all bytes.
pub(super) fn by_lengths(bytes: &[u8], at: &mut usize, most: usize) -> Result<Pieces> {
    let lengths = integers(bytes, at, most)?;
    let mut bounds = Vec::with_capacity(lengths.len());
    for length in lengths {
        let length = usize::try_from(length).or_else(|_| fail(format!("a value of {length} bytes")))?;
        let end = at.checked_add(length).filter(|end| *end <= bytes.len()).ok_or_else(ends_early)?;
        bounds.push((*at as u32, end as u32));
        *at = end;
    }
    Ok(Pieces { bounds, joined: None })
}

/// Reads `DELTA_BYTE_ARRAY`: of each value, how many bytes it shares with the one before, and the others.
pub(super) fn by_prefixes(bytes: &[u8], at: &mut usize, most: usize) -> Result<Pieces> {
    let prefixes = integers(bytes, at, most)?;
    let suffixes = by_lengths(bytes, at, most)?.bounds;
    if prefixes.len() != suffixes.len() {
        return fail(format!("{} prefixes and {} suffixes", prefixes.len(), suffixes.len()));
    }
    let (mut joined, mut bounds, mut last) = (Vec::<u8>::new(), Vec::with_capacity(prefixes.len()), (0_usize, 0_usize));
    for (index, (start, end)) in suffixes.into_iter().enumerate() {
        let shared = usize::try_from(prefixes[index]).unwrap_or(usize::MAX);
        if shared > last.1 - last.0 {
            return fail(format!("a value that shares {shared} bytes with one of {}", last.1 - last.0));
        }
        let (start, end, at) = (start as usize, end as usize, joined.len());
        if at + shared + (end - start) > MOST_PAGE_BYTES {
            return fail(format!("the values of a page are more than {MOST_PAGE_BYTES} bytes"));
        }
        joined.extend_from_within(last.0..last.0 + shared);
        joined.extend_from_slice(&bytes[start..end]);
        last = (at, joined.len());
        bounds.push((last.0 as u32, last.1 as u32));
    }
    Ok(Pieces { bounds, joined: Some(joined) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The second example of the format's description: 7, 5, 3, 1, 2, 3, 4, 5 in blocks of 128, one part of 8 … here 4.
    #[test]
    fn differences_add_up() {
        // Block of 128 in 4 parts, 8 values, first 7; least −2; widths 2, 0, 0, 0; differences 0 0 0 3 3 3 3.
        let mut bytes = vec![0x80, 0x01, 4, 8, 14, 3, 2, 0, 0, 0];
        bytes.extend([0b1100_0000, 0b0011_1111, 0, 0, 0, 0, 0, 0]);
        let mut at = 0;
        assert_eq!(integers(&bytes, &mut at, 8).unwrap(), [7, 5, 3, 1, 2, 3, 4, 5]);
        assert_eq!(at, bytes.len());
        assert!(integers(&bytes, &mut 0, 7).unwrap_err().to_string().contains("8 differences for 7 values"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_values_or_refused(start in prop_oneof![Just(vec![]), Just(vec![0x80, 0x01, 4, 40, 14])], rest: Vec<u8>) {
            let bytes = [start, rest].concat();
            for read in [by_lengths, by_prefixes] {
                if let Ok(pieces) = read(&bytes, &mut 0, 100) {
                    let bytes = pieces.joined.as_deref().unwrap_or(&bytes);
                    prop_assert!(pieces.bounds.iter().all(|(start, end)| start <= end && *end as usize <= bytes.len()));
                }
            }
        }
    }
}
