//! The key of an id: the one hash that a table computes of each id of a request.
//!
//! An id is hashed once. Each use takes different bits of the same key:
//!
//! ```text
//!  bit 63                    32 31         24 23                16 15             0
//!      ├──────────────────────┼─────────────┼────────────────────┼───────────────┤
//!      │ home bucket of index │ fingerprint │ rest of the entry  │ stripe number │
//!      └──────────────────────┴─────────────┴────────────────────┴───────────────┘
//!  search for repeated ids: the upper half and bits 16 to 31
//!  admission sketch: hashes the key again, because its cells must not follow the stripe
//! ```
//!
//! The key is a one-to-one function of the id. A table therefore stores only keys and computes an id from its key when
//! needed.
//!
//! The bucket of an id, which decides the server of its row, comes from another hash: xxh3 of (table, id). That hash
//! does not fit here. All ids of one server have buckets in that server's ranges, and an id cannot be computed from its
//! bucket.

use std::ops::RangeInclusive;

/// The key of an id: the finaliser of MurmurHash3.
///
/// Every bit of the id affects every bit of the key, at the cost of two multiplications. The function is pinned,
/// because saved sketches, keys of the cold tier and the rounding of narrow weights depend on it.
#[inline(always)]
pub(crate) fn key_of(id: u64) -> u64 {
    let mut key = (id ^ (id >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    key = (key ^ (key >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ (key >> 33)
}

/// The id of a key: the inverse of [`key_of`], with the inverses of both factors modulo 2⁶⁴.
#[inline]
pub(crate) fn id_of(key: u64) -> u64 {
    let mut id = (key ^ (key >> 33)).wrapping_mul(0x9cb4_b2f8_1293_37db);
    id = (id ^ (id >> 33)).wrapping_mul(0x4f74_430c_22a5_4005);
    id ^ (id >> 33)
}

/// The stripe of a key. `stripes` is a power of two.
///
/// The stripe comes from the lowest bits, because the index takes the home bucket from the upper half. If both used the
/// upper bits, all keys of a stripe would lie in one part of its index.
#[inline(always)]
pub(crate) fn stripe_of(key: u64, stripes: usize) -> usize {
    key as usize & (stripes - 1)
}

/// The stripe of an id in a table with this many stripes, a power of two. A request whose ids come in the order of their
/// stripes is served sooner.
pub fn stripe_of_id(id: u64, stripes: usize) -> usize {
    stripe_of(key_of(id), stripes)
}

/// The key of a row in the cold tier: the bits of its key in reverse order. The function is its own inverse.
///
/// The bits that choose the stripe come first. The rows of a stripe are therefore one contiguous range in the cold
/// tier.
#[inline]
pub(crate) fn cold_key_of(key: u64) -> u64 {
    key.reverse_bits()
}

/// The range of cold keys of one stripe.
///
/// Example: with 4 stripes the two lowest bits of a key are its stripe. Stripe 1 (binary 01) has the cold keys that
/// begin with the bits 10.
pub(crate) fn cold_keys_of_stripe(stripe: usize, stripes: usize) -> RangeInclusive<u64> {
    let start = cold_key_of(stripe as u64);
    start..=start | u64::MAX.checked_shr(stripes.trailing_zeros()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_key_stands_for_its_id(id: u64) {
            prop_assert_eq!(id_of(key_of(id)), id);
        }

        #[test]
        fn a_stripe_is_one_range_of_cold_keys(key: u64, bits in 0_u32..17) {
            let stripes = 1 << bits;
            for stripe in [stripe_of(key, stripes), stripe_of(!key, stripes)] {
                let is_inside = cold_keys_of_stripe(stripe, stripes).contains(&cold_key_of(key));
                prop_assert_eq!(is_inside, stripe == stripe_of(key, stripes));
            }
        }
    }

    #[test]
    fn keys_are_pinned() {
        assert_eq!([0, 1, 2].map(key_of), [0, 0xB456_BCFC_34C2_CB2C, 0x3ABF_2A20_6506_83E7]);
    }
}
