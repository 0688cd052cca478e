//! How large the parts of an object are.
//!
//! A store takes 10,000 parts of an object at most. So a large object needs large parts, and each part is held in memory until
//! it is sent. A writer that knows about how large the object will be says so before the first part. All parts but the last then
//! have one size, as R2 demands:
//!
//! ```text
//! expected      16 MiB × 9,000 parts = 140 GiB     200 GiB                  1 TiB
//! parts         16 MiB                             25 MiB                   124 MiB
//! ```
//!
//! An object that becomes larger than expected still fits: after 9,000 parts the size doubles every 125 parts.

/// Bytes of a part of an object of up to 140 GiB.
pub(crate) const PART: usize = 16 << 20;
/// Largest number of parts that a store takes.
pub(crate) const MOST_PARTS: usize = 10_000;
/// The largest part that a store takes is 5 GiB: so many of the smallest that this module plans.
const MOST_PER_PART: usize = 320;
/// Parts of one size, and parts of each later size, which is twice the one before.
const EQUAL_PARTS: usize = 9_000;
const GROWN_PARTS: usize = 125;
/// Expected bytes are exceeded by a part in so many without a change: block heads, and rows that come meanwhile.
const SPARE: u64 = 16;

/// Sizes of the parts of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartSizes {
    equal: usize,
    most: usize,
}

impl PartSizes {
    /// For an object of about so many bytes; 0 if the writer does not know how many.
    pub(crate) fn for_bytes(expected: u64) -> Self {
        Self::scaled(PART, expected)
    }

    /// As [`Self::for_bytes`], with another smallest part. Tests use smaller ones with the same numbers of parts.
    pub(crate) fn scaled(smallest: usize, expected: u64) -> Self {
        let most = smallest.saturating_mul(MOST_PER_PART);
        // A sixteenth of the smallest part: 1 MiB.
        let grain = (smallest as u64 / SPARE).max(1);
        let share = expected.saturating_add(expected / SPARE).div_ceil(EQUAL_PARTS as u64);
        let equal = usize::try_from(share.div_ceil(grain).saturating_mul(grain)).unwrap_or(usize::MAX);
        Self { equal: equal.clamp(smallest, most), most }
    }

    /// Bytes of a part, by its number from 0.
    pub(crate) fn part_bytes(self, number: usize) -> usize {
        let doubled = (number + GROWN_PARTS).saturating_sub(EQUAL_PARTS) / GROWN_PARTS;
        self.equal.saturating_mul(1 << doubled.min(8)).min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;
    /// As Amazon publishes them: parts of 5 MiB to 5 GiB, and objects of 5 TiB.
    const SMALLEST: u64 = 5 << 20;
    const LARGEST: u64 = 5 * GIB;
    const OBJECT: u64 = 5 << 40;

    /// Parts of an object, and the largest of them. `None` if it does not fit.
    fn parts(sizes: PartSizes, mut bytes: u64) -> Option<(usize, u64)> {
        let mut largest = 0;
        for number in 0..MOST_PARTS {
            let part = sizes.part_bytes(number) as u64;
            largest = largest.max(part.min(bytes));
            if bytes <= part {
                return Some((number + 1, largest));
            }
            bytes -= part;
        }
        None
    }

    #[test]
    fn an_object_of_known_size_has_equal_parts_at_each_boundary() {
        for (expected, part) in [
            (0, PART as u64),
            (132 * GIB, PART as u64),
            (140 * GIB, 17 << 20),
            (156 * GIB, 19 << 20),
            (10_000 * PART as u64, 19 << 20),
            (10_000 * PART as u64 + 1, 19 << 20),
            (200 * GIB, 25 << 20),
            (1 << 40, 124 << 20),
            (OBJECT, 619 << 20),
        ] {
            let sizes = PartSizes::for_bytes(expected);
            let found = parts(sizes, expected).unwrap();
            assert_eq!(sizes.part_bytes(0) as u64, part, "{expected}");
            assert!(found.0 <= EQUAL_PARTS && (0..EQUAL_PARTS).all(|number| sizes.part_bytes(number) as u64 == part));
        }
    }

    #[test]
    fn an_object_of_unknown_size_may_have_a_tebibyte() {
        let sizes = PartSizes::for_bytes(0);
        let bytes = |parts: usize| (0..parts).map(|number| sizes.part_bytes(number) as u64).sum::<u64>();
        assert_eq!((sizes.part_bytes(EQUAL_PARTS - 1), sizes.part_bytes(EQUAL_PARTS)), (PART, 2 * PART));
        assert_eq!((bytes(EQUAL_PARTS) / GIB, bytes(MOST_PARTS) / GIB), (140, 1136));
        // No part is larger than a 60th of what was sent before it.
        assert!((EQUAL_PARTS..MOST_PARTS).all(|number| sizes.part_bytes(number) as u64 * 60 <= bytes(number)));
    }

    proptest! {
        /// Also where the object is half as large again as expected.
        #[test]
        fn no_object_that_a_store_takes_breaks_its_limits(expected in 0..OBJECT, factor in 0.0_f64..1.5) {
            let sizes = PartSizes::for_bytes(expected);
            let bytes = (expected as f64 * factor) as u64;
            let (count, largest) = parts(sizes, bytes.min(OBJECT)).expect("it fits");
            prop_assert!(count <= MOST_PARTS && largest <= LARGEST);
            prop_assert!((0..MOST_PARTS).all(|number| sizes.part_bytes(number) as u64 >= SMALLEST));
        }
    }
}
