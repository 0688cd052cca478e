//! A leaf of the index: up to some hundred keys and their addresses, packed.

use std::sync::Arc;

use zagros_table::prefetch;

/// A leaf grows by room for this many entries.
const ROOM: usize = 16;
/// How far from its expected place a key is looked for first.
const NEAR: usize = 8;
const ADDRESS: usize = size_of::<u32>();

/// Entries in the order of their keys, each `width` bytes of a key and an address. The keys are relative to the leaf's first.
#[derive(Clone, Debug)]
pub(super) struct IndexLeaf {
    /// The entries, then room for some more.
    entries: Arc<[u8]>,
    len: u32,
    width: u32,
}

/// The largest key that a leaf may have, relative to its first.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeafEnd(pub(super) u64);

impl Default for IndexLeaf {
    fn default() -> Self {
        Self { entries: Arc::default(), len: 0, width: 1 }
    }
}

impl IndexLeaf {
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.entries.len()
    }

    fn width(&self) -> usize {
        self.width as usize
    }

    fn size(&self) -> usize {
        self.width() + ADDRESS
    }

    #[inline]
    pub(super) fn key(&self, place: usize) -> u64 {
        let start = place * self.size();
        // One load instead of a call that copies a few bytes: a search reads some ten keys.
        let word = match self.entries.get(start..start + size_of::<u64>()) {
            Some(bytes) => u64::from_le_bytes(bytes.try_into().unwrap_or_default()),
            // The last entries of narrow keys end before a whole word does.
            None => self.entries[start..].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
        };
        word & (u64::MAX >> (u64::BITS as usize - 8 * self.width()))
    }

    pub(super) fn address(&self, place: usize) -> u32 {
        let mut bytes = [0; ADDRESS];
        bytes.copy_from_slice(&self.entries[place * self.size() + self.width()..][..ADDRESS]);
        u32::from_le_bytes(bytes)
    }

    /// Where a key is looked for first. There is at least one entry.
    #[inline]
    fn guess(&self, key: u64, LeafEnd(end): LeafEnd) -> usize {
        let share = key as f64 / (end as f64 + 1.0);
        ((share * self.len as f64) as usize).min(self.len() - 1)
    }

    pub(super) fn prefetch(&self, key: u64, end: LeafEnd) {
        if self.len > 0 {
            let start = self.guess(key, end).saturating_sub(NEAR) * self.size();
            prefetch(&self.entries[start..self.entries.len().min(start + 2 * NEAR * self.size())]);
        }
    }

    /// The entry of a key, or the place where it would be.
    ///
    /// Cold keys are evenly spread, so the search begins where the key would then be, and widens from there: one or two cache
    /// lines of a leaf instead of five. Other keys are found as well, in a few more steps.
    pub(super) fn find(&self, key: u64, end: LeafEnd) -> Result<usize, usize> {
        if self.len == 0 {
            return Err(0);
        }
        let guess = self.guess(key, end);
        let (mut low, mut high, mut step) = (0, self.len(), NEAR);
        if self.key(guess) < key {
            low = guess + 1;
            while low + step < high && self.key(low + step) < key {
                low += step + 1;
                step *= 2;
            }
            high = high.min(low + step + 1);
        } else {
            high = guess + 1;
            while high > low + step && self.key(high - 1 - step) >= key {
                high -= step;
                step *= 2;
            }
            low = low.max(high.saturating_sub(step + 1));
        }
        while low < high {
            let middle = low.midpoint(high);
            if self.key(middle) < key { low = middle + 1 } else { high = middle }
        }
        if low < self.len() && self.key(low) == key { Ok(low) } else { Err(low) }
    }

    pub(super) fn insert(&mut self, key: u64, address: u32, end: LeafEnd) -> Option<u32> {
        match self.find(key, end) {
            Ok(place) => {
                let old = self.address(place);
                let start = place * self.size() + self.width();
                Arc::make_mut(&mut self.entries)[start..][..ADDRESS].copy_from_slice(&address.to_le_bytes());
                Some(old)
            }
            Err(place) => {
                if width_of(key) > self.width() {
                    *self = self.part(0, self.len(), 0, width_of(key));
                }
                self.add(place, key, address);
                None
            }
        }
    }

    fn add(&mut self, place: usize, key: u64, address: u32) {
        let (size, width, end) = (self.size(), self.width(), self.len() * self.size());
        if self.entries.len() < end + size {
            self.entries = copied(&self.entries[..end], end + ROOM * size);
        }
        let (start, entries) = (place * size, Arc::make_mut(&mut self.entries));
        entries.copy_within(start..end, start + size);
        entries[start..][..width].copy_from_slice(&key.to_le_bytes()[..width]);
        entries[start + width..][..ADDRESS].copy_from_slice(&address.to_le_bytes());
        self.len += 1;
    }

    pub(super) fn remove(&mut self, key: u64, end: LeafEnd) -> Option<u32> {
        let place = self.find(key, end).ok()?;
        let (old, size, end) = (self.address(place), self.size(), self.len() * self.size());
        Arc::make_mut(&mut self.entries).copy_within((place + 1) * size..end, place * size);
        self.len -= 1;
        let used = end - size;
        if self.entries.len() > used * 5 / 4 + 2 * ROOM * size {
            self.entries = copied(&self.entries[..used], used + ROOM * size);
        }
        Some(old)
    }

    /// Takes the upper half out. Answers it with its first key.
    pub(super) fn split(&mut self) -> (u64, Self) {
        let (middle, last) = (self.len() / 2, self.len() - 1);
        let middle_key = self.key(middle);
        let upper = self.part(middle, self.len(), middle_key, width_of(self.key(last) - middle_key));
        *self = self.part(0, middle, 0, width_of(self.key(middle - 1)));
        (middle_key, upper)
    }

    /// Some entries with keys relative to `base`, in `width` bytes.
    fn part(&self, from: usize, to: usize, base: u64, width: usize) -> Self {
        let mut entries = Vec::with_capacity((to - from + ROOM) * (width + ADDRESS));
        for place in from..to {
            entries.extend_from_slice(&(self.key(place) - base).to_le_bytes()[..width]);
            entries.extend_from_slice(&self.address(place).to_le_bytes());
        }
        entries.resize(entries.capacity(), 0);
        Self { entries: entries.into(), len: (to - from) as u32, width: width as u32 }
    }
}

fn copied(entries: &[u8], bytes: usize) -> Arc<[u8]> {
    let mut copy = Vec::with_capacity(bytes);
    copy.extend_from_slice(entries);
    copy.resize(bytes, 0);
    copy.into()
}

/// Bytes of a key, at least one.
fn width_of(key: u64) -> usize {
    ((u64::BITS - key.leading_zeros()).div_ceil(8) as usize).max(1)
}
