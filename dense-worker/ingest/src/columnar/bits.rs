//! Numbers of a few bits each: packed, or as runs of one number.

use super::fault::{Result, fail};
use super::thrift::ends_early;

/// A number of `width` ≤ 64 bits that starts at bit `bit`. Bits behind the end are 0.
#[inline]
pub(super) fn bits_at(bytes: &[u8], bit: usize, width: u32) -> u64 {
    let (start, shift) = (bit / 8, (bit % 8) as u32);
    let mask = if width == 64 { u64::MAX } else { (1 << width) - 1 };
    match bytes.get(start..).and_then(|rest| rest.first_chunk::<8>()) {
        Some(eight) if shift + width <= 64 => (u64::from_le_bytes(*eight) >> shift) & mask,
        _ => {
            let mut sixteen = [0; 16];
            let rest = bytes.get(start..).unwrap_or_default();
            let there = rest.len().min(16);
            sixteen[..there].copy_from_slice(&rest[..there]);
            (u128::from_le_bytes(sixteen) >> shift) as u64 & mask
        }
    }
}

/// Appends `count` packed numbers that start at bit `bit`. Up to eight bits each, eight numbers are in one word.
fn unpack(bytes: &[u8], bit: usize, width: u32, count: usize, out: &mut Vec<u32>) {
    let mut done = 0;
    if (1..=8).contains(&width) && bit.is_multiple_of(8) {
        let mask = (1_u64 << width) - 1;
        let (start, whole) = (bit / 8, count / 8);
        for group in 0..whole {
            let at = start + group * width as usize;
            let Some(eight) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) else { break };
            let word = u64::from_le_bytes(*eight);
            out.extend((0..8).map(|n| ((word >> (n * width)) & mask) as u32));
            done += 8;
        }
    }
    out.extend((done..count).map(|n| bits_at(bytes, bit + n * width as usize, width) as u32));
}

/// A number whose low seven bits come first.
pub(super) fn varint(bytes: &[u8], at: &mut usize) -> Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at).ok_or_else(ends_early)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    fail("a number of more than 64 bits")
}

/// The same with a sign.
pub(super) fn signed_varint(bytes: &[u8], at: &mut usize) -> Result<i64> {
    let value = varint(bytes, at)?;
    Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
}

/// A number of four bytes.
pub(super) fn four_bytes(bytes: &[u8], at: &mut usize) -> Result<u32> {
    let four = bytes.get(*at..).and_then(|rest| rest.first_chunk::<4>()).ok_or_else(ends_early)?;
    *at += 4;
    Ok(u32::from_le_bytes(*four))
}

/// A sequence of runs: one number repeated, or packed numbers. It is a cursor: each call is given the same bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs {
    width: u32,
    at: usize,
    end: usize,
    run: Run,
}

#[derive(Clone, Copy, Debug, Default)]
enum Run {
    #[default]
    None,
    Repeated {
        value: u32,
        left: u64,
    },
    Packed {
        bit: usize,
        left: u64,
    },
}

impl Runs {
    /// The numbers of `width` bits in `bytes[at..end]`.
    pub(super) fn new(width: u32, at: usize, end: usize) -> Result<Self> {
        if width > 32 {
            return fail(format!("numbers of {width} bits"));
        }
        Ok(Self { width, at, end, run: Run::None })
    }

    /// Takes up to `most` numbers that are all `value`, without looking at each; 0 if the next is another, or may be.
    #[inline]
    pub(super) fn take_repeated(&mut self, bytes: &[u8], value: u32, most: usize) -> Result<usize> {
        self.next_run(bytes)?;
        match &mut self.run {
            Run::Repeated { value: repeated, left } if *repeated == value => {
                let taken = most.min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= taken as u64;
                Ok(taken)
            }
            _ => Ok(0),
        }
    }

    /// Takes `count` numbers.
    pub(super) fn take(&mut self, bytes: &[u8], count: usize, out: &mut Vec<u32>) -> Result<()> {
        let mut missing = count;
        while missing > 0 {
            self.next_run(bytes)?;
            let width = self.width;
            match &mut self.run {
                Run::None => return Err(ends_early()),
                Run::Repeated { value, left } => {
                    let taken = missing.min(usize::try_from(*left).unwrap_or(usize::MAX));
                    out.resize(out.len() + taken, *value);
                    *left -= taken as u64;
                    missing -= taken;
                }
                Run::Packed { bit, left } => {
                    let taken = missing.min(usize::try_from(*left).unwrap_or(usize::MAX));
                    unpack(bytes, *bit, width, taken, out);
                    *bit += taken * width as usize;
                    *left -= taken as u64;
                    missing -= taken;
                }
            }
        }
        Ok(())
    }

    /// Starts the next run if the newest is over.
    fn next_run(&mut self, bytes: &[u8]) -> Result<()> {
        while matches!(self.run, Run::None | Run::Repeated { left: 0, .. } | Run::Packed { left: 0, .. }) {
            let bytes = bytes.get(..self.end).ok_or_else(ends_early)?;
            let header = varint(bytes, &mut self.at)?;
            let whole_bytes = self.width.div_ceil(8) as usize;
            self.run = if header & 1 == 0 {
                let value = bytes.get(self.at..self.at + whole_bytes).ok_or_else(ends_early)?;
                self.at += whole_bytes;
                Run::Repeated { value: bits_at(value, 0, self.width) as u32, left: header >> 1 }
            } else {
                let (groups, there) = (header >> 1, (self.end - self.at) as u64);
                // The last run may have fewer bytes than its groups of eight numbers would take.
                let most = if self.width == 0 { u64::MAX } else { there * 8 / u64::from(self.width) };
                let left = groups.saturating_mul(8).min(most);
                if left == 0 && groups > 0 {
                    return Err(ends_early());
                }
                let bit = self.at * 8;
                let taken = groups.saturating_mul(u64::from(self.width)).min(there);
                self.at += taken as usize;
                Run::Packed { bit, left }
            };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn runs_of_both_kinds_are_read_in_any_portions() {
        // 5 × 3, then 8 packed numbers 0..8 of 3 bits (the example of the format's description), then 2 × 1.
        let bytes = [10, 3, 3, 0b1000_1000, 0b1100_0110, 0b1111_1010, 4, 1];
        let all = [3, 3, 3, 3, 3, 0, 1, 2, 3, 4, 5, 6, 7, 1, 1];
        for portion in 1..=all.len() {
            let (mut runs, mut out) = (Runs::new(3, 0, bytes.len()).unwrap(), Vec::new());
            while out.len() < all.len() {
                runs.take(&bytes, portion.min(all.len() - out.len()), &mut out).unwrap();
            }
            assert_eq!(out, all, "{portion}");
            assert_eq!(runs.take(&bytes, 1, &mut out), Err(ends_early()));
        }
    }

    #[test]
    fn repeated_numbers_are_taken_at_once() {
        let bytes = [10, 3, 4, 1];
        let mut runs = Runs::new(2, 0, 4).unwrap();
        assert_eq!(runs.take_repeated(&bytes, 3, 4).unwrap(), 4);
        assert_eq!(runs.take_repeated(&bytes, 3, 4).unwrap(), 1);
        assert_eq!(runs.take_repeated(&bytes, 3, 4).unwrap(), 0);
        assert_eq!(runs.take_repeated(&bytes, 1, 4).unwrap(), 2);
    }

    proptest! {
        #[test]
        fn packed_numbers_are_read_back(numbers in prop::collection::vec(any::<u64>(), 0..80), width in 1_u32..=64) {
            let mask = u64::MAX >> (64 - width);
            let mut bytes = vec![0_u8; (numbers.len() * width as usize).div_ceil(8)];
            for (n, number) in numbers.iter().enumerate() {
                for bit in 0..width as usize {
                    let at = n * width as usize + bit;
                    bytes[at / 8] |= (((number & mask) >> bit & 1) as u8) << (at % 8);
                }
            }
            for (n, number) in numbers.iter().enumerate() {
                prop_assert_eq!(bits_at(&bytes, n * width as usize, width), number & mask);
            }
            if width <= 32 {
                let mut out = Vec::new();
                unpack(&bytes, 0, width, numbers.len(), &mut out);
                prop_assert_eq!(out, numbers.iter().map(|number| (number & mask) as u32).collect::<Vec<_>>());
            }
        }

        #[test]
        fn any_bytes_are_numbers_or_refused(bytes: Vec<u8>, width in 0_u32..=32, count in 0_usize..2_000) {
            let (mut runs, mut out) = (Runs::new(width, 0, bytes.len()).unwrap(), Vec::new());
            if runs.take(&bytes, count, &mut out).is_ok() {
                prop_assert_eq!(out.len(), count);
            }
        }
    }
}
