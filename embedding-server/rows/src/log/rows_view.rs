//! Rows of a record where they lie in its payload: recovery copies them once, into their table.
//!
//! Window groups: buckets of one server that always moved together, and the pushes that were applied to them (ADR 39).

use std::borrow::Cow;

use bytemuck::{Pod, try_cast_slice};
use serde::{Deserialize, Serialize};
use zagros_table::{PushOrigin, RowBatch, RowSlices};

use crate::log::format::{COUNT_BYTES, ORIGIN_BYTES, RecordHead, RecordKind, copy_numbers, count_of, origin_of};

/// Rows of a payload. They are copied only if the payload lies in memory without alignment.
#[derive(Clone, Debug)]
pub struct RowsView<'a> {
    /// The push that changed them, if one did.
    pub origin: Option<PushOrigin>,
    ids: Cow<'a, [u64]>,
    slots: Cow<'a, [u32]>,
    access: Cow<'a, [u32]>,
}

impl<'a> RowsView<'a> {
    /// The rows of a record of rows. `None` for a record of another kind.
    pub fn from_record(head: &RecordHead, payload: &'a [u8]) -> Option<Result<Self, String>> {
        let rows = match head.kind {
            RecordKind::PushedRows => origin_of(payload).map(|(origin, count)| (Some(origin), ORIGIN_BYTES, count)),
            RecordKind::Rows => count_of(payload).map(|count| (None, COUNT_BYTES, count)),
            _ => return None,
        };
        let rows = rows.and_then(|(origin, start, count)| Self::read(head, origin, &payload[start..], count));
        Some(rows.ok_or_else(|| format!("a record of {} whose lengths disagree", head.kind.name())))
    }

    fn read(head: &RecordHead, origin: Option<PushOrigin>, bytes: &'a [u8], count: usize) -> Option<Self> {
        let (ids, rest) = bytes.split_at_checked(count.checked_mul(8)?)?;
        let (slots, access) = rest.split_at_checked(count.checked_mul(head.width as usize)?.checked_mul(4)?)?;
        let fits = access.is_empty() || access.len() == 4 * count;
        fits.then(|| Self { origin, ids: numbers(ids), slots: numbers(slots), access: numbers(access) })
    }

    pub fn ids(&self) -> &[u64] {
        &self.ids
    }

    pub fn as_slices(&self) -> RowSlices<'_> {
        RowSlices { ids: &self.ids, slots: &self.slots, access: &self.access }
    }

    pub fn into_rows(self) -> RowBatch {
        let Self { ids, slots, access, .. } = self;
        RowBatch { ids: ids.into_owned(), slots: slots.into_owned(), access: access.into_owned() }
    }
}

fn numbers<T: Pod>(bytes: &[u8]) -> Cow<'_, [T]> {
    match try_cast_slice(bytes) {
        Ok(numbers) => Cow::Borrowed(numbers),
        Err(_) => Cow::Owned(copy_numbers(bytes)),
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowImage {
    pub writer: u64,
    pub incarnation: u32,
    /// The numbers that were applied, as ranges `[first, last]`.
    pub applied: Vec<[u64; 2]>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowGroup {
    /// Its number at the server. Buckets that never moved are in group 0.
    pub group: u32,
    /// Its buckets. Group 0 names none: it has all buckets that no other group has.
    pub buckets: Vec<u32>,
    /// The pushes of each writer that were applied to its buckets.
    pub windows: Vec<WindowImage>,
}

impl WindowGroup {
    /// The windows as words of a record.
    pub fn window_words(&self) -> Vec<u64> {
        let words = |window: &WindowImage| {
            let head = [window.writer, u64::from(window.incarnation), window.applied.len() as u64];
            head.into_iter().chain(window.applied.iter().flatten().copied()).collect::<Vec<_>>()
        };
        self.windows.iter().flat_map(words).collect()
    }

    /// Reads what [`Self::window_words`] wrote. `None` if the words are not whole windows.
    pub(crate) fn windows_of(mut words: &[u64]) -> Option<Vec<WindowImage>> {
        let mut windows = Vec::new();
        while !words.is_empty() {
            let ([writer, incarnation, ranges], rest) = words.split_first_chunk::<3>()?;
            let (ranges, rest) = rest.split_at_checked(usize::try_from(*ranges).ok()?.checked_mul(2)?)?;
            let applied = ranges.as_chunks::<2>().0.to_vec();
            windows.push(WindowImage { writer: *writer, incarnation: u32::try_from(*incarnation).ok()?, applied });
            words = rest;
        }
        Some(windows)
    }
}

#[cfg(test)]
mod tests {
    use bytemuck::{cast_slice, cast_slice_mut};

    use super::*;
    use crate::log::format::tests::HEAD;

    #[test]
    fn rows_are_read_at_any_alignment_and_copied_only_where_they_must_be() {
        let origin = PushOrigin { writer: 1, incarnation: 2, seq: 3 };
        let (ids, slots, access) = ([5, u64::MAX], [1_u32, 2, 3, 4, 5, 6], [7_u32, 8]);
        // Writer and number of the push, its incarnation, and the number of rows.
        let mut bytes = cast_slice::<u64, u8>(&[1, 3, 2 << 32 | 2]).to_vec();
        bytes.extend_from_slice(cast_slice(&ids));
        bytes.extend_from_slice(cast_slice(&slots));
        bytes.extend_from_slice(cast_slice(&access));
        let (kind, length) = (RecordKind::PushedRows, bytes.len() as u32);
        let head = RecordHead { kind, length, width: 3, ..HEAD };
        let mut borrowed = 0;
        for shift in 0..8 {
            let mut moved = vec![0_u64; bytes.len() / 8 + 2];
            let payload = &mut cast_slice_mut::<u64, u8>(&mut moved)[shift..][..bytes.len()];
            payload.copy_from_slice(&bytes);
            let rows = RowsView::from_record(&head, payload).unwrap().unwrap();
            borrowed += usize::from(matches!((&rows.ids, &rows.slots), (Cow::Borrowed(_), Cow::Borrowed(_))));
            assert_eq!((rows.origin, rows.ids(), rows.as_slices().slots), (Some(origin), &ids[..], &slots[..]));
            assert_eq!(rows.into_rows().access, access);
        }
        assert_eq!(borrowed, 1);
        assert!(RowsView::from_record(&RecordHead { kind: RecordKind::Commit, ..head }, &[]).is_none());
        assert!(RowsView::from_record(&head, &bytes[..40]).unwrap().is_err());
    }
}
