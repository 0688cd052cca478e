//! One independently locked part of a table: an index and the slab it points into.

use std::sync::Arc;

use crate::TableCounts;
use crate::config::Layout;
use crate::group::id_of;
use crate::index::{Found, Index};
use crate::memory::Arena;
use crate::prefetch::prefetch;
use crate::slab::{Place, Slab};

/// Rows whose ids hash to this stripe.
#[derive(Debug)]
pub(crate) struct Stripe {
    index: Index,
    slab: Slab,
    pub(crate) counts: TableCounts,
}

impl Stripe {
    /// An empty stripe of a table whose memory comes from `arena`.
    pub(crate) fn new(layout: &Layout, arena: &Arc<Arena>) -> Self {
        let (index, slab) = (Index::new(arena), Slab::new(arena, layout.stride, false));
        Self { index, slab, counts: TableCounts::default() }
    }

    /// Asks for the index entry of a key.
    #[inline(always)]
    pub(crate) fn prefetch_entry(&self, key: u64) {
        self.index.prefetch(key);
    }

    /// Where the row of a key lies, whose entry is where it is looked for first, and asks for its first `words`. A key
    /// that is not found may have a row still.
    #[inline(always)]
    pub(crate) fn peek(&self, key: u64, words: usize) -> Place {
        // No closure: it would be called.
        match self.index.peek(key) {
            Some(slot) => self.place(slot, words),
            None => Place::NONE,
        }
    }

    /// Where a slot lies, and asks for its first `words`.
    #[inline(always)]
    pub(crate) fn place(&self, slot: u32, words: usize) -> Place {
        let place = self.slab.place(slot);
        prefetch(&self.slab.at(place)[..words]);
        place
    }

    /// The slot of a key that has a row.
    #[inline(always)]
    pub(crate) fn find(&self, key: u64) -> Option<u32> {
        match self.index.find(key) {
            Found::Slot(slot) => Some(slot),
            Found::Nothing(_) => None,
        }
    }

    /// The slot of a key, and whether its row was made now.
    #[inline(always)]
    pub(crate) fn find_or_create(&mut self, key: u64, layout: &Layout) -> (u32, bool) {
        match self.index.find(key) {
            Found::Slot(slot) => (slot, false),
            Found::Nothing(place) => (self.create(key, place, layout), true),
        }
    }

    #[inline(never)]
    fn create(&mut self, key: u64, place: usize, layout: &Layout) -> u32 {
        let slot = self.slab.add();
        self.index.add(key, place, slot);
        layout.fill_slot(id_of(key), self.slab.words_mut(slot));
        slot
    }

    #[inline(always)]
    pub(crate) fn at(&self, place: Place) -> &[u32] {
        self.slab.at(place)
    }

    #[inline(always)]
    pub(crate) fn at_mut(&mut self, place: Place) -> &mut [u32] {
        self.slab.at_mut(place)
    }

    #[inline]
    pub(crate) fn slot(&self, slot: u32) -> &[u32] {
        self.slab.words(slot)
    }

    #[inline]
    pub(crate) fn slot_mut(&mut self, slot: u32) -> &mut [u32] {
        self.slab.words_mut(slot)
    }

    /// Ids and slots of all rows, in ascending order of ids: what is written of a table depends on its content alone.
    pub(crate) fn sorted(&self) -> Vec<(u64, u32)> {
        let mut rows: Vec<(u64, u32)> = self.index.iter().map(|(key, slot)| (id_of(key), slot)).collect();
        rows.sort_unstable();
        rows
    }

    pub(crate) fn rows(&self) -> usize {
        self.index.len()
    }

    /// Bytes of index and slab, allocated, used or not.
    pub(crate) fn bytes(&self) -> usize {
        self.index.bytes() + self.slab.bytes()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::group::key_of;
    use crate::memory::Pages;
    use crate::{Initializer, Limits, Optimizer, TableConfig};

    fn layout() -> Layout {
        let optimizer = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
        let (init, limits) = (Initializer::Uniform { bound: 1.0 }, Limits::default());
        TableConfig { dim: 3, init, optimizer, limits, stripes: 1, ..TableConfig::default() }.layout(0, 0)
    }

    proptest! {
        #[test]
        fn each_id_has_one_slot_of_its_own(ids in prop::collection::vec(0_u64..500, 0..800)) {
            let layout = layout();
            let mut stripe = Stripe::new(&layout, &Arena::new(Pages::Huge));
            for id in &ids {
                let before = stripe.find(key_of(*id));
                let (slot, created) = stripe.find_or_create(key_of(*id), &layout);
                prop_assert_eq!(created, before.is_none());
                prop_assert_eq!(before.unwrap_or(slot), slot);
            }
            let rows = stripe.sorted();
            prop_assert_eq!(rows.len(), stripe.rows());
            prop_assert!(rows.is_sorted());
            for (id, slot) in rows {
                let mut first = [u32::MAX; 3];
                layout.fill_slot(id, &mut first);
                prop_assert_eq!(stripe.slot(slot), &first);
            }
        }
    }
}
