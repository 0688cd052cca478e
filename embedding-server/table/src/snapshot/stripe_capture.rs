//! What a snapshot keeps of a stripe while the stripe changes: copy on first write.

use hashbrown::HashMap;

use crate::RowBatch;

/// The part of a snapshot that one stripe still owes. A slot is settled once the snapshot has its row, or has none to
/// expect of it: what is written there afterwards is of no concern.
#[derive(Debug, Default)]
pub(crate) struct StripeCapture {
    settled: Vec<u64>,
    /// Rows as they were at the instant, in no order.
    pub(crate) rows: RowBatch,
    /// Which of them was in a slot at the instant.
    kept: HashMap<u32, u32>,
    /// Whether the snapshot has begun to read it.
    pub(crate) is_read: bool,
}

impl StripeCapture {
    pub(crate) fn is_settled(&self, slot: u32) -> bool {
        self.settled.get(word_of(slot)).is_some_and(|word| word >> (slot % u64::BITS) & 1 == 1)
    }

    /// The row that was in a slot at the instant, if it was kept: its position among the rows.
    pub(crate) fn kept_in(&self, slot: u32) -> Option<usize> {
        self.kept.get(&slot).map(|position| *position as usize)
    }

    /// Ids and slots of all rows that were kept.
    pub(crate) fn all_kept(&self) -> impl Iterator<Item = (u64, u32)> {
        self.kept.iter().map(|(slot, position)| (self.rows.ids[*position as usize], *slot))
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        let RowBatch { ids, slots, access } = &self.rows;
        let words = (slots.capacity() + access.capacity()) * size_of::<u32>();
        words + (ids.capacity() + self.settled.capacity()) * size_of::<u64>() + self.kept.allocation_size()
    }

    /// A row that was made after the instant lies here.
    pub(crate) fn settle(&mut self, slot: u32) {
        let word = word_of(slot);
        if word >= self.settled.len() {
            self.settled.resize((word + 1).next_power_of_two(), 0);
        }
        self.settled[word] |= 1 << (slot % u64::BITS);
    }

    /// Keeps the row of a slot, unless it is settled.
    pub(crate) fn keep(&mut self, slot: u32, id: u64, words: &[u32], access: Option<u32>) {
        if self.is_settled(slot) {
            return;
        }
        self.settle(slot);
        self.kept.insert(slot, self.rows.ids.len() as u32);
        self.rows.ids.push(id);
        self.rows.slots.extend_from_slice(words);
        self.rows.access.extend(access);
    }
}

fn word_of(slot: u32) -> usize {
    (slot / u64::BITS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_kept_once_and_a_new_one_never() {
        let mut capture = StripeCapture::default();
        capture.settle(700);
        capture.keep(700, 1, &[1, 1], Some(1));
        capture.keep(64, 2, &[2, 3], Some(9));
        capture.keep(64, 2, &[4, 5], Some(10));
        capture.keep(0, 3, &[6, 7], Some(11));
        assert_eq!(capture.rows, RowBatch { ids: vec![2, 3], slots: vec![2, 3, 6, 7], access: vec![9, 11] });
        assert_eq!(
            [0, 1, 64, 700, 701, 9999].map(|slot| capture.is_settled(slot)),
            [true, false, true, true, false, false]
        );
    }
}
