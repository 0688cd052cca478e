//! Whether the tables hold a whole model. A load that failed or died half-way leaves a part of one, which the server refuses to use.
//!
//! ```text
//!           a load starts                       it fails, or its process ends
//! Whole ────────────────────► Loading ────────────────────────────────────────► Partial: lookups, pushes and saves are refused
//!   ▲                            │                                                 │
//!   └──── all rows are there ────┘◄────────────────── another load starts ─────────┘
//! ```

use parking_lot::RwLock;
use zagros_protocol::{Refusal, RefusalKind, ServerIndex};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LoadPhase {
    #[default]
    Whole,
    Loading,
    Partial,
}

/// What the tables held when a load started.
#[derive(Debug)]
pub(crate) struct BeforeLoad(LoadPhase);

#[derive(Debug, Default)]
pub(crate) struct LoadState(RwLock<LoadPhase>);

impl LoadState {
    /// The tables of a new process, which has recovered a part of a model or not.
    pub(super) fn from_recovery(is_partial: bool) -> Self {
        Self(RwLock::new(if is_partial { LoadPhase::Partial } else { LoadPhase::Whole }))
    }

    /// Whether requests may use the tables.
    /// The refusal is `Storage`: waiting does not help.
    pub(crate) fn check_whole(&self, server: ServerIndex) -> Result<(), Refusal> {
        match *self.0.read() {
            LoadPhase::Whole | LoadPhase::Loading => Ok(()),
            LoadPhase::Partial => Err(Refusal::new(
                RefusalKind::Storage,
                format!(
                    "embedding server {server} holds a part of a model: a load did not end; load the model again, or start the run \
                     again from its newest checkpoint"
                ),
            )),
        }
    }

    /// A load starts. `started` notes it in the log, in one step with the change of state. Answers what was before.
    pub(crate) fn start_load(&self, started: impl FnOnce()) -> BeforeLoad {
        let mut phase = self.0.write();
        started();
        BeforeLoad(std::mem::replace(&mut *phase, LoadPhase::Loading))
    }

    /// The load ended before it changed anything. `completed` notes it in the log, unless a part of a model is there as before.
    pub(crate) fn undo_load(&self, before: BeforeLoad, completed: impl FnOnce()) {
        match before.0 {
            LoadPhase::Partial => self.fail_load(),
            LoadPhase::Whole | LoadPhase::Loading => self.complete_load(completed),
        }
    }

    /// All rows are there. `completed` notes it in the log, in one step with the change of state.
    pub(crate) fn complete_load(&self, completed: impl FnOnce()) {
        let mut phase = self.0.write();
        *phase = LoadPhase::Whole;
        completed();
    }

    pub(crate) fn fail_load(&self) {
        *self.0.write() = LoadPhase::Partial;
    }

    /// Does `work` with whether the log has the start of a load and not its end. The state does not change meanwhile.
    pub(super) fn with_open_load<T>(&self, work: impl FnOnce(bool) -> T) -> T {
        let phase = self.0.read();
        work(*phase != LoadPhase::Whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: ServerIndex = ServerIndex(3);

    #[test]
    fn a_part_of_a_model_serves_nobody_until_it_is_replaced() {
        let state = LoadState::from_recovery(true);
        let refused = state.check_whole(SERVER).unwrap_err();
        assert!(refused.message.starts_with("embedding server 3 holds a part of a model"));
        assert!(!refused.kind.is_retryable());
        let before_load = state.start_load(|| ());
        state.undo_load(before_load, || panic!("a part is there as before"));
        assert_eq!(state.check_whole(SERVER), Err(refused));
        state.start_load(|| ());
        assert_eq!(state.check_whole(SERVER), Ok(()));
        assert!(state.with_open_load(|open| open));
        state.fail_load();
        assert!(state.check_whole(SERVER).is_err() && state.with_open_load(|open| open));
        state.start_load(|| ());
        state.complete_load(|| ());
        assert!(!state.with_open_load(|open| open));
        let before_load = state.start_load(|| ());
        state.undo_load(before_load, || ());
        assert!(state.check_whole(SERVER).is_ok() && !state.with_open_load(|open| open));
    }
}
