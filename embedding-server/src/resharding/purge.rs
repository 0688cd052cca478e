//! Rows of buckets that this server does not own: it removes them (invariant PL-3), in memory and in the cold tier, and their counts. They
//! are of an earlier owner, or of a copy that came to nothing.

use std::time::Instant;

use tracing::{info, warn};
use zagros_table::ColdError;

use super::PlannedMove;
use super::moves::MoveActivity;
use crate::EmbeddingService;

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
    remove_rows(service, |table, id| !placement.owns_row(table, id) && !is_incoming(table, id)).unwrap_or_else(
        |error| {
            warn!(server = service.index.0, %error, "rows of other servers' buckets are left in the cold tier");
            0
        },
    )
}

/// Removes the rows of the buckets of a move. The caller has made it the move that comes in, and no purge is under way.
pub(super) fn clear_moving_rows(service: &EmbeddingService, plan: &PlannedMove) -> Result<usize, ColdError> {
    remove_rows(service, |table, id| plan.has_row(table, id))
}

fn remove_rows(service: &EmbeddingService, is_unwanted: impl Fn(u32, u64) -> bool) -> Result<usize, ColdError> {
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
