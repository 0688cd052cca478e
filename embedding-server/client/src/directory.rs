//! Which servers there are now: the placement, fetched from the coordinator and followed when it changes.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::Mutex;
use tracing::debug;
use zagros_coordinator_client::ControlPlane;
use zagros_plumbing::{Backoff, Deadline};
use zagros_protocol::control::PlacementRequest;
use zagros_protocol::{Generation, Refusal};

use crate::placement::{Connect, Placement};
use crate::{ClientError, Shard};

/// The current placement. Reading it takes no lock.
pub(crate) struct Directory {
    control: Arc<dyn ControlPlane>,
    connect: Connect,
    timeout: Duration,
    placement: ArcSwapOption<Placement>,
    /// Held while the placement is fetched, so that many failing calls fetch it once.
    fetching: Mutex<()>,
}

/// Why the placement could not be fetched.
enum FetchError {
    /// May pass: the coordinator is away, or servers are missing.
    NotYet(String),
    /// Will not pass.
    Final(ClientError),
}

impl Directory {
    pub(crate) fn new(control: Arc<dyn ControlPlane>, connect: Connect, timeout: Duration) -> Self {
        Self { control, connect, timeout, placement: ArcSwapOption::empty(), fetching: Mutex::new(()) }
    }

    /// The placement; waits for the first one.
    pub(crate) async fn current(&self) -> Result<Arc<Placement>, ClientError> {
        loop {
            if let Some(placement) = self.placement.load_full() {
                return Ok(placement);
            }
            self.refresh().await?;
        }
    }

    /// Fetches the placement within the timeout.
    pub(crate) async fn refresh(&self) -> Result<(), ClientError> {
        let deadline = Deadline::after(self.timeout);
        let _one_at_a_time = self.fetching.lock().await;
        let is_early = |failure: &FetchError| matches!(failure, FetchError::NotYet(_));
        let fetched = Backoff::default().retry(deadline, is_early, || self.fetch(deadline)).await;
        fetched.map_err(|failure| match failure {
            FetchError::Final(error) => error,
            FetchError::NotYet(reason) => ClientError::NoPlacement {
                coordinator: self.control.name().to_owned(),
                waited: deadline.waited(),
                reason,
            },
        })
    }

    /// Fetches the placement once, unless someone else has since `seen` or is about to: then that fetch serves for
    /// this caller too, found or not, so that many callers wait for a silent coordinator no longer than one. A
    /// coordinator that does not answer is no error here: the data path works without it as long as the servers
    /// stay where they are.
    pub(crate) async fn follow(&self, seen: &Arc<Placement>, deadline: Deadline) -> Result<(), ClientError> {
        let Ok(_one_at_a_time) = self.fetching.try_lock() else {
            // Whoever holds it has a deadline of its own; this caller's may be nearer.
            let _ = deadline.bound(self.fetching.lock()).await;
            return Ok(());
        };
        if !self.placement.load().as_ref().is_some_and(|now| Arc::ptr_eq(now, seen)) {
            return Ok(());
        }
        match self.fetch(deadline).await {
            Ok(()) => Ok(()),
            Err(FetchError::Final(error)) => Err(error),
            Err(FetchError::NotYet(reason)) => {
                debug!(coordinator = self.control.name(), reason, "placement could not be fetched");
                Ok(())
            }
        }
    }

    /// How long a server that is away is waited for.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// In the order of their indices; empty before the first placement.
    pub(crate) fn servers(&self) -> Vec<Arc<dyn Shard>> {
        self.placement.load().iter().flat_map(|placement| placement.shards().cloned()).collect()
    }

    async fn fetch(&self, deadline: Deadline) -> Result<(), FetchError> {
        // Whatever the coordinator says, the servers may still serve: only the timeout ends the wait for it.
        let asked = deadline.bound(self.control.placement(PlacementRequest {})).await;
        let asked = asked.unwrap_or_else(|within| Err(Refusal::no_answer(within)));
        let response = asked.map_err(|refusal| FetchError::NotYet(refusal.message))?;
        if response.generation == Generation::NONE.0 {
            return Err(FetchError::NotYet(response.waiting_for));
        }
        let known = self.placement.load_full();
        let adopted = Placement::adopt(response, known.as_deref(), &self.connect, self.control.name());
        self.placement.store(Some(Arc::new(adopted.map_err(FetchError::Final)?)));
        Ok(())
    }
}
