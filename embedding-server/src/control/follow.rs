//! Does what the coordinator says, until it says stop: fetch the placement, tell the load.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{info, warn};
use zagros_coordinator_client::{ControlPlane, MemberView, Membership};
use zagros_plumbing::Shutdown;
use zagros_protocol::control::PlacementRequest;
use zagros_protocol::{BucketMap, Generation};

use crate::EmbeddingService;

/// How often the load is told and a placement that could not be fetched is asked for again.
const PERIOD: Duration = Duration::from_secs(1);

/// Why a server stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Shutdown was requested in this process.
    Asked,
    /// The coordinator said that the run is over.
    Told(String),
    /// The coordinator no longer counts this server in.
    Fenced(String),
}

/// Runs until the server must stop. Acts on a signal and on a timer, so that a missed signal only costs a period.
pub(crate) async fn follow(
    service: &EmbeddingService,
    control: &dyn ControlPlane,
    membership: &Membership,
    shutdown: &Shutdown,
) -> Ended {
    let mut view = membership.subscribe();
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut serving = Generation::NONE;
    loop {
        tokio::select! {
            // The heartbeats ended without a word only when they were aborted; the timer goes on.
            Ok(()) = view.changed() => {}
            _ = ticks.tick() => {}
            () = shutdown.requested() => return Ended::Asked,
        }
        let now = view.borrow_and_update().clone();
        if let Some(ended) = ended(&now) {
            return ended;
        }
        membership.set_load(service.held());
        if now.generation != serving.0 {
            tokio::select! {
                fetched = fetch(control, membership.lease()) => serving = adopt(service, serving, fetched),
                () = shutdown.requested() => return Ended::Asked,
            }
        }
    }
}

fn ended(view: &MemberView) -> Option<Ended> {
    let fenced = view.fenced.clone().map(Ended::Fenced);
    fenced.or_else(|| view.stop.clone().map(Ended::Told))
}

/// The map as the coordinator has it now; `None` while there is none.
async fn fetch(control: &dyn ControlPlane, patience: Duration) -> Result<Option<BucketMap>, String> {
    let asked = timeout(patience, control.placement(PlacementRequest {})).await;
    let answer = asked.map_err(|_| format!("{} did not answer within {patience:.1?}", control.name()))?;
    let placement = answer.map_err(|refusal| refusal.to_string())?;
    if placement.generation == Generation::NONE.0 {
        return Ok(None);
    }
    let map = BucketMap::unpack(Generation(placement.generation), &placement.owners);
    map.map(Some).map_err(|error| error.to_string())
}

/// Serves the map that was fetched; answers the generation that is served now.
fn adopt(service: &EmbeddingService, serving: Generation, fetched: Result<Option<BucketMap>, String>) -> Generation {
    match fetched {
        Ok(Some(map)) => {
            let generation = map.generation();
            info!(%generation, buckets = map.buckets(), "placement adopted");
            service.set_placement(Arc::new(map));
            generation
        }
        Ok(None) => serving,
        Err(reason) => {
            warn!(reason, "placement could not be fetched, will ask again");
            serving
        }
    }
}
