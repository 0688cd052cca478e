//! The stream of batches that a worker is in, and where in it.

use std::sync::{Arc, Mutex, PoisonError};

use zagros_ingest::{Batch, Cursor, Rest, StreamStart};

/// What is known of a stream while it is trained on.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamPlace {
    /// Whose order of rows it has: the worker that began it.
    pub(crate) order: u32,
    cursor: Option<Cursor>,
    /// Splits that the reading thread was dealt, in order.
    dealt: Arc<Mutex<Vec<u64>>>,
}

impl StreamPlace {
    /// Of a stream that starts there and shuffles within windows of so many rows.
    pub(crate) fn new(order: u32, start: StreamStart, shuffle_rows: usize, dealt: Arc<Mutex<Vec<u64>>>) -> Self {
        Self { order, cursor: Some(Cursor::new(start, shuffle_rows)), dealt }
    }

    /// The next batch is trained on, or left out for good; answers the splits whose last row it has.
    pub(crate) fn advance(&mut self, batch: &mut Batch) -> Vec<u64> {
        if let Some(cursor) = &mut self.cursor {
            cursor.deliver(batch);
        }
        std::mem::take(&mut batch.completes).into_iter().map(|end| end.split).collect()
    }

    /// What is left of it; `None` before the first stream.
    pub(crate) fn rest(&self) -> Option<Rest> {
        let dealt = self.dealt.lock().unwrap_or_else(PoisonError::into_inner);
        self.cursor.as_ref().map(|cursor| cursor.rest(&dealt))
    }

    /// Ids of the splits that it was dealt so far.
    pub(crate) fn dealt(&self) -> Vec<u64> {
        self.dealt.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
