//! The state of a server's moves: which one is announced, what is under way, and who waits for it.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use zagros_protocol::control::MoveRowsResponse;
use zagros_protocol::{Refusal, RefusalKind, ServerIndex};
use zagros_table::ColdError;

use super::PlannedMove;
use super::changed_rows::ChangedRows;
use super::outgoing_scan::TableScan;

/// What a server has to do with moves.
#[derive(Debug, Default)]
pub(crate) struct ServerMoves {
    pub(super) activity: Mutex<MoveActivity>,
    pub(super) announced: Mutex<Option<Arc<PlannedMove>>>,
    /// Notified when the placement is to be fetched at once.
    ask: Notify,
    /// Counts the changes of what is served.
    served: watch::Sender<u64>,
    /// Locked while rows of other servers' buckets are removed.
    pub(super) purging: Mutex<()>,
}

/// What a server does that nothing else of this list may happen beside.
#[derive(Debug, Default)]
pub(super) enum MoveActivity {
    #[default]
    None,
    Loading,
    Outgoing(Arc<OutgoingMove>),
    Incoming(Arc<PlannedMove>),
}

/// A load of saved rows. No move begins before it is dropped.
#[derive(Debug)]
pub(crate) struct LoadTurn<'a>(&'a ServerMoves);

impl ServerMoves {
    /// Waits until the placement is to be fetched at once.
    pub(crate) async fn wait_for_request(&self) {
        self.ask.notified().await;
    }

    /// Has the placement fetched at once.
    pub(crate) fn request_placement(&self) {
        self.ask.notify_one();
    }

    /// Changes of what is served, as a number that increases.
    pub(crate) fn subscribe_changes(&self) -> watch::Receiver<u64> {
        self.served.subscribe()
    }

    pub(crate) fn note_change(&self) {
        self.served.send_modify(|changes| *changes += 1);
    }

    /// Begins a load of saved rows: it changes rows of all buckets, and no copy would know.
    /// Refused as `Unavailable` while the server is the source or the target of a move.
    pub(crate) fn begin_load(&self, server: ServerIndex) -> Result<LoadTurn<'_>, Refusal> {
        let mut activity = self.activity.lock();
        if let Some(busy) = activity.describe_work() {
            let message = format!("embedding server {server} cannot load rows now: {busy}; try again");
            return Err(Refusal::new(RefusalKind::Unavailable, message));
        }
        *activity = MoveActivity::Loading;
        Ok(LoadTurn(self))
    }
}

impl MoveActivity {
    /// What is under way, for a person. `None` if nothing is.
    pub(super) fn describe_work(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Loading => Some("saved rows are being loaded".to_owned()),
            Self::Outgoing(outgoing) => Some(format!("{} is under way", outgoing.plan)),
            Self::Incoming(plan) => Some(format!("{plan} is under way")),
        }
    }
}

impl Drop for LoadTurn<'_> {
    fn drop(&mut self) {
        *self.0.activity.lock() = MoveActivity::None;
    }
}

#[derive(Debug)]
pub(super) struct OutgoingMove {
    pub(super) plan: Arc<PlannedMove>,
    pub(super) changed: Arc<ChangedRows>,
    pub(super) cursor: Mutex<CopyCursor>,
}

#[derive(Debug, Default)]
pub(super) struct CopyCursor {
    pub(super) number: u64,
    pub(super) last: Option<MoveRowsResponse>,
    /// The table that is read, and how far. Past the last table, every row was sent once.
    pub(super) table: u32,
    pub(super) scan: TableScan,
    /// Why the copy cannot go on.
    pub(super) failure: Option<ColdError>,
}
