//! Which buckets share the windows of pushes (ADR 39).
//!
//! The buckets of a *window group* always moved together, so each push changed the rows of all of them or of none. A push that is
//! divided by another map may come to a server that has applied it to some of its groups and not to others:
//!
//! ```text
//! server 1 before the move   group 0: buckets 4 … 7, has push 9
//! after the move             group 1: buckets 2, 3 of server 0, which did not have push 9
//! push 9 again, buckets 2 … 5     group 0: skipped     group 1: applied
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use zagros_protocol::{RowKey, TableId, bucket_of};
use zagros_table::RequestPart;

#[derive(Debug, Default)]
pub(crate) struct WindowGroups {
    /// `None` while every bucket is in group 0. Buckets past the end are in group 0.
    of_bucket: ArcSwapOption<Vec<u32>>,
    /// Locked while the groups change.
    changes: Mutex<()>,
}

#[derive(Debug)]
pub(crate) enum RequestGroups {
    First,
    /// These, in ascending order, and the group of each bucket.
    Several {
        groups: Vec<u32>,
        of_bucket: Arc<Vec<u32>>,
        buckets: u32,
    },
}

impl WindowGroups {
    pub(crate) fn of_bucket(&self, bucket: u32) -> u32 {
        self.of_bucket.load().as_ref().map_or(0, |of_bucket| group_in(of_bucket, bucket))
    }

    /// The groups of the rows of a request. No id is looked at while there is one group.
    pub(crate) fn of_request(&self, parts: &[RequestPart<'_>], buckets: u32) -> RequestGroups {
        let Some(of_bucket) = self.of_bucket.load_full() else { return RequestGroups::First };
        let mut groups = Vec::new();
        for part in parts {
            for id in part.ids {
                let group = group_in(&of_bucket, row_bucket(part.table, *id, buckets));
                if let Err(place) = groups.binary_search(&group) {
                    groups.insert(place, group);
                }
            }
        }
        if groups.is_empty() {
            return RequestGroups::First;
        }
        RequestGroups::Several { groups, of_bucket, buckets }
    }

    /// A number that no group has had.
    pub(crate) fn next_group(&self) -> u32 {
        self.of_bucket.load().as_ref().and_then(|of_bucket| of_bucket.iter().max().copied()).unwrap_or(0) + 1
    }

    pub(crate) fn assign_group(&self, buckets: &[u32], group: u32) {
        let Some(last) = buckets.iter().max() else { return };
        let _one_at_a_time = self.changes.lock();
        let mut of_bucket = self.of_bucket.load().as_deref().cloned().unwrap_or_default();
        of_bucket.resize(of_bucket.len().max(*last as usize + 1), 0);
        buckets.iter().for_each(|bucket| of_bucket[*bucket as usize] = group);
        self.of_bucket.store(Some(Arc::new(of_bucket)));
    }

    /// All groups with their buckets. Group 0 names none.
    pub(crate) fn buckets_by_group(&self) -> BTreeMap<u32, Vec<u32>> {
        let mut groups = BTreeMap::from([(0, Vec::new())]);
        for (bucket, group) in self.of_bucket.load().iter().flat_map(|of_bucket| of_bucket.iter()).enumerate() {
            if *group > 0 {
                groups.entry(*group).or_default().push(bucket as u32);
            }
        }
        groups
    }

    /// Every bucket is in group 0 again.
    pub(crate) fn clear(&self) {
        self.of_bucket.store(None);
    }
}

impl RequestGroups {
    pub(crate) fn groups(&self) -> &[u32] {
        match self {
            Self::First => &[0],
            Self::Several { groups, .. } => groups,
        }
    }

    /// Whether a push to `claimed` groups leaves out rows of this request.
    pub(crate) fn has_others(&self, claimed: &[u32]) -> bool {
        self.groups().len() > claimed.len()
    }

    pub(crate) fn of_row(&self, table: u32, id: u64) -> u32 {
        match self {
            Self::First => 0,
            Self::Several { of_bucket, buckets, .. } => group_in(of_bucket, row_bucket(table, id, *buckets)),
        }
    }
}

fn group_in(of_bucket: &[u32], bucket: u32) -> u32 {
    of_bucket.get(bucket as usize).copied().unwrap_or(0)
}

fn row_bucket(table: u32, id: u64, buckets: u32) -> u32 {
    bucket_of(RowKey { table: TableId(table), id }, buckets)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKETS: u32 = 8;

    #[test]
    fn buckets_that_never_moved_are_in_group_0_and_cost_nothing() {
        let groups = WindowGroups::default();
        let part = RequestPart { table: 0, dim: 1, ids: &[1, 2, 3] };
        assert!(matches!(groups.of_request(&[part], BUCKETS), RequestGroups::First));
        assert_eq!((groups.of_bucket(7), groups.next_group()), (0, 1));
        assert_eq!(groups.buckets_by_group(), BTreeMap::from([(0, vec![])]));
    }

    #[test]
    fn a_request_names_each_group_of_its_rows_once() {
        let groups = WindowGroups::default();
        let ids: Vec<u64> = (0..100).collect();
        let bucket_of = |id: &u64| row_bucket(3, *id, BUCKETS);
        groups.assign_group(&[1, 4], 1);
        groups.assign_group(&[4, 6], 2);
        assert_eq!([0, 1, 4, 6, 7].map(|bucket| groups.of_bucket(bucket)), [0, 1, 2, 2, 0]);
        assert_eq!(groups.buckets_by_group(), BTreeMap::from([(0, vec![]), (1, vec![1]), (2, vec![4, 6])]));
        assert_eq!(groups.next_group(), 3);
        let all = [RequestPart { table: 3, dim: 1, ids: &ids }];
        let named = groups.of_request(&all, BUCKETS);
        assert_eq!(named.groups(), [0, 1, 2]);
        assert!(ids.iter().all(|id| named.of_row(3, *id) == groups.of_bucket(bucket_of(id))));
        assert!(named.has_others(&[0, 2]) && !named.has_others(&[0, 1, 2]));
        let one: Vec<u64> = ids.iter().copied().filter(|id| bucket_of(id) == 6).collect();
        assert_eq!(groups.of_request(&[RequestPart { table: 3, dim: 1, ids: &one }], BUCKETS).groups(), [2]);
        assert_eq!(groups.of_request(&[], BUCKETS).groups(), [0]);
        groups.clear();
        assert_eq!(groups.of_bucket(4), 0);
    }
}
