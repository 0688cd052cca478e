//! What the background work of a session shares: the client, the membership, the pushes on their way, the failure.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use zagros_coordinator_client::{ControlPlane, Membership};
use zagros_embedding_client::{BatchRows, ClientError, EmbeddingClient, PushedBatch, RoutedIds};

use crate::SessionError;
use crate::batch::WindowPlace;

pub(crate) struct RunLink {
    pub(crate) client: EmbeddingClient,
    pub(crate) membership: Membership,
    pub(crate) control: Arc<dyn ControlPlane>,
    state: Mutex<LinkState>,
    /// Pushes that are not acknowledged.
    open_pushes: watch::Sender<usize>,
    next_seq: AtomicU64,
}

/// The part of a training step that a worker pushes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepPart {
    pub(crate) step: u64,
    /// How much of the step it is, above 0 and at most 1.
    pub(crate) share: f32,
}

enum LinkState {
    Open,
    /// A push has no answer, for this reason: it may still arrive.
    Failed(String),
    /// A server refused a push, for this reason: it will not arrive.
    Refused(String),
    /// It was given up, for this reason.
    GivenUp(String),
    Closed,
}

impl RunLink {
    pub(crate) fn new(client: EmbeddingClient, membership: Membership, control: Arc<dyn ControlPlane>) -> Self {
        let state = Mutex::new(LinkState::Open);
        Self { client, membership, control, state, open_pushes: watch::Sender::new(0), next_seq: AtomicU64::new(0) }
    }

    /// Fails when a push failed, the session is closed, or the run goes on without this process.
    pub(crate) fn check_open(&self) -> Result<(), SessionError> {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            LinkState::Open => {}
            LinkState::Failed(why) => return Err(SessionError::Failed(why.clone())),
            LinkState::Refused(why) => return Err(SessionError::RefusedPush(why.clone())),
            LinkState::GivenUp(why) => return Err(SessionError::Left(why.clone())),
            LinkState::Closed => return Err(SessionError::Closed),
        }
        let view = self.membership.subscribe();
        let view = view.borrow();
        match view.fenced.as_ref().or(view.stop.as_ref()) {
            Some(reason) => Err(SessionError::Left(reason.clone())),
            None => Ok(()),
        }
    }

    /// Fails when the run is drained, such as after the end of the process that has started the servers.
    pub(crate) fn check_not_draining(&self) -> Result<(), SessionError> {
        match &self.membership.subscribe().borrow().draining {
            Some(reason) => Err(SessionError::Draining(reason.clone())),
            None => Ok(()),
        }
    }

    /// Whether this process was a worker of the run until now.
    pub(crate) fn close(&self, failure: Option<&str>) -> bool {
        let state = failure.map_or(LinkState::Closed, |why| LinkState::GivenUp(why.to_owned()));
        let mut known = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let has_left = matches!(*known, LinkState::Closed | LinkState::GivenUp(_));
        if !has_left || failure.is_none() {
            *known = state;
        }
        !has_left
    }

    pub(crate) fn pushes_in_flight(&self) -> usize {
        *self.open_pushes.borrow()
    }

    /// Waits until every push is acknowledged or has failed.
    pub(crate) async fn wait_for_pushes(&self) {
        // The sender lives as long as this.
        let _ = self.open_pushes.subscribe().wait_for(|open| *open == 0).await;
    }

    /// Counts a push before it is spawned, so that a wait for all pushes waits for it.
    pub(crate) fn announce_push(&self) -> u64 {
        self.open_pushes.send_modify(|open| *open += 1);
        self.next_seq.fetch_add(1, Ordering::AcqRel)
    }

    /// Pushes, and frees the places once the push is acknowledged, or has failed for good.
    pub(crate) async fn push(
        &self,
        seq: u64,
        part: StepPart,
        ids: &RoutedIds,
        gradients: BatchRows,
        places: Vec<WindowPlace>,
    ) {
        let staleness = places.iter().map(|place| place.staleness()).max().unwrap_or_default();
        let staleness = u32::try_from(staleness).unwrap_or(u32::MAX);
        let batch = PushedBatch { step: part.step, staleness, share: part.share, ..seq.into() };
        if let Err(error) = self.client.push(batch, ids, &gradients).await {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let is_refused = matches!(error, ClientError::Refused { .. });
            match *state {
                LinkState::Open if is_refused => *state = LinkState::Refused(error.to_string()),
                LinkState::Open | LinkState::Refused(_) if !is_refused => *state = LinkState::Failed(error.to_string()),
                _ => {}
            }
        }
        // Places first: a caller that sees no push in flight then sees their places free.
        drop(places);
        self.open_pushes.send_modify(|open| *open -= 1);
    }

    pub(crate) fn forget_refusal(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, LinkState::Refused(_)) {
            *state = LinkState::Open;
        }
    }
}
