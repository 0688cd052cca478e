//! A set of ids in two bytes for each: it may seem to hold an id that it does not hold, never the other way round.

use zagros_embedding_client::UniqueIds;
use zagros_protocol::TableId;

/// Bits for each id. Two of them are set, so of ids that are not in the set one in fifty seems to be.
const BITS: usize = 16;

/// Ids of a batch, as a Bloom filter whose two bits of an id are in one word (Putze, Sanders and Singler 2007).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IdFilter {
    words: Vec<u64>,
}

impl IdFilter {
    /// All ids of a batch.
    pub(crate) fn of(unique: &UniqueIds) -> Self {
        let words = (unique.rows() * BITS).div_ceil(u64::BITS as usize);
        let mut filter = Self { words: vec![0; words] };
        for table in &unique.tables {
            for id in &table.ids {
                let (word, bits) = filter.place(table.table, *id);
                filter.words[word] |= bits;
            }
        }
        filter
    }

    /// Whether the id may be in the set.
    pub(crate) fn may_hold(&self, table: TableId, id: u64) -> bool {
        if self.words.is_empty() {
            return false;
        }
        let (word, bits) = self.place(table, id);
        self.words[word] & bits == bits
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// `None` for bytes that are no filter's.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<8>();
        rest.is_empty().then(|| Self { words: words.iter().map(|word| u64::from_le_bytes(*word)).collect() })
    }

    fn place(&self, TableId(table): TableId, id: u64) -> (usize, u64) {
        let hash = mixed(id ^ mixed(u64::from(table)));
        // The upper half of the product is below the number of words.
        let word = ((u128::from(hash) * self.words.len() as u128) >> u64::BITS) as usize;
        (word, (1 << (hash & 63)) | (1 << ((hash >> 6) & 63)))
    }
}

/// Each bit depends on all bits of the number (the finaliser of SplitMix64: Steele, Lea and Flood 2014).
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use zagros_embedding_client::TableIds;

    use super::*;

    fn batch(ids: impl Iterator<Item = u64>) -> UniqueIds {
        UniqueIds { tables: vec![TableIds::rows(TableId(3), 4, ids.collect())] }
    }

    #[test]
    fn each_id_of_the_batch_is_held_and_few_others_seem_to_be() {
        for stride in [1, 8, 1 << 40] {
            let filter = IdFilter::of(&batch((0..10_000).map(|id| id * stride)));
            let held = |table, ids: std::ops::Range<u64>| {
                ids.filter(|id| filter.may_hold(TableId(table), id.wrapping_mul(stride))).count()
            };
            assert_eq!(held(3, 0..10_000), 10_000);
            // Words have 4 ids in the mean, and up to a dozen.
            for others in [held(3, 10_000..20_000), held(4, 0..10_000)] {
                assert!((100..300).contains(&others), "stride {stride}: {others} of 10,000");
            }
        }
    }

    #[test]
    fn bytes_hold_the_filter_and_no_batch_holds_nothing() {
        let filter = IdFilter::of(&batch(5..90));
        assert_eq!(IdFilter::from_bytes(&filter.to_bytes()), Some(filter.clone()));
        assert_eq!(IdFilter::from_bytes(&filter.to_bytes()[1..]), None);
        let none = IdFilter::of(&UniqueIds::default());
        assert_eq!(IdFilter::from_bytes(&[]), Some(none.clone()));
        assert!(!none.may_hold(TableId(0), 0));
    }
}
