//! Scores as bytes, to be sent from one worker to another.
//!
//! `[positives][negatives][grouped samples][halvings + 1, or 0 for no groups][capacity][bytes of slices]`, each a u64, then the
//! logits as f32, the grouped samples as (group u64, logit f32, class u32), and the slices; little-endian.
//!
//! Slices are `[columns]`, and for each `[values]`, the values as `[length][text][scores]`, and the scores of all others. Scores are
//! `[samples][positives][loss][predicted][bins]`, then `[bin][negatives][positives]` each; loss and predicted are f64, all else u64.

use std::collections::{BTreeMap, HashMap};

use crate::grouped::{GroupedSample, GroupedScores};
use crate::slices::ColumnScores;
use crate::{BinnedScores, ClickScores, ClickSums, SlicedScores};

const HEAD: usize = 6 * size_of::<u64>();
const LOGIT: usize = size_of::<f32>();
const SAMPLE: usize = 16;

impl ClickScores {
    /// For another process to merge. The bytes take as much memory as the scores.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let (samples, form): (&[GroupedSample], _) = match &self.grouped {
            Some(grouped) => (&grouped.samples, [u64::from(grouped.halvings) + 1, grouped.capacity as u64]),
            None => (&[], [0; 2]),
        };
        let mut bytes = Vec::with_capacity(HEAD + LOGIT * self.len() + SAMPLE * samples.len());
        let slices = self.sliced.as_ref().map_or_else(Vec::new, SlicedScores::to_bytes);
        let counts = [self.positives.len(), self.negatives.len(), samples.len()].map(|count| count as u64);
        let head = counts.iter().chain(&form).copied().chain([slices.len() as u64]);
        bytes.extend(head.flat_map(u64::to_le_bytes));
        bytes.extend(self.positives.iter().chain(&self.negatives).flat_map(|logit| logit.to_le_bytes()));
        for sample in samples {
            bytes.extend(sample.group.to_le_bytes());
            bytes.extend(sample.logit.to_le_bytes());
            bytes.extend(u32::from(sample.is_positive).to_le_bytes());
        }
        bytes.extend(slices);
        bytes
    }

    /// The reverse of [`Self::to_bytes`]; `None` for other bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        let mut head = &head[..];
        let mut count = || usize::try_from(read_word(&mut head)?).ok();
        let (positives, negatives, samples) = (count()?, count()?, count()?);
        let (halved, capacity, slices) = (count()?, count()?, count()?);
        let logits = positives.checked_add(negatives)?.checked_mul(LOGIT)?;
        let (logits, rest) = rest.split_at_checked(logits)?;
        let (rest, slices) = rest.split_at_checked(rest.len().checked_sub(slices)?)?;
        let (entries, odd) = rest.as_chunks::<SAMPLE>();
        if entries.len() != samples || !odd.is_empty() || (halved == 0 && samples > 0) {
            return None;
        }
        let mut scores = Self::new();
        if let Some(halvings) = halved.checked_sub(1) {
            let samples = entries.iter().map(sample).collect::<Option<Vec<_>>>()?;
            scores.grouped = Some(GroupedScores { capacity, halvings: u32::try_from(halvings).ok()?, samples });
        }
        if !slices.is_empty() {
            scores.sliced = Some(SlicedScores::from_bytes(slices)?);
        }
        let words = logits.as_chunks::<LOGIT>().0.iter().map(|word| f32::from_le_bytes(*word));
        scores.positives.extend(words.clone().take(positives));
        scores.negatives.extend(words.skip(positives));
        Some(scores)
    }
}

fn sample(bytes: &[u8; SAMPLE]) -> Option<GroupedSample> {
    let (group, rest) = bytes.split_first_chunk::<8>()?;
    let (logit, class) = rest.split_first_chunk::<4>()?;
    let is_positive = match u32::from_le_bytes(*class.first_chunk()?) {
        0 => false,
        1 => true,
        _ => return None,
    };
    Some(GroupedSample { group: u64::from_le_bytes(*group), logit: f32::from_le_bytes(*logit), is_positive })
}

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

    fn scores(samples: &[(u64, bool, f32)], grouped: bool) -> ClickScores {
        let mut scores = if grouped { ClickScores::by_group(20).by_slice(2) } else { ClickScores::new() };
        for (group, label, logit) in samples {
            let groups: &[u64] = if grouped { &[*group] } else { &[] };
            scores.extend_grouped(&[f32::from(*label)], &[*logit], groups).unwrap();
            if let Some(slices) = scores.sliced_scores_mut() {
                slices.push(0, group.to_string().as_bytes(), f32::from(*label), *logit);
                slices.push(1, b"", f32::from(*label), *logit);
            }
        }
        scores
    }

    proptest! {
        #[test]
        fn scores_from_bytes_have_the_same_measures(
            samples in prop::collection::vec((0_u64..9, any::<bool>(), -9_f32..9.0), 0..40),
            grouped: bool,
            removed in 1_usize..200,
        ) {
            let bytes = scores(&samples, grouped).to_bytes();
            let mut back = ClickScores::from_bytes(&bytes).unwrap();
            prop_assert_eq!(back.compute_measures(), scores(&samples, grouped).compute_measures());
            prop_assert_eq!(&back.sliced, &scores(&samples, grouped).sliced);
            prop_assert!(ClickScores::from_bytes(&bytes[..bytes.len() - removed.min(bytes.len())]).is_none());
            prop_assert!(ClickScores::from_bytes(&[&bytes[..], &[0]].concat()).is_none());
            if let Some(slices) = &back.sliced {
                let bytes = slices.to_bytes();
                prop_assert!(SlicedScores::from_bytes(&bytes[..bytes.len() - removed.min(bytes.len())]).is_none());
                prop_assert!(SlicedScores::from_bytes(&[&bytes[..], &[0]].concat()).is_none());
            }
        }

        #[test]
        fn other_bytes_are_refused_or_harmless(bytes: Vec<u8>) {
            let _ = ClickScores::from_bytes(&bytes);
        }

        #[test]
        fn other_bytes_of_slices_are_refused_or_harmless(bytes: Vec<u8>) {
            let _ = SlicedScores::from_bytes(&bytes);
        }
    }
}
