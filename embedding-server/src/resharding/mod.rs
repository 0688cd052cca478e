//! Moves of buckets between embedding servers while the run trains (ADR 39): the parts of their source and their target.
//!
//! ```text
//! placement ─► announced move ─┬─► outgoing   source: notes which rows change, sends rows, freezes, thaws when the move is decided
//!                              └─► incoming   target: clears, copies, asks for the freeze, writes windows, reports
//! decided   ─► adopt           the map of the next generation, or the old one · the source removes the rows of its old buckets
//! ```
//!
//! A source that is frozen serves nothing until a placement says that the move is over. Both ends learn of a move from the
//! placement alone, so whatever calls are lost, they ask again.

mod adopt;
mod bucket_set;
mod changed_rows;
mod incoming;
mod outgoing;
mod outgoing_copy;
mod purge;
mod runner;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use zagros_protocol::{Refusal, RefusalKind, ServerIndex};

pub(crate) use adopt::{Adopted, adopt};
pub(crate) use bucket_set::PlannedMove;
pub(crate) use incoming::{CopyEnd, MoveReports, copy};
pub(crate) use outgoing::{OutgoingMove, begin, freeze, rows};
pub(crate) use purge::purge;
pub(crate) use runner::MoveRunner;
pub(crate) use wire::migration_service;

/// What a server has to do with moves.
#[derive(Debug)]
pub(crate) struct ServerMoves {
    activity: Mutex<MoveActivity>,
    /// The move that the coordinator announced last.
    announced: Mutex<Option<Arc<PlannedMove>>>,
    /// Notified when the placement is to be fetched at once.
    ask: Notify,
    /// Counts the changes of what is served.
    served: watch::Sender<u64>,
    /// Locked while rows of other servers' buckets are removed.
    purging: Mutex<()>,
}

/// What a server does that nothing else of this list may happen beside.
#[derive(Debug, Default)]
enum MoveActivity {
    #[default]
    None,
    /// Saved rows are loaded.
    Loading,
    /// It is the source of a move.
    Outgoing(Arc<OutgoingMove>),
    /// It is the target of a move.
    Incoming(Arc<PlannedMove>),
}

/// A load of saved rows. No move begins before it is dropped.
#[derive(Debug)]
pub(crate) struct LoadTurn<'a>(&'a ServerMoves);

impl Default for ServerMoves {
    fn default() -> Self {
        Self {
            activity: Mutex::default(),
            announced: Mutex::default(),
            ask: Notify::new(),
            served: watch::Sender::new(0),
            purging: Mutex::default(),
        }
    }
}

impl ServerMoves {
    /// Waits until the placement is to be fetched at once.
    pub(crate) async fn asked(&self) {
        self.ask.notified().await;
    }

    /// Has the placement fetched at once.
    pub(crate) fn ask(&self) {
        self.ask.notify_one();
    }

    /// Changes of what is served, as a number that increases.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.served.subscribe()
    }

    /// What is served has changed.
    pub(crate) fn note_change(&self) {
        self.served.send_modify(|changes| *changes += 1);
    }

    /// Begins a load of saved rows: it changes rows of all buckets, and no copy would know.
    ///
    /// # Errors
    /// `Unavailable` while the server is the source or the target of a move.
    pub(crate) fn begin_load(&self, server: ServerIndex) -> Result<LoadTurn<'_>, Refusal> {
        let mut activity = self.activity.lock();
        if let Some(busy) = activity.words() {
            let message = format!("embedding server {server} cannot load rows now: {busy}; try again");
            return Err(Refusal::new(RefusalKind::Unavailable, message));
        }
        *activity = MoveActivity::Loading;
        Ok(LoadTurn(self))
    }
}

impl MoveActivity {
    /// What is under way, for a person. `None` if nothing is.
    fn words(&self) -> Option<String> {
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
