//! Leader election: of several operators, the one whose name is in a Lease leads.
//!
//! A follower counts from when it saw the lease change, so clocks need not agree. A leader that cannot renew its lease
//! stops before a follower may take over.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, error, info, warn};
use zagros_plumbing::Shutdown;

use crate::error::Error;
use crate::names::MANAGER;

/// How long a lease holds after a renewal.
const HOLDS: Duration = Duration::from_secs(15);
/// When a leader that cannot renew stops.
const GIVES_UP: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
enum LeaseState {
    Waits,
    Leads,
    Lost(Error),
}

/// The operator's side of its lease. A [`LeaseKeeper`] elsewhere takes the lease, renews it and gives it back.
#[derive(Debug)]
pub struct LeaseHandle {
    state: watch::Receiver<LeaseState>,
    stop: Shutdown,
}

/// What keeps the lease of an operator, for as long as the operator has its [`LeaseHandle`].
#[derive(Debug)]
pub struct LeaseKeeper {
    state: watch::Sender<LeaseState>,
    stop: Shutdown,
}

impl LeaseHandle {
    pub fn new() -> (Self, LeaseKeeper) {
        let (sender, state) = watch::channel(LeaseState::Waits);
        let stop = Shutdown::new();
        (Self { state, stop: stop.clone() }, LeaseKeeper { state: sender, stop })
    }

    /// The keeper has a thread, a runtime and a client of its own: no work of the operator delays a renewal.
    pub fn keep_apart<C>(candidate: C) -> std::io::Result<Self>
    where
        C: AsyncFnOnce() -> Result<LeaseCandidate, String> + Send + 'static,
    {
        let (handle, keeper) = Self::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let keep = async move || match candidate().await {
            Ok(candidate) => keeper.keep_lease(candidate).await,
            Err(error) => error!(lease = MANAGER, error, "the lease cannot be taken"),
        };
        std::thread::Builder::new().name("lease".to_owned()).spawn(move || runtime.block_on(keep()))?;
        Ok(handle)
    }

    pub async fn wait_until_leading(&mut self) -> Result<(), Error> {
        let leads = self.state.wait_for(|state| matches!(state, LeaseState::Leads)).await.map(|_| ());
        leads.map_err(|_| unkept())
    }

    pub async fn wait_until_lost(&mut self) -> Error {
        let lost = match self.state.wait_for(|state| matches!(state, LeaseState::Lost(_))).await.as_deref() {
            Ok(LeaseState::Lost(error)) => Some(error.clone()),
            _ => None,
        };
        lost.unwrap_or_else(unkept)
    }

    /// Gives the lease back, so that the next leader does not wait for it to expire.
    pub async fn give_back(mut self) {
        self.stop.request();
        // The other side is gone once it has.
        while self.state.changed().await.is_ok() {}
    }
}

fn unkept() -> Error {
    Error::LeaseLost { cause: "could not be renewed: nothing renews it; the log says why".to_owned() }
}

impl LeaseKeeper {
    pub async fn keep_lease(self, mut candidate: LeaseCandidate) {
        let held = async {
            candidate.take_lease().await;
            self.state.send_replace(LeaseState::Leads);
            candidate.renew_lease().await
        };
        tokio::select! {
            lost = held => {
                self.state.send_replace(LeaseState::Lost(lost));
            }
            () = self.stop.requested() => {
                if let Err(error) = candidate.give_back().await {
                    warn!(%error, "the lease was not given back: the next operator waits until it expires");
                }
            }
            // The operator was ended half-way. Its lease expires.
            () = self.state.closed() => {}
        }
    }
}

pub struct LeaseCandidate {
    leases: Api<Lease>,
    identity: String,
    seen: Option<ObservedLease>,
}

struct ObservedLease {
    version: Option<String>,
    since: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseHolder {
    Mine,
    Theirs(String),
}

impl LeaseCandidate {
    /// A candidate of this identity (its pod's name) for the lease of a namespace.
    pub fn new(client: Client, namespace: &str, identity: &str) -> Self {
        Self { leases: Api::namespaced(client, namespace), identity: identity.to_owned(), seen: None }
    }

    /// Waits until it leads. Retries failures: an operator that cannot reach Kubernetes has nothing else to do.
    pub async fn take_lease(&mut self) {
        let mut waits_for = String::new();
        loop {
            match self.try_once().await {
                Ok(LeaseHolder::Mine) => break,
                Ok(LeaseHolder::Theirs(holder)) if holder != waits_for => {
                    info!(lease = MANAGER, holder, "another operator leads; waiting");
                    waits_for = holder;
                }
                Ok(LeaseHolder::Theirs(_)) => {}
                Err(error) => warn!(%error, "the lease cannot be taken"),
            }
            tokio::time::sleep(PAUSE).await;
        }
        info!(lease = MANAGER, identity = self.identity, "this operator leads");
    }

    /// Renews the lease for as long as it can. Returns why it no longer leads.
    pub async fn renew_lease(&mut self) -> Error {
        let mut renewed = Instant::now();
        let mut cause = String::new();
        loop {
            tokio::time::sleep(PAUSE).await;
            let left = GIVES_UP.saturating_sub(renewed.elapsed());
            if left.is_zero() {
                let seconds = GIVES_UP.as_secs();
                return Error::LeaseLost {
                    cause: format!("could not be renewed for {seconds} s, last because: {cause}"),
                };
            }
            match tokio::time::timeout(left, self.try_once()).await {
                Ok(Ok(LeaseHolder::Mine)) => renewed = Instant::now(),
                Ok(Ok(LeaseHolder::Theirs(holder))) => {
                    let next = "this operator stops; once restarted, it waits for the lease";
                    return Error::LeaseLost { cause: format!("is held by {holder}: {next}") };
                }
                Ok(Err(error)) => cause = error.to_string(),
                Err(_) => cause = "no answer".to_owned(),
            }
        }
    }

    /// The next leader then does not wait for the lease to expire.
    pub async fn give_back(&mut self) -> Result<(), Error> {
        let Some(mut lease) = self.read().await? else { return Ok(()) };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() == Some(&self.identity) {
            spec.holder_identity = None;
            self.replace(&lease).await?;
            info!(lease = MANAGER, "lease given back");
        }
        Ok(())
    }

    /// Takes or renews the lease if it is free, its own, or has expired. It is no error if another operator was faster.
    pub async fn try_once(&mut self) -> Result<LeaseHolder, Error> {
        let Some(mut lease) = self.read().await? else {
            let fresh = Lease {
                metadata: ObjectMeta { name: Some(MANAGER.to_owned()), ..ObjectMeta::default() },
                spec: Some(self.taken(0)),
            };
            let created = self.leases.create(&PostParams::default(), &fresh).await;
            return self.won(created.map(|_| ()).map_err(Error::failed_to(format!("create Lease {MANAGER}"))));
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().filter(|holder| !holder.is_empty());
        if let Some(holder) = holder.filter(|holder| *holder != self.identity) {
            if !self.has_run_out(&lease) {
                return Ok(LeaseHolder::Theirs(holder));
            }
            info!(lease = MANAGER, holder, "the lease has expired");
        }
        let transitions = spec.lease_transitions.unwrap_or(0);
        let is_mine = spec.holder_identity.as_deref() == Some(&self.identity);
        let mut taken = self.taken(transitions + i32::from(!is_mine));
        if is_mine {
            taken.acquire_time = spec.acquire_time.or(taken.acquire_time);
        }
        lease.spec = Some(taken);
        let replaced = self.replace(&lease).await;
        self.won(replaced)
    }

    fn won(&self, result: Result<(), Error>) -> Result<LeaseHolder, Error> {
        match result {
            Ok(()) => Ok(LeaseHolder::Mine),
            Err(error) if error.is_conflict() => {
                debug!(%error, "another operator was faster");
                Ok(LeaseHolder::Theirs("another".to_owned()))
            }
            Err(error) => Err(error),
        }
    }

    fn has_run_out(&mut self, lease: &Lease) -> bool {
        let version = lease.metadata.resource_version.clone();
        match &self.seen {
            Some(seen) if seen.version == version => seen.since.elapsed() >= HOLDS,
            _ => {
                self.seen = Some(ObservedLease { version, since: Instant::now() });
                false
            }
        }
    }

    fn taken(&self, transitions: i32) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_duration_seconds: i32::try_from(HOLDS.as_secs()).ok(),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    async fn read(&self) -> Result<Option<Lease>, Error> {
        self.leases.get_opt(MANAGER).await.map_err(Error::failed_to(format!("read Lease {MANAGER}")))
    }

    /// Replaces the lease. Refused when another operator changed it since it was read.
    async fn replace(&self, lease: &Lease) -> Result<(), Error> {
        let replaced = self.leases.replace(MANAGER, &PostParams::default(), lease).await;
        replaced.map(|_| ()).map_err(Error::failed_to(format!("renew Lease {MANAGER}")))
    }
}
