//! Window groups: buckets of one server that always moved together, and the pushes that were applied to them (ADR 39).

use serde::{Deserialize, Serialize};

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
    #[must_use]
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
