//! Rows of buckets that this server does not own: it removes them (invariant PL-3). They are of an earlier owner, or of a copy that came to nothing.

use std::time::Instant;

use tracing::info;

use super::PlannedMove;
use super::moves::MoveActivity;
use crate::EmbeddingService;

/// Removes the rows of all buckets that this server neither owns nor gets. Answers how many there were.
pub(crate) fn purge(service: &EmbeddingService) -> usize {
    let _one_at_a_time = service.moves.purging.lock();
    let incoming = match &*service.moves.activity.lock() {
        MoveActivity::Incoming(plan) => Some(std::sync::Arc::clone(plan)),
        _ => None,
    };
    let Ok(placement) = service.placement() else { return 0 };
    let is_incoming = |table, id| incoming.as_ref().is_some_and(|plan| plan.has_row(table, id));
    remove(service, |table, id| !placement.owns(table, id) && !is_incoming(table, id))
}

/// Removes the rows of the buckets of a move. The caller has made it the move that comes in, and no purge is under way.
pub(super) fn clear(service: &EmbeddingService, plan: &PlannedMove) -> usize {
    remove(service, |table, id| plan.has_row(table, id))
}

fn remove(service: &EmbeddingService, is_unwanted: impl Fn(u32, u64) -> bool) -> usize {
    let (started, mut removed) = (Instant::now(), 0);
    for (number, table) in service.tables.iter().enumerate() {
        for stripe in 0..table.stripes() {
            removed += table.remove_rows(stripe, |id| is_unwanted(number as u32, id));
        }
    }
    if removed > 0 {
        let seconds = started.elapsed().as_secs_f64();
        info!(server = service.index.0, rows = removed, seconds, "rows of other servers' buckets were removed");
    }
    removed
}
