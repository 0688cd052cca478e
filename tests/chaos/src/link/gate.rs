//! What a link does with bytes at the moment.

use std::time::Duration;

use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    Open,
    /// Each part waits so long. A part has at most 64 KiB.
    Slow(Duration),
    /// No byte passes, and no connection ends: a partition, or a peer that is half-open. The bytes arrive afterwards.
    Partitioned,
    /// Connections with a lower number are broken.
    Broken {
        before: u64,
    },
    /// As `Broken`. But what the caller had sent until then arrives afterwards, when its repeated request has long been answered.
    Late {
        before: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakKind {
    AtOnce,
    Late,
}

/// The state of the link as one connection sees it.
#[derive(Clone, Debug)]
pub(crate) struct LinkGate {
    number: u64,
    state: watch::Receiver<LinkState>,
}

impl LinkGate {
    pub(crate) fn new(number: u64, state: watch::Receiver<LinkState>) -> Self {
        Self { number, state }
    }

    /// Waits until a part may pass. A link that is gone lets everything pass.
    pub(crate) async fn pass(&mut self) {
        let has_no_partition = |state: &LinkState| *state != LinkState::Partitioned;
        let state = self.state.wait_for(has_no_partition).await.map_or(LinkState::Open, |state| *state);
        if let LinkState::Slow(delay) = state {
            tokio::time::sleep(delay).await;
        }
    }

    /// Waits until this connection is to be broken. Never answers if it is not.
    pub(crate) async fn broken(&mut self) -> BreakKind {
        let number = self.number;
        let kind = |state: &LinkState| match *state {
            LinkState::Broken { before } if number < before => Some(BreakKind::AtOnce),
            LinkState::Late { before } if number < before => Some(BreakKind::Late),
            _ => None,
        };
        let found = self.state.wait_for(|state| kind(state).is_some()).await.ok().and_then(|state| kind(&state));
        match found {
            Some(kind) => kind,
            None => std::future::pending().await,
        }
    }

    /// Waits until late bytes may arrive.
    pub(crate) async fn late_is_over(&mut self) {
        let is_over = |state: &LinkState| !matches!(state, LinkState::Late { .. });
        let _ = self.state.wait_for(is_over).await;
    }
}
