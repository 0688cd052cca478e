//! What a coordinator does with the numbers of its members: it admits more, moves buckets one after another while all
//! servers are there, and lets the servers go that own none. A worker trains while its pod is ready.

use std::sync::{Arc, Mutex, MutexGuard};

use zagros_operator::crd::{RunProgress, ServerScaling};
use zagros_operator::probe::CoordinatorScale;
use zagros_protocol::Refusal;
use zagros_protocol::control::ScaleRequest;
use zagros_transport::Credentials;

/// Workers with which a run of these tests starts.
const STARTED: i32 = 2;
/// Buckets that have to move for another number.
const BUCKETS: i32 = 4;

#[derive(Clone, Default)]
pub(crate) struct ScalingRun(Arc<Mutex<ScalingState>>);

#[derive(Default)]
pub(crate) struct ScalingState {
    pub(crate) asked: Vec<u32>,
    pub(crate) asked_workers: Vec<u32>,
    pub(crate) refuses: Option<String>,
    /// Whether every call had the run's secret.
    pub(crate) is_proven: Option<bool>,
    pub(crate) is_stalled: bool,
    scaling: Option<ServerScaling>,
    /// Servers that own buckets.
    pub(crate) owners: i32,
}

impl ScalingRun {
    pub(crate) fn state(&self) -> MutexGuard<'_, ScalingState> {
        self.0.lock().unwrap()
    }

    pub(crate) fn start(&self, servers: i32) {
        *self.state() = ScalingState { owners: servers, ..ScalingState::default() };
    }

    pub(crate) fn scaler(&self) -> CoordinatorScale {
        let run = self.clone();
        Arc::new(move |_, credentials, wanted| {
            let answer = run.scale(&credentials, wanted);
            Box::pin(async move { answer })
        })
    }

    pub(crate) fn scale(&self, credentials: &Credentials, request: ScaleRequest) -> Result<(), Refusal> {
        let mut state = self.state();
        state.asked.extend((request.servers > 0).then_some(request.servers));
        state.asked_workers.extend((request.workers > 0).then_some(request.workers));
        state.is_proven = Some(state.is_proven.unwrap_or(true) && credentials.is_checked());
        if let Some(why) = &state.refuses {
            return Err(Refusal::invalid(why.clone()));
        }
        let owners = state.owners;
        let unchanged = || ServerScaling { servers: owners, wanted: owners, ..ServerScaling::default() };
        let mut scaling = state.scaling.clone().unwrap_or_else(unchanged);
        if request.servers > 0 {
            scaling.wanted = i32::try_from(request.servers).unwrap();
            scaling.servers = scaling.servers.max(scaling.wanted);
            scaling.buckets_left = if scaling.wanted == owners { 0 } else { BUCKETS };
        }
        if request.workers > 0 {
            // Those that leave train until then, and new ones have not joined.
            scaling.workers = if scaling.workers_wanted == 0 { STARTED } else { scaling.workers };
            scaling.workers_wanted = i32::try_from(request.workers).unwrap();
        }
        scaling.text = format!("{} buckets left", scaling.buckets_left);
        state.scaling = Some(scaling);
        Ok(())
    }

    /// A bucket moves if all servers are there. `ready` are those that are, by their index; `workers` is how many workers train.
    pub(crate) fn advance(&self, ready: &[i32], workers: i32) {
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
        if scaling.workers_wanted > 0 {
            scaling.workers = workers;
        }
        scaling.text = format!("{} buckets left", scaling.buckets_left);
        state.owners = owners;
    }

    /// The coordinator's report with the change of the number.
    pub(crate) fn report(&self, progress: Option<RunProgress>) -> Option<RunProgress> {
        progress.map(|progress| RunProgress { scaling: self.state().scaling.clone(), ..progress })
    }
}
