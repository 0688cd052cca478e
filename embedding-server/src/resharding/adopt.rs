//! Taking over a placement: who may push, what this server serves, what became of a move, and the rows of buckets that are
//! another server's now.

use std::sync::Arc;
use std::time::Instant;

use tracing::{info, warn};
use zagros_protocol::control::{PlacementResponse, ServerEntry};
use zagros_protocol::{BucketMap, Generation, PackError};
use zagros_table::ColdError;

use super::PlannedMove;
use super::moves::MoveActivity;
use crate::EmbeddingService;
use crate::datapath::OwnedBuckets;

#[derive(Debug)]
pub(crate) struct AdoptedPlacement {
    pub(crate) generation: Generation,
    /// The move that this server is the target of, and its source.
    pub(crate) incoming: Option<(Arc<PlannedMove>, ServerEntry)>,
    /// Whether rows of buckets that this server does not own may be there ([`purge_strays`]).
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

/// Removes the rows of all buckets that this server neither owns nor gets. Answers how many copies of rows there were. What a cold tier
/// that fails keeps is never answered or saved, and goes before one of its buckets comes back.
pub(crate) fn purge_strays(service: &EmbeddingService) -> usize {
    let _one_at_a_time = service.moves.purging.lock();
    let incoming = match &*service.moves.activity.lock() {
        MoveActivity::Incoming(plan) => Some(std::sync::Arc::clone(plan)),
        _ => None,
    };
    let Ok(placement) = service.placement() else { return 0 };
    let is_incoming = |table, id| incoming.as_ref().is_some_and(|plan| plan.has_row(table, id));
    let removed = remove_rows(service, |table, id| !placement.owns_row(table, id) && !is_incoming(table, id));
    removed.unwrap_or_else(|error| {
        warn!(server = service.index.0, %error, "rows of other servers' buckets are left in the cold tier");
        0
    })
}

pub(super) fn remove_rows(
    service: &EmbeddingService,
    is_unwanted: impl Fn(u32, u64) -> bool,
) -> Result<usize, ColdError> {
    let (started, mut removed) = (Instant::now(), 0);
    for (number, table) in service.tables.iter().enumerate() {
        for stripe in 0..table.stripes() {
            removed += table.remove_rows(stripe, |id| is_unwanted(number as u32, id))?;
        }
    }
    if removed > 0 {
        let seconds = started.elapsed().as_secs_f64();
        info!(server = service.index.0, rows = removed, seconds, "rows of other servers' buckets were removed");
    }
    Ok(removed)
}
