//! Bags: rows of which only the sum is needed. One sum crosses the wire instead of many rows (ADR 16).

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;

use super::numbers::{words_as_bytes, words_of};
use super::{PackError, Segments, expect_length};

/// Words in the header of one segment's bags.
const HEAD: usize = 4;

/// The answer for one segment: its first `direct` rows, then the sum of each bag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentBags<'a> {
    pub segment: u32,
    /// How many of the first rows are returned as rows.
    pub direct: u32,
    pub lengths: &'a [u32],
    /// The members of all bags in order, as positions of rows in the segment. A row may be in several bags, and several
    /// times in one bag.
    pub members: &'a [u32],
}

impl<'a> SegmentBags<'a> {
    /// Rows of the answer: the rows returned as rows, and one per bag.
    pub fn wanted_rows(&self) -> usize {
        self.direct as usize + self.lengths.len()
    }

    /// The members of each bag. `lengths` divide `members`, which was checked when the bags were read.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u32]> + use<'a> {
        let (lengths, mut rest) = (self.lengths, self.members);
        lengths.iter().map(move |length| {
            let (bag, after) = rest.split_at(*length as usize);
            rest = after;
            bag
        })
    }
}

/// The bags in the form of the wire. `bags` are in ascending order of their segments. No bags give no bytes.
pub fn pack_bags(bags: &[SegmentBags<'_>]) -> Bytes {
    if bags.is_empty() {
        return Bytes::new();
    }
    let payload: usize = bags.iter().map(|of| of.lengths.len() + of.members.len()).sum();
    let mut words = Vec::with_capacity(1 + HEAD * bags.len() + payload);
    words.push(bags.len() as u32);
    for of in bags {
        words.extend([of.segment, of.direct, of.lengths.len() as u32, of.members.len() as u32]);
    }
    bags.iter().for_each(|of| words.extend_from_slice(of.lengths));
    bags.iter().for_each(|of| words.extend_from_slice(of.members));
    words_as_bytes(words)
}

/// The checked bags of one message. Every length and position is in range.
#[derive(Clone, Debug, Default)]
pub struct RequestBags<'a> {
    words: Cow<'a, [u32]>,
    /// The range of each segment with bags, in ascending order of segments.
    of: Vec<BagRange>,
}

/// The position of one segment's bags in the payload.
#[derive(Clone, Debug)]
struct BagRange {
    segment: u32,
    direct: u32,
    lengths: Range<usize>,
    members: Range<usize>,
}

impl<'a> RequestBags<'a> {
    /// Reads what [`pack_bags`] wrote, and checks it against the segments of its message.
    /// After an error the message must not be used (invariant DP-2).
    pub fn unpack(bytes: &'a [u8], segments: &Segments) -> Result<Self, PackError> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        expect_length("bags", Some(bytes.len().next_multiple_of(4)), bytes.len())?;
        let words = words_of(bytes);
        let ranges = places(&words)?;
        let bags = Self { words, of: ranges };
        bags.check(segments)?;
        Ok(bags)
    }

    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// The bags of a segment. `None` if all its rows are returned as rows.
    pub fn segment_bags(&self, segment: usize) -> Option<SegmentBags<'_>> {
        let found = self.of.binary_search_by_key(&segment, |place| place.segment as usize).ok()?;
        Some(self.bags_at(&self.of[found]))
    }

    pub fn bag_count(&self) -> usize {
        self.of.iter().map(|place| place.lengths.len()).sum()
    }

    /// The number of values in the answer: Σ (rows of the answer × dim).
    pub fn wanted_values(&self, segments: &Segments) -> Result<usize, PackError> {
        let wanted =
            |index: usize, rows: u32| self.segment_bags(index).map_or(rows as usize, |bags| bags.wanted_rows());
        let values = segments.iter().enumerate().try_fold(0_usize, |sum, (index, segment)| {
            sum.checked_add(wanted(index, segment.rows).checked_mul(segment.dim as usize)?)
        });
        values.ok_or(PackError::TooLarge("value count"))
    }

    fn bags_at(&self, place: &BagRange) -> SegmentBags<'_> {
        SegmentBags {
            segment: place.segment,
            direct: place.direct,
            lengths: &self.words[place.lengths.clone()],
            members: &self.words[place.members.clone()],
        }
    }

    fn check(&self, segments: &Segments) -> Result<(), PackError> {
        let rows: Vec<u32> = segments.iter().map(|segment| segment.rows).collect();
        let mut previous = None;
        for of in self.of.iter().map(|place| self.bags_at(place)) {
            let (what, found) = ("segment of bags", of.segment);
            if let Some(after) = previous.replace(found).filter(|previous| *previous >= found) {
                return Err(PackError::Order { what, found, after });
            }
            let rows = rows.get(found as usize).ok_or(PackError::Range { what, found, below: rows.len() })?;
            check_segment(&of, *rows)?;
        }
        Ok(())
    }
}

/// Divides the payload as its headers say.
fn places(words: &[u32]) -> Result<Vec<BagRange>, PackError> {
    let segments = words[0] as usize;
    let start = 1 + HEAD * segments;
    let bytes = size_of_val(words);
    if words.len() < start {
        return Err(PackError::Length { what: "bags", expected: 4 * start, found: bytes });
    }
    let heads = words[1..start].as_chunks::<HEAD>().0;
    let bags: usize = heads.iter().map(|head| head[2] as usize).sum();
    let members: usize = heads.iter().map(|head| head[3] as usize).sum();
    expect_length("bags", (start + bags + members).checked_mul(4), bytes)?;
    let (mut length, mut member) = (start, start + bags);
    let place = |head: &[u32; HEAD]| {
        let lengths = length..length + head[2] as usize;
        let members = member..member + head[3] as usize;
        (length, member) = (lengths.end, members.end);
        BagRange { segment: head[0], direct: head[1], lengths, members }
    };
    Ok(heads.iter().map(place).collect())
}

fn check_segment(of: &SegmentBags<'_>, rows: u32) -> Result<(), PackError> {
    if of.direct > rows {
        return Err(PackError::Range { what: "direct rows", found: of.direct, below: rows as usize + 1 });
    }
    let members: usize = of.lengths.iter().map(|length| *length as usize).sum();
    expect_length("members of bags", members.checked_mul(4), size_of_val(of.members))?;
    match of.members.iter().max() {
        Some(most) if *most >= rows => {
            Err(PackError::Range { what: "member of a bag", found: *most, below: rows as usize })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Segment, TableId};

    /// The number of rows, how many are returned as rows, and the bags.
    type Case = (u32, u32, Vec<Vec<u32>>);

    fn case() -> impl Strategy<Value = Case> {
        (1_u32..9).prop_flat_map(|rows| {
            let bags = prop::collection::vec(prop::collection::vec(0..rows, 0..6), 0..5);
            (Just(rows), 0..=rows, bags)
        })
    }

    fn segments(cases: &[Case]) -> Segments {
        let segment = |(at, case): (usize, &Case)| {
            let table = at as u32;
            Segment { table: TableId(table), rows: case.0, dim: table + 1 }
        };
        Segments::new(cases.iter().enumerate().map(segment).collect())
    }

    /// Every second segment has bags.
    fn pack(cases: &[Case]) -> Bytes {
        let lengths = |case: &Case| case.2.iter().map(|bag| bag.len() as u32).collect::<Vec<_>>();
        let flat: Vec<_> = cases.iter().map(|case| (lengths(case), case.2.concat())).collect();
        let segment = |index: usize| {
            let (lengths, members) = (&flat[index].0[..], &flat[index].1[..]);
            SegmentBags { segment: index as u32, direct: cases[index].1, lengths, members }
        };
        pack_bags(&(0..cases.len()).step_by(2).map(segment).collect::<Vec<_>>())
    }

    proptest! {
        #[test]
        fn bags_survive_the_wire_wherever_the_bytes_lie(cases in prop::collection::vec(case(), 1..6)) {
            let (segments, packed) = (segments(&cases), pack(&cases));
            let shifted = [&[0], &packed[..]].concat();
            for bytes in [&packed[..], &shifted[1..]] {
                let bags = RequestBags::unpack(bytes, &segments).unwrap();
                let mut wanted = 0;
                for (index, (rows, direct, list)) in cases.iter().enumerate() {
                    let segment = bags.segment_bags(index);
                    prop_assert_eq!(segment.is_some(), index % 2 == 0);
                    if let Some(segment) = segment {
                        prop_assert_eq!(segment.direct, *direct);
                        prop_assert_eq!(segment.iter().map(<[u32]>::to_vec).collect::<Vec<_>>(), list.clone());
                    }
                    wanted += segment.map_or(*rows as usize, |_| *direct as usize + list.len()) * (index + 1);
                }
                prop_assert_eq!(bags.wanted_values(&segments), Ok(wanted));
            }
        }

        #[test]
        fn any_words_are_refused_or_in_range(words in prop::collection::vec(0_u32..6, 0..30), cut in 0_usize..4) {
            let segments = segments(&[(3, 0, vec![]), (2, 0, vec![])]);
            let bytes = words_as_bytes(words);
            if let Ok(bags) = RequestBags::unpack(&bytes[..bytes.len().saturating_sub(cut)], &segments) {
                for (index, segment) in segments.iter().enumerate() {
                    let Some(of) = bags.segment_bags(index) else { continue };
                    prop_assert!(of.direct <= segment.rows);
                    prop_assert!(of.iter().flatten().all(|member| *member < segment.rows));
                }
            }
        }
    }

    fn refused(words: &[u32]) -> String {
        let segments = segments(&[(3, 0, vec![]), (2, 0, vec![])]);
        RequestBags::unpack(&words_as_bytes(words.to_vec()), &segments).unwrap_err().to_string()
    }

    /// Invariant DP-2.
    #[test]
    fn wrong_sizes_are_named_in_the_error() {
        assert_eq!(refused(&[2, 0, 0]), "bags: expected 36 bytes, found 12");
        assert_eq!(refused(&[1, 0, 0, 1, 2, 2, 0]), "bags: expected 32 bytes, found 28");
        assert_eq!(refused(&[1, 0, 0, 1, 2, 1, 0, 1]), "members of bags: expected 4 bytes, found 8");
        assert_eq!(refused(&[1, 0, 0, 1, 1, 1, 3]), "member of a bag 3 is out of range, expected less than 3");
        assert_eq!(refused(&[1, 0, 4, 0, 0]), "direct rows 4 is out of range, expected less than 4");
        assert_eq!(refused(&[1, 2, 0, 0, 0]), "segment of bags 2 is out of range, expected less than 2");
        let descending = refused(&[2, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(descending, "segment of bags 0 comes after 1, but the order must be ascending");
        let huge = [1, 0, 0, u32::MAX, u32::MAX];
        assert!(refused(&huge).starts_with("bags: expected 34359738"), "{}", refused(&huge));
    }

    #[test]
    fn no_bags_are_no_bytes() {
        assert!(pack_bags(&[]).is_empty());
        let bags = RequestBags::unpack(&[], &segments(&[(3, 0, vec![])])).unwrap();
        assert!(bags.is_empty() && bags.segment_bags(0).is_none());
        assert_eq!(bags.wanted_values(&segments(&[(3, 0, vec![])])), Ok(3));
    }
}
