//! The values of a page, whatever their encoding.

use super::bits::{Runs, four_bytes};
use super::delta::{self, Pieces};
use super::fault::{Result, fail};
use super::kind::{Physical, Value};
use super::output::Output;
use super::thrift::ends_early;

/// Values of a page that is encoded by differences, which is decoded at once.
const MOST_DIFFERENCES: usize = 1 << 24;

/// Values decoded at once: they stay in the processor's nearest cache.
pub(super) const PORTION: usize = 512;

/// A cursor over the values of a page that are not null. Each call is given the bytes of that page.
#[derive(Debug)]
pub(super) enum ValueDecoder {
    /// One after another.
    Plain { physical: Physical, at: usize },
    /// Truth values, a bit each.
    Bits { next: usize },
    /// Truth values in runs.
    BoolRuns(Runs),
    /// Places in the dictionary.
    Dictionary(Runs),
    /// Whole numbers that were decoded at once.
    Integers { values: Vec<i64>, next: usize },
    /// Texts that were decoded at once.
    Pieces { pieces: Pieces, next: usize },
    /// The first bytes of all values, then the second bytes, …
    Split { physical: Physical, start: usize, count: usize, next: usize },
}

impl ValueDecoder {
    /// The decoder of the values in `bytes[at..]`, at most `most` of them.
    pub(super) fn new(encoding: i64, physical: Physical, bytes: &[u8], mut at: usize, most: usize) -> Result<Self> {
        let most = most.min(MOST_DIFFERENCES);
        let is_int = matches!(physical, Physical::Int32 | Physical::Int64);
        Ok(match (encoding, physical) {
            (0, Physical::Bool) => Self::Bits { next: at * 8 },
            (0, _) => Self::Plain { physical, at },
            // Both numbers mean the same.
            (2 | 8, _) => {
                // A page of nulls may have no byte at all.
                let width = bytes.get(at).map_or(0, |width| u32::from(*width));
                Self::Dictionary(Runs::new(width, (at + 1).min(bytes.len()), bytes.len())?)
            }
            (3, Physical::Bool) => {
                let length = four_bytes(bytes, &mut at)? as usize;
                let end = at.checked_add(length).filter(|end| *end <= bytes.len()).ok_or_else(ends_early)?;
                Self::BoolRuns(Runs::new(1, at, end)?)
            }
            (5, _) if is_int => {
                let mut values = delta::integers(bytes, &mut at, most)?;
                if physical == Physical::Int32 {
                    values.iter_mut().for_each(|value| *value = i64::from(*value as i32));
                }
                Self::Integers { values, next: 0 }
            }
            (6, Physical::Bytes) => Self::Pieces { pieces: delta::by_lengths(bytes, &mut at, most)?, next: 0 },
            (7, Physical::Bytes | Physical::Fixed(_)) => {
                Self::Pieces { pieces: delta::by_prefixes(bytes, &mut at, most)?, next: 0 }
            }
            (9, _) if width_of(physical).is_some() => {
                let count = (bytes.len() - at) / width_of(physical).unwrap_or(1);
                Self::Split { physical, start: at, count, next: 0 }
            }
            _ => {
                return fail(format!(
                    "its values of type {physical:?} have the encoding {encoding}, which is not supported"
                ));
            }
        })
    }

    /// Gives the next `count` values to `out`; with `rows` each is a row.
    pub(super) fn take<O: Output>(&mut self, bytes: &[u8], count: usize, rows: bool, out: &mut O) -> Result<()> {
        match self {
            Self::Plain { physical, at } => plain(*physical, bytes, at, count, |value| give(out, value, rows)),
            Self::Dictionary(runs) => indices(runs, bytes, count, rows, out),
            Self::Bits { next } => {
                for _ in 0..count {
                    let byte = *bytes.get(*next / 8).ok_or_else(ends_early)?;
                    give(out, Value::Int(i64::from(byte >> (*next % 8) & 1)), rows);
                    *next += 1;
                }
                Ok(())
            }
            Self::BoolRuns(runs) => {
                let mut truths = Vec::with_capacity(count.min(PORTION));
                for start in (0..count).step_by(PORTION) {
                    truths.clear();
                    runs.take(bytes, PORTION.min(count - start), &mut truths)?;
                    truths.iter().for_each(|truth| give(out, Value::Int(i64::from(*truth)), rows));
                }
                Ok(())
            }
            Self::Integers { values, next } => {
                let taken = values.get(*next..*next + count).ok_or_else(ends_early)?;
                taken.iter().for_each(|value| give(out, Value::Int(*value), rows));
                *next += count;
                Ok(())
            }
            Self::Pieces { pieces, next } => {
                let taken = pieces.bounds.get(*next..*next + count).ok_or_else(ends_early)?;
                let bytes = pieces.joined.as_deref().unwrap_or(bytes);
                for (start, end) in taken {
                    give(out, Value::Bytes(&bytes[*start as usize..*end as usize]), rows);
                }
                *next += count;
                Ok(())
            }
            Self::Split { physical, start, count: all, next } => {
                let width = width_of(*physical).unwrap_or(1);
                if *next + count > *all {
                    return Err(ends_early());
                }
                let mut joined = vec![0; width];
                for value in *next..*next + count {
                    joined.iter_mut().enumerate().for_each(|(n, byte)| *byte = bytes[*start + n * *all + value]);
                    plain(*physical, &joined, &mut 0, 1, |value| give(out, value, rows))?;
                }
                *next += count;
                Ok(())
            }
        }
    }
}

/// Bytes of a value, if all have the same.
fn width_of(physical: Physical) -> Option<usize> {
    match physical {
        Physical::Int32 | Physical::Float => Some(4),
        Physical::Int64 | Physical::Double => Some(8),
        Physical::Int96 => Some(12),
        Physical::Fixed(width) => Some(width),
        Physical::Bool | Physical::Bytes => None,
    }
}

#[inline]
fn give<O: Output>(out: &mut O, value: Value<'_>, row: bool) {
    out.value(value);
    if row {
        out.end_row();
    }
}

fn indices<O: Output>(runs: &mut Runs, bytes: &[u8], count: usize, rows: bool, out: &mut O) -> Result<()> {
    let mut places = Vec::with_capacity(count.min(PORTION));
    for start in (0..count).step_by(PORTION) {
        places.clear();
        runs.take(bytes, PORTION.min(count - start), &mut places)?;
        if rows {
            out.entries(&places).or_else(fail)?;
            continue;
        }
        places.iter().try_for_each(|place| out.entry(*place as usize)).or_else(fail)?;
    }
    Ok(())
}

/// Gives `count` values that are stored one after another to `take`.
pub(super) fn plain<'a>(
    physical: Physical,
    bytes: &'a [u8],
    at: &mut usize,
    count: usize,
    mut take: impl FnMut(Value<'a>),
) -> Result<()> {
    match physical {
        Physical::Int32 => fixed::<4>(bytes, at, count, |four| take(Value::Int(i64::from(i32::from_le_bytes(four))))),
        Physical::Int64 => fixed::<8>(bytes, at, count, |eight| take(Value::Int(i64::from_le_bytes(eight)))),
        Physical::Float => fixed::<4>(bytes, at, count, |four| take(Value::Float(f64::from(f32::from_le_bytes(four))))),
        Physical::Double => fixed::<8>(bytes, at, count, |eight| take(Value::Float(f64::from_le_bytes(eight)))),
        Physical::Int96 => fixed::<12>(bytes, at, count, |twelve| take(Value::Int(nanoseconds(twelve)))),
        Physical::Bytes => (0..count).try_for_each(|_| {
            let length = four_bytes(bytes, at)? as usize;
            let value = bytes.get(*at..).and_then(|rest| rest.get(..length)).ok_or_else(ends_early)?;
            *at += length;
            take(Value::Bytes(value));
            Ok(())
        }),
        Physical::Fixed(width) => {
            let end = width.checked_mul(count).and_then(|length| at.checked_add(length));
            let values = end.and_then(|end| bytes.get(*at..end)).ok_or_else(ends_early)?;
            values.chunks_exact(width).for_each(|value| take(Value::Bytes(value)));
            *at += values.len();
            Ok(())
        }
        Physical::Bool => fail("truth values in a dictionary"),
    }
}

fn fixed<const WIDTH: usize>(
    bytes: &[u8],
    at: &mut usize,
    count: usize,
    mut take: impl FnMut([u8; WIDTH]),
) -> Result<()> {
    let end = WIDTH.checked_mul(count).and_then(|length| at.checked_add(length));
    let values = end.and_then(|end| bytes.get(*at..end)).ok_or_else(ends_early)?;
    values.as_chunks::<WIDTH>().0.iter().for_each(|value| take(*value));
    *at += values.len();
    Ok(())
}

/// Nanoseconds since 1970 of a timestamp of nanoseconds in a Julian day.
fn nanoseconds(twelve: [u8; 12]) -> i64 {
    let (time, day) = twelve.split_at(8);
    let time = i64::from_le_bytes(time.try_into().unwrap_or_default());
    let day = u32::from_le_bytes(day.try_into().unwrap_or_default());
    (i64::from(day) - 2_440_588).wrapping_mul(86_400_000_000_000).wrapping_add(time)
}
