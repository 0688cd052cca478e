//! One independently locked part of a table: an index and the slab it points into.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as IndexEntry;

use crate::config::Layout;
use crate::group::hash_of;
use crate::slab::Slab;

/// Rows whose ids hash to this stripe.
#[derive(Debug)]
pub(crate) struct Stripe {
    index: HashTable<Entry>,
    slab: Slab,
}

/// Twelve bytes: the id lies beside the slot number, so that a probe confirms its hit without touching the slab.
/// Two halves instead of a u64, whose alignment would make it sixteen.
#[derive(Clone, Copy, Debug)]
struct Entry {
    id: [u32; 2],
    slot: u32,
}

impl Entry {
    #[inline]
    fn new(id: u64, slot: usize) -> Self {
        Self { id: [id as u32, (id >> 32) as u32], slot: slot as u32 }
    }

    #[inline]
    fn id(&self) -> u64 {
        u64::from(self.id[0]) | u64::from(self.id[1]) << 32
    }
}

impl Stripe {
    pub(crate) fn new(layout: Layout) -> Self {
        Self { index: HashTable::new(), slab: Slab::new(layout.stride) }
    }

    /// The slot of an id that has a row.
    #[inline]
    pub(crate) fn find(&self, hash: u64, id: u64) -> Option<u32> {
        self.index.find(hash, |entry| entry.id() == id).map(|entry| entry.slot)
    }

    /// The slot of an id, and whether its row was made now by `fill`.
    #[inline]
    pub(crate) fn find_or_create(&mut self, hash: u64, id: u64, fill: impl FnOnce(&mut [f32])) -> (u32, bool) {
        match self.index.entry(hash, |entry| entry.id() == id, |entry| hash_of(entry.id())) {
            IndexEntry::Occupied(entry) => (entry.get().slot, false),
            IndexEntry::Vacant(place) => {
                let slot = self.slab.add();
                place.insert(Entry::new(id, slot));
                fill(self.slab.slot_mut(slot));
                (slot as u32, true)
            }
        }
    }

    #[inline]
    pub(crate) fn slot(&self, slot: u32) -> &[f32] {
        self.slab.slot(slot as usize)
    }

    #[inline]
    pub(crate) fn slot_mut(&mut self, slot: u32) -> &mut [f32] {
        self.slab.slot_mut(slot as usize)
    }

    /// Ids and slots of all rows, in ascending order of ids: what is written of a table depends on its content alone.
    pub(crate) fn sorted(&self) -> Vec<(u64, u32)> {
        let mut rows: Vec<(u64, u32)> = self.index.iter().map(|entry| (entry.id(), entry.slot)).collect();
        rows.sort_unstable();
        rows
    }

    pub(crate) fn rows(&self) -> usize {
        self.index.len()
    }

    /// Bytes of index and slab, allocated, used or not.
    pub(crate) fn bytes(&self) -> usize {
        self.index.allocation_size() + self.slab.bytes()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Initializer, Optimizer, TableConfig};

    fn stripe() -> Stripe {
        let optimizer = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
        let config = TableConfig { dim: 3, init: Initializer::Zero, optimizer, stripes: 1 };
        Stripe::new(config.layout(0, 0))
    }

    proptest! {
        #[test]
        fn entries_keep_their_id(id: u64, slot: u32) {
            let entry = Entry::new(id, slot as usize);
            prop_assert_eq!((entry.id(), entry.slot), (id, slot));
        }

        #[test]
        fn each_id_has_one_slot_of_its_own(ids in prop::collection::vec(0_u64..500, 0..800)) {
            let mut stripe = stripe();
            for id in &ids {
                let before = stripe.find(hash_of(*id), *id);
                let (slot, created) = stripe.find_or_create(hash_of(*id), *id, |row| row.fill(*id as f32));
                prop_assert_eq!(created, before.is_none());
                prop_assert_eq!(before.unwrap_or(slot), slot);
            }
            let rows = stripe.sorted();
            prop_assert_eq!(rows.len(), stripe.rows());
            prop_assert!(rows.is_sorted());
            for (id, slot) in rows {
                prop_assert_eq!(stripe.slot(slot), &[id as f32; 3]);
            }
        }
    }

    #[test]
    fn an_entry_is_twelve_bytes() {
        assert_eq!(size_of::<Entry>(), 12);
    }
}
