//! A stripe gives memory back: its rows move into as few blocks as they need.

use super::Stripe;
use crate::index::IndexEntry;

impl Stripe {
    /// How many rows the stripe may have to need one block of memory less.
    pub(crate) fn rows_without_last_block(&self) -> usize {
        self.slab.slots_without_last_block()
    }

    /// Moves all rows into as little memory as they need. Not while slots are captured for a snapshot.
    pub(crate) fn shrink(&mut self) {
        if self.is_captured() {
            return;
        }
        let (mut index, mut slab) = (self.index.empty_copy(), self.slab.empty_copy());
        index.reserve(self.index.len());
        let mut moved = Vec::new();
        for (key, old) in self.index.iter() {
            let IndexEntry::Nothing(place) = index.find(key) else { continue };
            let slot = slab.add();
            slab.words_mut(slot).copy_from_slice(self.slab.words(old));
            if self.slab.with_access {
                *slab.access_mut(slot) = self.slab.access(old);
            }
            index.add(key, place, slot);
            moved.push((old, slot));
        }
        if let Some(changed) = &mut self.changed {
            changed.move_marks(&moved);
        }
        (self.index, self.slab) = (index, slab);
        self.eviction_cursor = 0;
        self.hinted.clear();
        // A sweep begins again when the next one is due.
        self.sweep.bucket = None;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::admission::stripe_filter::StripeFilter;
    use crate::changed_rows::ChangedRows;
    use crate::config::RowLayout;
    use crate::key::key_of;
    use crate::machine::memory::Arena;
    use crate::{AdmissionPolicy, TableConfig};

    fn layout() -> RowLayout {
        TableConfig { dim: 3, stripes: 1, ..TableConfig::default() }.layout(0, 0)
    }

    proptest! {
        #[test]
        fn a_stripe_that_shrinks_keeps_its_rows_and_needs_less_memory(count in 100_u64..3000, every in 2_u64..9) {
            let layout = layout();
            let always = StripeFilter::new(AdmissionPolicy::Always, 1, 0, 0);
            let mut stripe = Stripe::new(0, &layout, true, always, &Arena::new());
            for id in 0..count {
                let (slot, _) = stripe.find_or_create(key_of(id), &layout);
                *stripe.access_mut(slot) = id as u32;
            }
            stripe.changed = Some(ChangedRows::default());
            let changes = |id: u64| id.is_multiple_of(2 * every);
            for id in 0..count {
                let slot = stripe.find(key_of(id)).unwrap();
                if changes(id) {
                    stripe.mark(slot);
                }
            }
            (0..count).filter(|id| !id.is_multiple_of(every)).for_each(|id| stripe.evict_row(key_of(id)));
            let (before, keep) = (stripe.memory_bytes(), stripe.rows_without_last_block());
            stripe.shrink();
            prop_assert!(stripe.row_count() > keep || stripe.memory_bytes() < before);
            prop_assert!(stripe.vacant_slots() <= stripe.row_count().max(16));
            for id in 0..count {
                let Some(slot) = stripe.find(key_of(id)) else {
                    prop_assert!(!id.is_multiple_of(every));
                    continue;
                };
                prop_assert!(id.is_multiple_of(every));
                let mut first = vec![0; layout.stride];
                layout.fill_slot(id, &mut first);
                prop_assert_eq!((stripe.slot(slot), stripe.access(slot)), (&first[..], id as u32));
                prop_assert_eq!(stripe.changed.as_ref().unwrap().has_changed(slot), changes(id));
            }
        }
    }
}
