//! The coordinator's core with a journal: each input is written before it takes effect, and another process replays them.

use std::time::Duration;

use zagros_coordinator_core::{Core, CoreConfig, CoreInput, Role, RunOutcome};
use zagros_protocol::PROTOCOL_VERSION;
use zagros_protocol::control::{JoinRequest, PlacementResponse};

/// What every process says when it joins.
pub(crate) fn join_request(role: Role, index: usize, instance: u64) -> JoinRequest {
    JoinRequest {
        role: role.to_wire(),
        index: index as u32,
        address: format!("host:{instance}"),
        instance,
        job_fingerprint: 1,
        protocol_version: PROTOCOL_VERSION,
        ..JoinRequest::default()
    }
}

pub(crate) struct JournaledCoordinator {
    config: CoreConfig,
    journal: Vec<(Duration, CoreInput)>,
    /// `None` while there is no process.
    core: Option<Core>,
}

impl JournaledCoordinator {
    pub(crate) fn new(config: CoreConfig) -> Self {
        Self { core: Some(Core::new(config.clone())), config, journal: Vec::new() }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.core.is_some()
    }

    pub(crate) fn kill(&mut self) {
        self.core = None;
    }

    /// Another process takes over by the journal.
    pub(crate) fn restart(&mut self, now: Duration) {
        let mut core = Core::new(self.config.clone());
        self.journal.iter().for_each(|(at, input)| input.replay(&mut core, *at));
        self.core = Some(core);
        self.take(now, CoreInput::Recover, |core| core.recover(now));
    }

    /// `None` while there is no process.
    pub(crate) fn take<A>(&mut self, now: Duration, input: CoreInput, call: impl FnOnce(&mut Core) -> A) -> Option<A> {
        let core = self.core.as_mut()?;
        self.journal.push((now, input));
        let answer = call(core);
        core.take_events();
        Some(answer)
    }

    /// A repetition of a request that was on its way for long. No caller waits for its answer.
    pub(crate) fn take_late(&mut self, now: Duration, input: CoreInput) {
        self.take(now, input.clone(), |core| input.replay(core, now));
    }

    pub(crate) fn placement(&mut self, now: Duration) -> Option<PlacementResponse> {
        self.take(now, CoreInput::Tick, |core| core.placement(now))
    }

    pub(crate) fn outcome(&self) -> Option<RunOutcome> {
        self.core.as_ref()?.outcome().cloned()
    }
}
