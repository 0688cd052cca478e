//! A batch between its lookup and its push.
//!
//! ```text
//!            wait_for_rows()       push, release, drop
//!  Asked ───────────► Answered ───────────────────────► Over
//!    │                                                   ▲
//!    └───────────────────────────────────────────────────┘ release, drop: the lookup is given up
//! ```
//!
//! A batch for training holds a place in the staleness window from the moment its lookup is sent until its push is
//! acknowledged, or until the batch is over without a push.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::task::AbortOnDropHandle;
use zagros_embedding_client::{BatchRows, ClientError, RoutedIds, WindowPermit};

use crate::SessionError;

/// A place in the window. The batches of a step that accumulates gradients share one.
pub(crate) type WindowPlace = Arc<WindowPermit>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchAccess {
    /// To train on them: rows that do not exist are created, and the batch takes a place in the window.
    Train,
    /// As [`Self::Train`], in the place of the step that is being accumulated; it takes one if there is no such step.
    Accumulate,
    /// To read them: for a row that does not exist, its first value is returned, and it is not created.
    Read,
}

/// The rows of a lookup, and the place in the window of a batch for training.
pub(crate) struct LookupAnswer {
    pub(crate) rows: BatchRows,
    pub(crate) place: Option<WindowPlace>,
}

pub(crate) type AskedLookup = AbortOnDropHandle<Result<LookupAnswer, ClientError>>;

pub struct LookupBatch {
    ids: Arc<RoutedIds>,
    inverse: Vec<Vec<u32>>,
    has_place: Arc<AtomicBool>,
    state: Mutex<BatchState>,
}

enum BatchState {
    Asked(AskedLookup),
    Answered(Option<WindowPlace>),
    Over,
}

impl LookupBatch {
    pub(crate) fn new(
        ids: Arc<RoutedIds>,
        inverse: Vec<Vec<u32>>,
        has_place: Arc<AtomicBool>,
        asked: AskedLookup,
    ) -> Self {
        Self { ids, inverse, has_place, state: Mutex::new(BatchState::Asked(asked)) }
    }

    #[must_use]
    pub fn unique_ids(&self) -> &Arc<RoutedIds> {
        &self.ids
    }

    /// For each feature and each of its ids, the position of the id in the distinct ids of the feature's table.
    #[must_use]
    pub fn id_positions(&self) -> &[Vec<u32>] {
        &self.inverse
    }

    pub(crate) fn has_place(&self) -> bool {
        self.has_place.load(Ordering::Acquire)
    }

    /// Gives the batch up: its lookup, its place, its push.
    pub fn give_up(&self) {
        self.exchange(BatchState::Over);
    }

    pub(crate) fn take_asked(&self) -> Result<AskedLookup, SessionError> {
        match self.exchange(BatchState::Over) {
            BatchState::Asked(asked) => Ok(asked),
            other => {
                self.exchange(other);
                Err(SessionError::Repeated("the rows of this batch were taken before; look its ids up again"))
            }
        }
    }

    pub(crate) fn set_answered(&self, place: Option<WindowPlace>) {
        self.exchange(BatchState::Answered(place));
    }

    /// A second push is refused, whatever came of the first (invariant DP-3).
    pub(crate) fn take_place(&self) -> Result<WindowPlace, SessionError> {
        const TWICE: &str = "the gradients of this batch were pushed or released before, and a push is never repeated; \
                             look its ids up again before another backward()";
        match self.exchange(BatchState::Over) {
            BatchState::Answered(Some(place)) => Ok(place),
            BatchState::Answered(None) => {
                Err(SessionError::Repeated("this batch was looked up to be read; look its ids up for training"))
            }
            BatchState::Asked(_) | BatchState::Over => Err(SessionError::Repeated(TWICE)),
        }
    }

    fn exchange(&self, state: BatchState) -> BatchState {
        std::mem::replace(&mut *self.state.lock().unwrap_or_else(PoisonError::into_inner), state)
    }
}
