//! Pairs the items of two sequences that must be equally long.
//!
//! `Iterator::zip` ends with the shorter sequence. That hides a missing item: each later item is paired with its neighbour's
//! partner. [`ZipEq::zip_eq`] compares both lengths once, before the first pair, and then is `zip` itself, so that a loop over
//! it compiles to the same instructions as before. `itertools::zip_eq` also takes sequences of unknown length. It therefore
//! compares at each pair.

use std::iter::Zip;
use std::ops::RangeFrom;

/// `zip` for sequences that know their length.
pub trait ZipEq: ExactSizeIterator + Sized {
    /// Pairs each item with the item at the same position of `other`.
    ///
    /// # Panics
    /// When the lengths differ: the caller has mixed up two sequences, and no pair of them is right.
    #[inline(always)]
    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "both lengths were compared")]
    fn zip_eq<B>(self, other: B) -> Zip<Self, B::IntoIter>
    where
        B: IntoIterator<IntoIter: ExactSizeIterator>,
    {
        let other = other.into_iter();
        let (left, right) = (self.len(), other.len());
        if left != right {
            unequal(left, right);
        }
        self.zip(other)
    }
}

impl<I: ExactSizeIterator> ZipEq for I {}

/// Outside the caller's loop, so that the loop holds no text of the message.
#[cold]
#[inline(never)]
#[track_caller]
fn unequal(left: usize, right: usize) -> ! {
    panic!("{left} items cannot be paired with {right}")
}

/// Pairs each item with its number: the first with `first`, the next with one more.
///
/// It is `Iterator::enumerate` for numbers of any integer type, such as the ranks of a process group.
#[inline(always)]
#[expect(clippy::disallowed_methods, reason = "numbers are as many as there are items")]
pub fn number_from<N, I>(first: N, items: I) -> Zip<RangeFrom<N>, I::IntoIter>
where
    RangeFrom<N>: Iterator<Item = N>,
    I: IntoIterator,
{
    (first..).zip(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_lengths_are_paired_in_order() {
        let pairs: Vec<_> = [1, 2, 3].iter().zip_eq(["a", "b", "c"]).collect();
        assert_eq!(pairs, [(&1, "a"), (&2, "b"), (&3, "c")]);
        assert_eq!([0_u8; 0].iter().zip_eq([0_u8; 0]).len(), 0);
    }

    #[test]
    fn items_are_numbered_in_the_type_that_is_asked_for() {
        let numbered: Vec<(u8, char)> = number_from(7, "ab".chars()).collect();
        assert_eq!(numbered, [(7, 'a'), (8, 'b')]);
    }

    #[test]
    fn a_missing_item_on_either_side_is_no_shift() {
        for (left, right) in [(3, 2), (2, 3), (0, 1)] {
            let paired = std::panic::catch_unwind(|| (0..left).zip_eq(0..right).count());
            let message = *paired.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(message, format!("{left} items cannot be paired with {right}"));
        }
    }
}
