//! Slices as bytes, to be sent from one worker to another. All numbers are u64, little-endian.
//!
//! `[columns]`, and for each `[values]`, the values as `[length][text][scores]`, and the scores of all others. Scores are
//! `[samples][positives][loss][predicted][bins]`, then `[bin][negatives][positives]` each; loss and predicted are f64.

use std::collections::{BTreeMap, HashMap};

use crate::slices::ColumnScores;
use crate::{BinnedScores, ClickSums, SlicedScores};

impl SlicedScores {
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_word(&mut bytes, self.columns.len() as u64);
        for column in &self.columns {
            put_word(&mut bytes, column.values.len() as u64);
            for (value, scores) in &column.values {
                put_word(&mut bytes, value.len() as u64);
                bytes.extend_from_slice(value);
                put_scores(&mut bytes, scores);
            }
            put_scores(&mut bytes, &column.other);
        }
        bytes
    }

    /// The reverse of [`Self::to_bytes`]; `None` for other bytes.
    #[must_use]
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let from = &mut bytes;
        let mut columns = Vec::new();
        for _ in 0..read_word(from)? {
            let mut values = HashMap::new();
            for _ in 0..read_word(from)? {
                let length = usize::try_from(read_word(from)?).ok()?;
                let (value, rest) = from.split_at_checked(length)?;
                *from = rest;
                values.insert(value.to_vec(), read_scores(from)?);
            }
            columns.push(ColumnScores::new(values, read_scores(from)?));
        }
        let mut sliced = Self::new(0);
        sliced.columns = columns;
        bytes.is_empty().then_some(sliced)
    }
}

pub(crate) fn put_word(bytes: &mut Vec<u8>, word: u64) {
    bytes.extend_from_slice(&word.to_le_bytes());
}

pub(crate) fn put_scores(bytes: &mut Vec<u8>, scores: &BinnedScores) {
    let ClickSums { samples, positives, loss, predicted } = scores.sums;
    for word in [samples, positives, loss.to_bits(), predicted.to_bits(), scores.bins.len() as u64] {
        put_word(bytes, word);
    }
    for (bin, [negatives, positives]) in &scores.bins {
        [u64::from(*bin), *negatives, *positives].into_iter().for_each(|word| put_word(bytes, word));
    }
}

pub(crate) fn read_word(from: &mut &[u8]) -> Option<u64> {
    let (word, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(u64::from_le_bytes(*word))
}

pub(crate) fn read_scores(from: &mut &[u8]) -> Option<BinnedScores> {
    let (samples, positives) = (read_word(from)?, read_word(from)?);
    let (loss, predicted) = (f64::from_bits(read_word(from)?), f64::from_bits(read_word(from)?));
    let mut bins = BTreeMap::new();
    let (mut of_negatives, mut of_positives) = (0_u64, 0_u64);
    for _ in 0..read_word(from)? {
        let (bin, counts) = (u32::try_from(read_word(from)?).ok()?, [read_word(from)?, read_word(from)?]);
        (of_negatives, of_positives) = (of_negatives.checked_add(counts[0])?, of_positives.checked_add(counts[1])?);
        bins.insert(bin, counts);
    }
    let is_whole = of_positives == positives && of_negatives.checked_add(of_positives)? == samples;
    is_whole.then_some(BinnedScores { sums: ClickSums { samples, positives, loss, predicted }, bins })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn slices_from_bytes_are_the_same(
            samples in prop::collection::vec((0_u64..9, any::<bool>(), -9_f32..9.0), 0..40), removed in 1_usize..200,
        ) {
            let mut sliced = SlicedScores::new(2);
            for (value, label, logit) in samples {
                sliced.push(0, value.to_string().as_bytes(), f32::from(u8::from(label)), logit);
                sliced.push(1, b"", f32::from(u8::from(label)), logit);
            }
            let bytes = sliced.to_bytes();
            prop_assert_eq!(SlicedScores::from_bytes(&bytes), Some(sliced));
            prop_assert!(SlicedScores::from_bytes(&bytes[..bytes.len() - removed.min(bytes.len())]).is_none());
            prop_assert!(SlicedScores::from_bytes(&[&bytes[..], &[0]].concat()).is_none());
        }

        #[test]
        fn other_bytes_are_refused_or_harmless(bytes: Vec<u8>) {
            let _ = SlicedScores::from_bytes(&bytes);
        }
    }
}
