//! The current placement: fetched from the coordinator, and fetched again when it changes.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::Mutex;
use tracing::debug;
use zagros_coordinator_client::ControlPlane;
use zagros_plumbing::{Backoff, Deadline};
use zagros_protocol::control::PlacementRequest;
use zagros_protocol::{Generation, Refusal};

use crate::ClientError;
use crate::placement::{Connect, Placement};

/// Reading the placement takes no lock.
pub(crate) struct PlacementCache {
    control: Arc<dyn ControlPlane>,
    connect: Connect,
    timeout: Duration,
    placement: ArcSwapOption<Placement>,
    /// Held during a fetch, so that many failing calls fetch the placement once.
    fetching: Mutex<()>,
}

enum FetchError {
    /// A later fetch may succeed: the coordinator does not answer, or servers are missing.
    NotYet(String),
    /// No later fetch will succeed.
    Final(ClientError),
}

impl PlacementCache {
    pub(crate) fn new(control: Arc<dyn ControlPlane>, connect: Connect, timeout: Duration) -> Self {
        Self { control, connect, timeout, placement: ArcSwapOption::empty(), fetching: Mutex::new(()) }
    }

    /// The current placement. Waits for the first one.
    pub(crate) async fn current(&self) -> Result<Arc<Placement>, ClientError> {
        loop {
            if let Some(placement) = self.placement.load_full() {
                return Ok(placement);
            }
            self.refresh().await?;
        }
    }

    pub(crate) async fn refresh(&self) -> Result<(), ClientError> {
        let deadline = Deadline::from_now(self.timeout);
        let _one_at_a_time = self.fetching.lock().await;
        let is_early = |failure: &FetchError| matches!(failure, FetchError::NotYet(_));
        let fetched = Backoff::default().retry(deadline, is_early, || self.fetch_once(deadline)).await;
        fetched.map_err(|failure| match failure {
            FetchError::Final(error) => error,
            FetchError::NotYet(reason) => ClientError::NoPlacement {
                coordinator: self.control.name().to_owned(),
                waited: deadline.time_waited(),
                reason,
            },
        })
    }

    /// Fetches the placement once. If another caller has replaced `seen` or is fetching now, that fetch counts for this
    /// caller too, whatever its result. So many callers wait for a silent coordinator no longer than one caller. A
    /// silent coordinator is not an error here: the data path works without it while the servers keep their buckets.
    pub(crate) async fn fetch_newer(&self, seen: &Arc<Placement>, deadline: Deadline) -> Result<(), ClientError> {
        let Ok(_one_at_a_time) = self.fetching.try_lock() else {
            // The holder of the lock has a deadline of its own. This caller's deadline may be earlier.
            let _ = deadline.bound(self.fetching.lock()).await;
            return Ok(());
        };
        if !self.placement.load().as_ref().is_some_and(|now| Arc::ptr_eq(now, seen)) {
            return Ok(());
        }
        match self.fetch_once(deadline).await {
            Ok(()) => Ok(()),
            Err(FetchError::Final(error)) => Err(error),
            Err(FetchError::NotYet(reason)) => {
                debug!(coordinator = self.control.name(), reason, "cannot fetch the placement");
                Ok(())
            }
        }
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn last_fetched(&self) -> Option<Arc<Placement>> {
        self.placement.load_full()
    }

    async fn fetch_once(&self, deadline: Deadline) -> Result<(), FetchError> {
        // A refusal by the coordinator is not final: the servers may still serve. The wait ends with the deadline.
        let asked = deadline.bound(self.control.placement(PlacementRequest {})).await;
        let asked = asked.unwrap_or_else(|within| Err(Refusal::no_answer(within)));
        let response = asked.map_err(|refusal| FetchError::NotYet(refusal.message))?;
        if response.generation == Generation::NONE.0 {
            return Err(FetchError::NotYet(response.waiting_for));
        }
        let known = self.placement.load_full();
        let adopted = Placement::from_response(response, known.as_deref(), &self.connect, self.control.name());
        self.placement.store(Some(Arc::new(adopted.map_err(FetchError::Final)?)));
        Ok(())
    }
}
