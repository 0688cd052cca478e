//! Placement: a pinned hash maps a key to a bucket, and the coordinator's bucket map maps a bucket to a server.
//!
//! The hash is xxh3 (64 bits) of the 12 bytes of table and id, written out for this one length. The general function chooses by
//! length and reads its secret at each call. Here both are constants, and the hash is two multiplications. The algorithm is that of
//! the xxHash specification for 9 to 16 bytes:
//!
//! ```text
//!  byte    0         4         8        12
//!          │  table  │         id        │
//!          └────── first ──────┘                two words of 8 bytes
//!                    └────── last ───────┘      that share four bytes
//! ```

use serde::{Deserialize, Serialize};

use crate::packed::expect_length;
use crate::{Generation, PackError, RowKey, ServerIndex};

/// More servers than any run has.
const MOST_SERVERS: usize = 1 << 16;

/// The bucket of a row, `0 .. buckets`.
///
/// The hash is xxh3 over table and id. It spreads the rows of every table over all buckets, so sequential ids are not
/// on one server.
#[inline]
pub fn bucket_of(key: RowKey, buckets: u32) -> u32 {
    let hash = bucket_hash(key.table.0, key.id);
    // Multiply-shift instead of modulo: equally uniform, and no division on the hot path.
    ((u128::from(hash) * u128::from(buckets)) >> 64) as u32
}

/// The owner of each bucket, at one generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketMap {
    generation: Generation,
    owners: Vec<ServerIndex>,
}

impl BucketMap {
    /// A map with contiguous ranges of nearly equal size for `servers` servers.
    pub fn split_evenly(generation: Generation, buckets: u32, servers: u32) -> Self {
        assert!(servers > 0 && buckets > 0, "a bucket map needs servers and buckets");
        let owner = |bucket| (u64::from(bucket) * u64::from(servers) / u64::from(buckets)) as u32;
        Self { generation, owners: (0..buckets).map(|bucket| ServerIndex(owner(bucket))).collect() }
    }

    /// The same owners at another generation.
    pub fn at_generation(&self, generation: Generation) -> Self {
        Self { generation, owners: self.owners.clone() }
    }

    /// The map of the next generation, in which `owner` has these buckets. Numbers past the last bucket are ignored.
    pub fn with_moved(&self, buckets: &[u32], owner: ServerIndex) -> Self {
        let mut next = self.at_generation(self.generation.next());
        for bucket in buckets {
            if let Some(entry) = next.owners.get_mut(*bucket as usize) {
                *entry = owner;
            }
        }
        next
    }

    /// Number of servers up to the last one that owns a bucket.
    pub fn server_count(&self) -> u32 {
        self.owners.iter().max().map_or(0, |last| last.0 + 1)
    }

    pub fn generation(&self) -> Generation {
        self.generation
    }

    pub fn bucket_count(&self) -> u32 {
        self.owners.len() as u32
    }

    /// Owner of a bucket. `None` past the last bucket.
    pub fn bucket_owner(&self, bucket: u32) -> Option<ServerIndex> {
        self.owners.get(bucket as usize).copied()
    }

    #[inline]
    pub fn row_owner(&self, key: RowKey) -> ServerIndex {
        self.owners[bucket_of(key, self.bucket_count()) as usize]
    }

    /// The owners in the form of the wire: one little-endian u32 each.
    pub fn pack_owners(&self) -> Vec<u8> {
        self.owners.iter().flat_map(|owner| owner.0.to_le_bytes()).collect()
    }

    /// Reads what [`Self::pack_owners`] wrote.
    pub fn unpack_owners(generation: Generation, owners: &[u8]) -> Result<Self, PackError> {
        expect_length("bucket owners", Some(owners.len().next_multiple_of(4).max(4)), owners.len())?;
        let words = owners.as_chunks::<4>().0;
        let owners: Vec<_> = words.iter().map(|word| ServerIndex(u32::from_le_bytes(*word))).collect();
        // Its readers keep an entry for each server up to the last one.
        match owners.iter().find(|owner| owner.0 as usize >= MOST_SERVERS) {
            Some(ServerIndex(found)) => {
                Err(PackError::Range { what: "bucket owner", found: *found, below: MOST_SERVERS })
            }
            None => Ok(Self { generation, owners }),
        }
    }
}

/// Pinned: it decides where a row lives and in which checkpoint file (invariant PL-1). Changing it changes
/// [`crate::PROTOCOL_VERSION`].
const SEED: u64 = 0x5a61_6772_6f73_0001;
/// Bytes 24 to 55 of xxh3's default secret, as little-endian words.
const SECRET: [u64; 4] = [0x1f67_b3b7_a4a4_4072, 0x78e5_c0cc_4ee6_79cb, 0x2172_ffcc_7dd0_5a82, 0x8e24_43f7_7446_08b8];
const OF_FIRST: u64 = (SECRET[0] ^ SECRET[1]).wrapping_add(SEED);
const OF_LAST: u64 = (SECRET[2] ^ SECRET[3]).wrapping_sub(SEED);
const BYTES: u64 = 12;
const FINAL_FACTOR: u64 = 0x1656_6791_9e37_79f9;

/// xxh3 of `table` and `id`, both little-endian, under the pinned seed.
#[inline]
fn bucket_hash(table: u32, id: u64) -> u64 {
    let first = (u64::from(table) | id << 32) ^ OF_FIRST;
    let last = id ^ OF_LAST;
    let product = u128::from(first) * u128::from(last);
    let folded = product as u64 ^ (product >> 64) as u64;
    let sum = BYTES.wrapping_add(first.swap_bytes()).wrapping_add(last).wrapping_add(folded);
    let mixed = (sum ^ (sum >> 37)).wrapping_mul(FINAL_FACTOR);
    mixed ^ (mixed >> 32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use xxhash_rust::xxh3::xxh3_64_with_seed;

    use super::*;
    use crate::TableId;

    fn key(table: u32, id: u64) -> RowKey {
        RowKey { table: TableId(table), id }
    }

    /// PL-1. Every later release reads the checkpoints of this one, so these values never change. They were computed
    /// independently with python-xxhash.
    #[test]
    fn buckets_are_pinned() {
        let found: Vec<u32> = (0..4).map(|id| bucket_of(key(0, id), 1024)).collect();
        assert_eq!(found, PINNED[0]);
        let found: Vec<u32> = (0..4).map(|id| bucket_of(key(7, id << 40), 1024)).collect();
        assert_eq!(found, PINNED[1]);
    }
    const PINNED: [[u32; 4]; 2] = [[715, 34, 29, 138], [468, 586, 23, 281]];

    #[test]
    fn owners_that_are_empty_or_incomplete_are_refused() {
        for (bytes, whole) in [(0, 4), (7, 8)] {
            let refused = BucketMap::unpack_owners(Generation(1), &vec![0; bytes]).unwrap_err().to_string();
            assert_eq!(refused, format!("bucket owners: expected {whole} bytes, found {bytes}"));
        }
    }

    #[test]
    fn sequential_ids_spread_over_servers() {
        let map = BucketMap::split_evenly(Generation(1), 1024, 3);
        let mut counts = [0_u32; 3];
        for id in 0..30_000 {
            counts[map.row_owner(key(1, id)).0 as usize] += 1;
        }
        assert!(counts.iter().all(|count| (9_000..11_000).contains(count)), "{counts:?}");
    }

    #[test]
    fn buckets_that_move_have_their_new_owner_at_the_next_generation() {
        let map = BucketMap::split_evenly(Generation(4), 4, 2);
        let moved = map.with_moved(&[1, 3, 9], ServerIndex(2));
        let owners: Vec<u32> = (0..4).filter_map(|bucket| moved.bucket_owner(bucket)).map(|owner| owner.0).collect();
        assert_eq!((moved.generation(), owners, moved.server_count()), (Generation(5), vec![0, 2, 1, 2], 3));
        assert_eq!(map.server_count(), 2);
    }

    proptest! {
        #[test]
        fn even_map_gives_every_server_a_near_equal_share(buckets in 1_u32..5_000, servers in 1_u32..64) {
            prop_assume!(servers <= buckets);
            let map = BucketMap::split_evenly(Generation(1), buckets, servers);
            let mut counts = vec![0_u32; servers as usize];
            for bucket in 0..buckets {
                counts[map.bucket_owner(bucket).unwrap().0 as usize] += 1;
            }
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            prop_assert!(most - least <= 1, "{counts:?}");
        }

        #[test]
        fn owners_survive_the_wire(buckets in 1_u32..3_000, servers in 1_u32..9) {
            let map = BucketMap::split_evenly(Generation(4), buckets, servers);
            prop_assert_eq!(BucketMap::unpack_owners(Generation(4), &map.pack_owners()), Ok(map));
        }

        #[test]
        fn a_bucket_is_always_in_range(table: u32, id: u64, buckets in 1_u32..u32::MAX) {
            prop_assert!(bucket_of(key(table, id), buckets) < buckets);
        }

        /// Invariant PL-1: another implementation of xxh3 finds the same.
        #[test]
        fn it_is_xxh3_of_table_and_id(table: u32, id: u64) {
            let bytes = [&table.to_le_bytes()[..], &id.to_le_bytes()].concat();
            prop_assert_eq!(bucket_hash(table, id), xxh3_64_with_seed(&bytes, SEED));
        }
    }
}
