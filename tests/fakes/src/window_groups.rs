//! The pushes that were applied, by group of buckets that always moved together (ADR 39).

use std::collections::{BTreeMap, BTreeSet};

use zagros_protocol::{Refusal, RowKey};

type Push = (u64, u32, u64);
/// A group: the moves by which its buckets came here, in order. Buckets that never moved are in the group without any.
type Group = Vec<u64>;
/// Rows, each with its bucket.
type Rows = BTreeSet<(u32, RowKey)>;

#[derive(Debug, Default)]
pub(crate) struct WindowGroups {
    /// Of buckets that came by a move.
    groups: BTreeMap<u32, Group>,
    applied: BTreeMap<Group, BTreeMap<Push, Rows>>,
}

impl WindowGroups {
    /// Returns the rows to which the push was not applied before. Fails if it has some rows of a group that it had
    /// before and lacks others: a client must not divide a group.
    pub(crate) fn apply(&mut self, push: Push, rows: Rows) -> Result<BTreeSet<RowKey>, Refusal> {
        let mut by_group = BTreeMap::<Group, Rows>::new();
        for (bucket, row) in rows {
            by_group.entry(self.groups.get(&bucket).cloned().unwrap_or_default()).or_default().insert((bucket, row));
        }
        let mut new = BTreeSet::new();
        for (group, rows) in by_group {
            let previous = self.applied.entry(group).or_default().insert(push, rows.clone());
            match previous {
                None => new.extend(rows.into_iter().map(|(_, row)| row)),
                Some(previous) if previous == rows => {}
                Some(previous) => {
                    return Err(Refusal::invalid(format!(
                        "push {push:?} has rows {rows:?} and had {previous:?} of a group"
                    )));
                }
            }
        }
        Ok(new)
    }

    pub(crate) fn hand_over(&mut self, target: &mut Self, buckets: &[u32], bucket_move: u64) {
        for bucket in buckets {
            let group = self.groups.remove(bucket).unwrap_or_default();
            target.groups.insert(*bucket, [&group[..], &[bucket_move]].concat());
        }
        for (group, applied) in &mut self.applied {
            let moved = applied
                .iter_mut()
                .map(|(push, rows)| (*push, rows.extract_if(.., |(bucket, _)| buckets.contains(bucket)).collect()));
            target.applied.insert([&group[..], &[bucket_move]].concat(), moved.collect());
        }
    }
}
