//! What an id becomes before its row is looked up. Performance-critical: no allocation.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::num::NonZeroU64;
use std::sync::Arc;

use zagros_job::{Categorical, IdRange};

use super::reading::missing_id;
use crate::hash_value;

/// The id that all categories have that a vocabulary does not know. The text of no line has a NUL byte.
pub(crate) fn rare_id() -> u64 {
    hash_value(b"\0rare")
}

/// The map of a feature's ids.
#[derive(Clone, Debug)]
pub(crate) struct IdMap {
    missing: u64,
    /// In place of a missing value.
    default: u64,
    range: IdMapping,
}

#[derive(Clone, Debug)]
enum IdMapping {
    All,
    Hashed(NonZeroU64),
    Known(Arc<HashSet<u64, BuildHasherDefault<AsItIs>>>, u64),
}

impl IdMap {
    /// The map of a feature. A vocabulary that is not measured yet is ignored, because the measurement itself reads this way.
    pub(crate) fn new(feature: &Categorical) -> Self {
        let range = match &feature.ids {
            IdRange::All => IdMapping::All,
            IdRange::Hashed(size) => IdMapping::Hashed(*size),
            IdRange::Vocabulary(vocabulary) => match &vocabulary.ids {
                None => IdMapping::All,
                Some(ids) => IdMapping::Known(Arc::new(ids.iter().copied().collect()), rare_id()),
            },
        };
        let default = feature.default.as_ref().map_or_else(missing_id, |text| hash_value(text.as_bytes()));
        Self { missing: missing_id(), default, range }
    }

    pub(crate) fn is_same(&self) -> bool {
        self.missing == self.default && matches!(self.range, IdMapping::All)
    }

    /// The id whose row is looked up.
    #[inline]
    pub(crate) fn apply(&self, id: u64) -> u64 {
        let id = if id == self.missing { self.default } else { id };
        match &self.range {
            IdMapping::All => id,
            IdMapping::Hashed(size) => id % size.get(),
            IdMapping::Known(known, rare) => {
                if known.contains(&id) {
                    id
                } else {
                    *rare
                }
            }
        }
    }
}

/// Takes ids for their hash, because they are hashes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = id;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zagros_job::Vocabulary;

    use super::*;

    fn feature(ids: IdRange, default: Option<&str>) -> Categorical {
        Categorical { ids, default: default.map(str::to_owned), ..Categorical::of_column("c", 0) }
    }

    fn vocabulary(ids: Option<Vec<u64>>) -> IdRange {
        IdRange::Vocabulary(Vocabulary { min_count: 1, max_size: 9, ids })
    }

    #[test]
    fn a_plain_feature_keeps_its_ids() {
        assert!(IdMap::new(&feature(IdRange::All, None)).is_same());
        assert!(IdMap::new(&feature(vocabulary(None), None)).is_same());
        assert!(!IdMap::new(&feature(IdRange::All, Some("x"))).is_same());
    }

    #[test]
    fn a_missing_value_has_the_default_and_then_its_place_in_the_vocabulary() {
        let known = vocabulary(Some(vec![hash_value(b"x"), hash_value(b"y")]));
        let map = IdMap::new(&feature(known.clone(), Some("x")));
        let found = [b"".as_slice(), b"y", b"z"].map(|text| map.apply(hash_value(text)));
        assert_eq!(found, [hash_value(b"x"), hash_value(b"y"), rare_id()]);
        assert_eq!(IdMap::new(&feature(known, None)).apply(hash_value(b"")), rare_id());
    }

    proptest! {
        #[test]
        fn hashed_ids_are_below_their_size(id: u64, size in 1_u64..1_000) {
            let map = IdMap::new(&feature(IdRange::Hashed(NonZeroU64::new(size).unwrap()), None));
            prop_assert_eq!(map.apply(id), id % size);
        }
    }
}
