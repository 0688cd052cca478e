//! The rows that a stripe is about to evict, and their copies for the cold tier.

use crate::key::cold_key_of;
use crate::machine::prefetch;
use crate::stripe::Stripe;

/// Candidates for eviction, and buffers for them. Threads reuse it.
#[derive(Debug, Default)]
pub(crate) struct EvictionBuffer {
    pub(crate) scanned: Vec<(u64, u32)>,
    /// Keys of rows that a request needs now, in ascending order. They are never evicted.
    pub(crate) needed: Vec<u64>,
    pub(crate) candidates: Vec<EvictionCandidate>,
    /// Cold keys of the copies, in ascending order.
    pub(crate) cold_keys: Vec<u64>,
    /// The copies, `[rows * (stride + 1)]`: each slot is followed by its access metadata.
    pub(crate) words: Vec<u32>,
}

/// A row that may be evicted. Rows of lower rank are evicted first. Of two rows of equal rank, the row with the lower
/// cold key is evicted first.
///
/// The order is by cold key, because the index is in the order of keys. By key, eviction would empty the index from one
/// end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EvictionCandidate {
    pub(crate) rank: u32,
    cold_key: u64,
    slot: u32,
}

impl EvictionCandidate {
    pub(crate) fn new(rank: u32, key: u64, slot: u32) -> Self {
        Self { rank, cold_key: cold_key_of(key), slot }
    }

    pub(crate) fn key(&self) -> u64 {
        cold_key_of(self.cold_key)
    }
}

impl EvictionBuffer {
    /// Copies the candidates with their access metadata, in ascending order of cold keys.
    pub(crate) fn copy(&mut self, stripe: &Stripe) {
        self.candidates.sort_unstable_by_key(|row| row.cold_key);
        self.candidates.iter().for_each(|row| prefetch(stripe.slot(row.slot)));
        self.cold_keys.clear();
        self.words.clear();
        for EvictionCandidate { cold_key, slot, .. } in &self.candidates {
            self.cold_keys.push(*cold_key);
            self.words.extend_from_slice(stripe.slot(*slot));
            self.words.push(stripe.access(*slot));
        }
    }

    /// Removes the rows that still equal their copies from memory. Returns their number.
    pub(crate) fn remove_unchanged(&self, stripe: &mut Stripe) -> u64 {
        self.candidates.iter().for_each(|row| stripe.prefetch_entry(row.key()));
        let width = self.words.len() / self.candidates.len().max(1);
        let mut removed = 0;
        for (row, EvictionCandidate { cold_key, slot, .. }) in self.candidates.iter().enumerate() {
            let key = cold_key_of(*cold_key);
            let (words, access) = self.words[row * width..][..width].split_at(width - 1);
            if stripe.find(key) == Some(*slot) && stripe.slot(*slot) == words && stripe.access(*slot) == access[0] {
                stripe.evict_row(key);
                removed += 1;
            }
        }
        stripe.counts.evicted += removed;
        removed
    }
}
