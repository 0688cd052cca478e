//! Taking over a placement: who may push, what this server serves, and what became of a move.

use std::sync::Arc;

use tracing::info;
use zagros_protocol::control::{PlacementResponse, ServerEntry};
use zagros_protocol::{BucketMap, Generation, PackError};

use super::PlannedMove;
use super::moves::MoveActivity;
use crate::EmbeddingService;
use crate::datapath::OwnedBuckets;

#[derive(Debug)]
pub(crate) struct AdoptedPlacement {
    /// The generation that is served now.
    pub(crate) generation: Generation,
    /// The move that this server is the target of, and its source.
    pub(crate) incoming: Option<(Arc<PlannedMove>, ServerEntry)>,
    /// Whether rows of buckets that this server does not own may be there ([`super::purge_strays`]).
    pub(crate) has_strays: bool,
}

/// Placements are adopted in the order in which they were asked for. `None` if there is no map yet.
pub(crate) fn adopt_placement(
    service: &EmbeddingService,
    response: &PlacementResponse,
) -> Result<Option<AdoptedPlacement>, PackError> {
    let generation = Generation(response.generation);
    if generation == Generation::NONE {
        return Ok(None);
    }
    let map = BucketMap::unpack_owners(generation, &response.owners)?;
    let announced = response.bucket_move.as_ref().map(|announced| PlannedMove::new(announced, map.bucket_count()));
    let announced = announced.transpose()?.map(Arc::new);
    service.writers.set_writers(&response.writers);
    *service.moves.announced.lock() = announced.clone();
    let is_announced = |id: u64| announced.as_ref().is_some_and(|plan| plan.id == id);

    let mut activity = service.moves.activity.lock();
    let previous = service.placement().ok();
    let frozen = previous.as_ref().and_then(|previous| previous.frozen_move);
    let (still_frozen, mut has_strays) = (frozen.filter(|id| is_announced(*id)), false);
    if previous.as_ref().is_none_or(|previous| previous.generation() != generation) || frozen != still_frozen {
        let next = OwnedBuckets::new(Arc::new(map), service.index);
        let next = still_frozen.map_or_else(|| next.clone(), |id| next.freeze(id));
        info!(server = service.index.0, %generation, buckets = next.bucket_count(), "placement adopted");
        has_strays = previous.map_or_else(|| service.has_recovered(), |previous| previous.has_more_than(&next));
        if has_strays {
            let incoming = |bucket| matches!(&*activity, MoveActivity::Incoming(plan) if plan.has_bucket(bucket));
            service.windows.keep_groups_of(|bucket| next.has_bucket(bucket) || incoming(bucket), next.bucket_count());
        }
        service.serve_buckets(next);
    }
    if matches!(&*activity, MoveActivity::Outgoing(outgoing) if !is_announced(outgoing.plan.id)) {
        service.tables.end_watch();
        *activity = MoveActivity::None;
    }
    let incoming = announced.filter(|plan| plan.target == service.index.0);
    let incoming = incoming.and_then(|plan| {
        let source = response.servers.iter().find(|entry| entry.index == plan.source)?.clone();
        Some((plan, source))
    });
    Ok(Some(AdoptedPlacement { generation, incoming, has_strays }))
}
