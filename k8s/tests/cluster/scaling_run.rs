//! What a coordinator does with the number of its embedding servers: it admits more, moves buckets one after another while all
//! servers are there, and lets the servers go that own none any more.

use std::sync::{Arc, Mutex, MutexGuard};

use zagros_operator::crd::{Progress, ServerScaling};
use zagros_operator::scale::ask::CoordinatorScale;
use zagros_protocol::Refusal;
use zagros_transport::Credentials;

/// Buckets that have to move for another number.
const BUCKETS: i32 = 4;

/// A run whose number of servers changes.
#[derive(Clone, Default)]
pub(crate) struct ScalingRun(Arc<Mutex<State>>);

#[derive(Default)]
pub(crate) struct State {
    /// The numbers that it was asked for.
    pub(crate) asked: Vec<u32>,
    /// Why it refuses another number.
    pub(crate) refuses: Option<String>,
    /// Whether every call had the run's secret.
    pub(crate) is_proven: Option<bool>,
    /// Whether buckets move.
    pub(crate) is_stalled: bool,
    scaling: Option<ServerScaling>,
    /// Servers that own buckets.
    owners: i32,
}

impl ScalingRun {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// The number with which the run starts.
    pub(crate) fn start(&self, servers: i32) {
        *self.state() = State { owners: servers, ..State::default() };
    }

    /// Servers that own buckets.
    pub(crate) fn owners(&self) -> i32 {
        self.state().owners
    }

    pub(crate) fn scaler(&self) -> CoordinatorScale {
        let run = self.clone();
        Arc::new(move |_, credentials, servers| {
            let answer = run.scale(&credentials, servers);
            Box::pin(async move { answer })
        })
    }

    fn scale(&self, credentials: &Credentials, servers: u32) -> Result<(), Refusal> {
        let mut state = self.state();
        state.asked.push(servers);
        state.is_proven = Some(state.is_proven.unwrap_or(true) && credentials.is_checked());
        if let Some(why) = &state.refuses {
            return Err(Refusal::invalid(why.clone()));
        }
        let wanted = i32::try_from(servers).unwrap();
        let before = state.scaling.as_ref().map_or(state.owners, |scaling| scaling.servers);
        let buckets_left = if wanted == state.owners { 0 } else { BUCKETS };
        let text = format!("{buckets_left} buckets left");
        state.scaling = Some(ServerScaling { servers: before.max(wanted), wanted, buckets_left, text });
        Ok(())
    }

    /// A bucket moves if all servers are there. `ready` are those that are, by their index.
    pub(crate) fn advance(&self, ready: &[i32]) {
        let mut state = self.state();
        let (is_stalled, before) = (state.is_stalled, state.owners);
        let Some(scaling) = state.scaling.as_mut() else { return };
        let all = (0..scaling.servers).all(|index| ready.contains(&index));
        let mut owners = before;
        if scaling.buckets_left > 0 && all && !is_stalled {
            scaling.buckets_left -= 1;
            owners = before.max(scaling.wanted);
        }
        if scaling.buckets_left == 0 {
            (owners, scaling.servers) = (scaling.wanted, scaling.wanted);
        }
        scaling.text = format!("{} buckets left", scaling.buckets_left);
        state.owners = owners;
    }

    /// The coordinator's report with the change of the number.
    pub(crate) fn report(&self, progress: Option<Progress>) -> Option<Progress> {
        progress.map(|progress| Progress { scaling: self.state().scaling.clone(), ..progress })
    }
}
