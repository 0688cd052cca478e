//! Pushes that died with the process before they were whole: the rows that have their gradient.
//!
//! ```text
//! log of the ended process   rows 1, 2 of push 7      (no commit of push 7)
//! recovered                  push 7: rows 1, 2
//! retry of push 7            rows 1, 2, 3 ─► only row 3 is changed ─► commit
//! ```

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use zagros_rows::log::PartialImage;
use zagros_table::{PushOrigin, RequestPart};

/// Tables and ids of the rows that have a push's gradient.
pub(crate) type AppliedRows = HashSet<(u32, u64)>;

#[derive(Debug, Default)]
pub(crate) struct PartialPushes(Mutex<HashMap<PushOrigin, AppliedRows>>);

#[derive(Debug, Default, PartialEq)]
pub(crate) struct RemainingRows {
    /// Table, dim and ids of each part.
    parts: Vec<(u32, u32, Vec<u64>)>,
    /// Their gradients, part after part.
    pub(crate) gradients: Vec<f32>,
}

impl PartialPushes {
    pub(crate) fn restore_rows(&self, rows: HashMap<PushOrigin, AppliedRows>) {
        let mut all = self.0.lock();
        rows.into_iter().for_each(|(origin, rows)| all.entry(origin).or_default().extend(rows));
    }

    /// The rest of a push, if a part of it is applied.
    pub(crate) fn remaining_rows(
        &self,
        origin: &PushOrigin,
        parts: &[RequestPart<'_>],
        gradients: &[f32],
    ) -> Option<RemainingRows> {
        let all = self.0.lock();
        let applied = all.get(origin)?;
        Some(RemainingRows::new(|table, id| applied.contains(&(table, id)), parts, gradients))
    }

    pub(crate) fn forget_push(&self, origin: &PushOrigin) {
        let mut all = self.0.lock();
        if !all.is_empty() {
            all.remove(origin);
        }
    }

    /// One of the pushes for which `matches`.
    pub(crate) fn find_push(&self, matches: impl Fn(&PushOrigin) -> bool) -> Option<PushOrigin> {
        self.0.lock().keys().find(|origin| matches(origin)).copied()
    }

    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }

    pub(crate) fn push_images(&self) -> Vec<PartialImage> {
        let all = self.0.lock();
        let image = |(origin, rows): (&PushOrigin, &AppliedRows)| PartialImage {
            origin: *origin,
            rows: rows.iter().copied().collect(),
        };
        all.iter().map(image).collect()
    }
}

impl RemainingRows {
    /// The rows of a push for which `is_applied` is false, with their gradients.
    pub(crate) fn new(is_applied: impl Fn(u32, u64) -> bool, parts: &[RequestPart<'_>], gradients: &[f32]) -> Self {
        let (mut rest, mut start) = (Self::default(), 0);
        for part in parts {
            let (dim, mut ids) = (part.dim as usize, Vec::new());
            for id in part.ids {
                if !is_applied(part.table, *id) {
                    ids.push(*id);
                    rest.gradients.extend_from_slice(&gradients[start..start + dim]);
                }
                start += dim;
            }
            rest.parts.push((part.table, part.dim, ids));
        }
        rest
    }

    pub(crate) fn request_parts(&self) -> Vec<RequestPart<'_>> {
        self.parts.iter().map(|(table, dim, ids)| RequestPart { table: *table, dim: *dim, ids }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_push_has_the_other_rows_with_their_gradients() {
        let pushes = PartialPushes::default();
        let origin = PushOrigin { writer: 1, incarnation: 2, seq: 3 };
        let parts = [(4, 2, &[7, 8, 7][..]), (5, 1, &[7, 9])].map(|(table, dim, ids)| RequestPart { table, dim, ids });
        let gradients: Vec<f32> = (0..8_u8).map(f32::from).collect();
        assert_eq!(pushes.remaining_rows(&origin, &parts, &gradients), None);
        pushes.restore_rows(HashMap::from([(origin, AppliedRows::from([(4, 7), (5, 9)]))]));
        let rest = pushes.remaining_rows(&origin, &parts, &gradients).unwrap();
        let expected = [(4, 2, &[8][..]), (5, 1, &[7])].map(|(table, dim, ids)| RequestPart { table, dim, ids });
        assert_eq!(rest.request_parts(), expected);
        assert_eq!(rest.gradients, [2.0, 3.0, 6.0]);
        assert_eq!(pushes.push_images().len(), 1);
        pushes.forget_push(&origin);
        assert_eq!(pushes.remaining_rows(&origin, &parts, &gradients), None);
    }
}
