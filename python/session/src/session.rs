//! A session: membership in a run, and the way of batches through the staleness window.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio_util::task::AbortOnDropHandle;
use zagros_coordinator_client::{ControlPlane, GrpcControlPlane, Membership};
use zagros_embedding_client::{
    BatchRows, ClientConfig, Connect, Deduplicator, EmbeddingClient, FeatureIds, GrpcShard, RoutedIds, StalenessWindow,
    UniqueIds,
};
use zagros_job::{Job, WireFormat};
use zagros_plumbing::{Deadline, Shutdown};
use zagros_protocol::TableId;
use zagros_protocol::control::{DataFile, JoinRequest, MemberStatus, Outcome, Role, StatusRequest};
use zagros_protocol::datapath::{Access, Encoding};
use zagros_transport::{Credentials, RoleKey};
use zagros_zip::ZipEq;

use crate::batch::{BatchAccess, LookupAnswer, LookupBatch, WindowPlace, sum_gradients};
use crate::link::{RunLink, StepPart};
use crate::{Look, SessionError, wait_for_work};

const THREADS: usize = 2;
/// While nothing is on its way, another thread may be between a lookup and its push.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionTable {
    pub name: String,
    pub dim: usize,
}

#[derive(Clone)]
pub struct RunReach {
    pub control: Arc<dyn ControlPlane>,
    pub connect: Connect,
}

impl RunReach {
    /// The coordinator's `host:port`, and the run's secret if it has one.
    pub fn over_grpc(coordinator: &str, secret: Option<&str>, timeout: Duration) -> Result<Self, SessionError> {
        let wrong = |what: &str, reason: &dyn std::fmt::Display| SessionError::Address {
            what: what.to_owned(),
            reason: reason.to_string(),
        };
        let key = secret.map(RoleKey::parse).transpose().map_err(|error| wrong("the run", &error))?;
        let credentials = key.map_or(Credentials::Open, Credentials::Secret);
        let control = GrpcControlPlane::connect(coordinator, timeout, &credentials);
        let control = Arc::new(control.map_err(|error| wrong(coordinator, &error))?);
        Ok(Self { control, connect: Arc::new(move |entry| GrpcShard::connect(entry, timeout, &credentials)) })
    }
}

/// A worker of a run whose network is not Zagros'.
pub struct Session {
    /// The process that made it.
    owner: u32,
    pub(crate) rank: u32,
    /// Never dropped in a child of `fork`: its threads are not there, and waiting for them would hang.
    pub(crate) runtime: ManuallyDrop<Runtime>,
    pub(crate) link: Arc<RunLink>,
    tables: Vec<SessionTable>,
    window: StalenessWindow,
    step_place: Arc<tokio::sync::Mutex<Option<WindowPlace>>>,
    deduplicator: Mutex<Deduplicator>,
    /// The part that this worker's batch has of a step.
    share: f32,
    pub(crate) timeout: Duration,
}

impl Session {
    /// Joins the run as the dense worker at position `rank`, and waits until all servers are there. `reach` is called
    /// inside of the session's runtime.
    pub fn start(
        job: &Job,
        rank: u32,
        reach: impl FnOnce() -> Result<RunReach, SessionError>,
        look: Look<'_>,
    ) -> Result<Self, SessionError> {
        let runtime = Builder::new_multi_thread().worker_threads(THREADS).thread_name("zagros").enable_all().build();
        let runtime = runtime.map_err(|error| SessionError::Task(error.to_string()))?;
        let timeout = job.cluster.timeout;
        let joined = async { join(job, rank, reach()?).await };
        let link = wait_for_work(&runtime, "for the coordinator and its servers", 3 * timeout, look, joined)??;
        Ok(Self {
            owner: std::process::id(),
            rank,
            runtime: ManuallyDrop::new(runtime),
            link: Arc::new(link),
            tables: job.tables.iter().map(|table| SessionTable { name: table.name.clone(), dim: table.dim }).collect(),
            window: StalenessWindow::new(job.train.staleness),
            step_place: Arc::default(),
            deduplicator: Mutex::default(),
            share: 1.0 / job.cluster.workers as f32,
            timeout,
        })
    }

    /// The tables, by whose positions features name theirs.
    pub fn tables(&self) -> &[SessionTable] {
        &self.tables
    }

    /// Returns at once. `features` are pairs of a table's position and ids, with repetitions. A batch for training
    /// waits for its place in the window, in the order of these calls.
    pub fn look_up(&self, features: &[(usize, &[u64])], access: BatchAccess) -> Result<LookupBatch, SessionError> {
        self.check_usable()?;
        if access != BatchAccess::Read {
            self.link.check_not_draining()?;
        }
        let features: Result<Vec<FeatureIds<'_>>, _> =
            features.iter().map(|(table, ids)| self.feature(*table, ids)).collect();
        let features = features?;
        let (unique, inverse) = self.deduplicator.lock().unwrap_or_else(PoisonError::into_inner).dedup_batch(&features);
        let ids = Arc::new(RoutedIds::from(unique));
        let has_place = Arc::new(AtomicBool::new(access == BatchAccess::Read));
        let (window, step_place) = (self.window.clone(), Arc::clone(&self.step_place));
        let (link, routed, is_inside) = (Arc::clone(&self.link), Arc::clone(&ids), Arc::clone(&has_place));
        let asked = AbortOnDropHandle::new(self.runtime.spawn(async move {
            let place = enter_window(&window, &step_place, access).await;
            is_inside.store(true, Ordering::Release);
            let access = if place.is_some() { Access::Train } else { Access::Read };
            link.client.lookup(&routed, access).await.map(|rows| LookupAnswer { rows, place })
        }));
        Ok(LookupBatch::new(ids, inverse, has_place, asked))
    }

    /// One row for each distinct id. After an error the batch is over.
    pub fn wait_for_rows(&self, batch: &LookupBatch, look: Look<'_>) -> Result<BatchRows, SessionError> {
        self.check_usable()?;
        let asked = batch.take_asked()?;
        let started = Deadline::from_now(PATIENCE);
        let look: Look<'_> = &|| {
            // The end of the run first: servers end after it, and `look` may find them gone.
            self.check_usable()?;
            look()?;
            let is_stuck = !batch.has_place() && self.link.pushes_in_flight() == 0 && started.is_past();
            let inside = self.window.batch_count();
            if is_stuck && inside > 0 { Err(SessionError::WindowFull { inside }) } else { Ok(()) }
        };
        let answer = wait_for_work(&self.runtime, "for rows", 3 * self.timeout, look, asked)?;
        let answer = answer.map_err(|error| SessionError::Task(error.to_string()))??;
        batch.set_answered(answer.place);
        Ok(answer.rows)
    }

    /// Pushes gradients in the background, as one push: of one batch, or the sums of those of several batches of a
    /// step. Each has one row for each row of its lookup, or none for a table whose rows get no gradient. `step` is the
    /// number of the step, the same on all workers.
    ///
    /// Each of n workers gives the gradients of the mean loss of its own batch, as PyTorch's DDP does. A row takes the
    /// sum of what the workers push in a step as one update, each weighted by 1/n (invariant RK-1).
    ///
    /// On an error, nothing is pushed.
    pub fn push(&self, mut batches: Vec<(&LookupBatch, BatchRows)>, step: u64) -> Result<(), SessionError> {
        self.check_usable()?;
        let mut places = Vec::with_capacity(batches.len());
        let mut are_whole = true;
        for (batch, gradients) in &batches {
            are_whole &= check_shape(batch.unique_ids(), gradients)?;
            places.push(batch.take_place()?);
        }
        let (ids, mut gradients) = match batches.len() {
            0 => return Ok(()),
            1 if are_whole => {
                let (batch, gradients) = batches.remove(0);
                (Arc::clone(batch.unique_ids()), gradients)
            }
            _ => {
                let parts: Vec<(&UniqueIds, BatchRows)> =
                    batches.into_iter().map(|(batch, gradients)| (&***batch.unique_ids(), gradients)).collect();
                let (unique, sums) = sum_gradients(&parts);
                (Arc::new(RoutedIds::from(unique)), sums)
            }
        };
        if self.share < 1.0 {
            gradients.tables.iter_mut().flatten().for_each(|value| *value *= self.share);
        }
        let part = StepPart { step, share: self.share };
        let (link, seq) = (Arc::clone(&self.link), self.link.announce_push());
        self.runtime.spawn(async move { link.push(seq, part, &ids, gradients, places).await });
        Ok(())
    }

    /// The step that was being accumulated is over: the next batch takes a place of its own.
    pub fn end_step(&self) {
        let place = Arc::clone(&self.step_place);
        // A lookup that holds the lock waits for the window: its batch belongs to the next step.
        if let Ok(mut place) = place.try_lock() {
            *place = None;
        }
    }

    /// Batches between lookup and acknowledgement, and pushes on their way.
    pub fn in_flight(&self) -> (usize, usize) {
        (self.window.batch_count(), self.link.pushes_in_flight())
    }

    /// Waits until every push is acknowledged or has failed.
    pub fn wait_for_pushes(&self, look: Look<'_>) -> Result<(), SessionError> {
        if !self.is_owner() {
            return Err(SessionError::Forked);
        }
        let work = self.link.wait_for_pushes();
        wait_for_work(&self.runtime, "for acknowledgements of pushes", 2 * self.timeout, look, work)
    }

    /// Once the rows that miss its gradients were replaced. Another failure stays: a push without an answer may still
    /// arrive.
    pub fn forget_refused_push(&self) {
        self.link.forget_refusal();
    }

    /// Waits until every push is acknowledged. Fails when one failed, or `look` ends the wait.
    pub fn flush(&self, look: Look<'_>) -> Result<(), SessionError> {
        self.check_usable()?;
        // A worker that knows why this push cannot succeed has ended the run.
        let look: Look<'_> = &|| self.check_usable().and_then(|()| look());
        self.wait_for_pushes(look)?;
        self.check_usable()
    }

    /// Fails when this is not the process that made it, a push failed, or the run goes on or ends without this process.
    pub fn check_usable(&self) -> Result<(), SessionError> {
        if !self.is_owner() {
            return Err(SessionError::Forked);
        }
        self.link.check_open()
    }

    pub(crate) fn is_owner(&self) -> bool {
        self.owner == std::process::id()
    }

    fn feature<'a>(&self, table: usize, ids: &'a [u64]) -> Result<FeatureIds<'a>, SessionError> {
        let found = self.tables.get(table).ok_or(SessionError::NoTable(table, self.tables.len()))?;
        Ok(FeatureIds { table: TableId(table as u32), dim: found.dim as u32, ids })
    }
}

impl Drop for Session {
    #[expect(unsafe_code, reason = "a child of fork must not wait for its parent's threads")]
    fn drop(&mut self) {
        if self.is_owner() {
            // SAFETY: this is the only place that takes the runtime, and nothing uses it after a drop.
            let runtime = unsafe { ManuallyDrop::take(&mut self.runtime) };
            runtime.shutdown_background();
        }
    }
}

/// Whether each row has a gradient; tables may have none.
fn check_shape(ids: &UniqueIds, gradients: &BatchRows) -> Result<bool, SessionError> {
    let expected: Vec<usize> = ids.tables.iter().map(|table| table.result_rows() * table.dim as usize).collect();
    let found: Vec<usize> = gradients.tables.iter().map(Vec::len).collect();
    let fits = found.len() == expected.len()
        && found.iter().zip_eq(&expected).all(|(found, expected)| *found == 0 || found == expected);
    if fits { Ok(found == expected) } else { Err(SessionError::Shape { expected, found }) }
}

/// The place of a batch in the window, unless it is only read.
async fn enter_window(
    window: &StalenessWindow,
    step_place: &tokio::sync::Mutex<Option<WindowPlace>>,
    access: BatchAccess,
) -> Option<WindowPlace> {
    match access {
        BatchAccess::Read => None,
        BatchAccess::Train => Some(Arc::new(window.acquire_permit().await)),
        BatchAccess::Accumulate => {
            let mut place = step_place.lock().await;
            if place.is_none() {
                *place = Some(Arc::new(window.acquire_permit().await));
            }
            place.clone()
        }
    }
}

async fn join(job: &Job, rank: u32, reach: RunReach) -> Result<RunLink, SessionError> {
    // The worker of a run brings its files. This one reads what the coordinator never hears of.
    let own =
        DataFile { path: "(read by a program of its own)".to_owned(), bytes: 1, splittable: false, fingerprint: 0 };
    let request = JoinRequest {
        role: Role::DenseWorker.into(),
        index: rank,
        instance: rand::random(),
        job_fingerprint: job.fingerprint(),
        files: vec![own],
        ..JoinRequest::default()
    };
    let timeout = job.cluster.timeout;
    let membership = Membership::join(Arc::clone(&reach.control), request, timeout, &Shutdown::new()).await?;
    let config = ClientConfig {
        writer: membership.member_id(),
        incarnation: membership.incarnation(),
        wire: match job.cluster.wire {
            WireFormat::F32 => Encoding::F32,
            WireFormat::F16 => Encoding::F16,
            WireFormat::Bf16 => Encoding::Bf16,
        },
        timeout,
    };
    let client = EmbeddingClient::new(config, Arc::clone(&reach.control), reach.connect);
    client.refresh_placement().await?;
    Ok(RunLink::new(client, membership, reach.control))
}

/// Between two looks at the other workers.
const PAUSE: Duration = Duration::from_millis(20);

impl Session {
    /// The run ends well once all its workers have left with their work done. It fails if one has failed: every other worker learns
    /// the reason, and nothing is waited for. Without a failure all pushes are waited for. A second call does nothing.
    ///
    /// On an error, this process has left either way.
    pub fn close(&self, failure: Option<&str>, look: Look<'_>) -> Result<(), SessionError> {
        if !self.is_owner() {
            return Ok(());
        }
        let flushed = if failure.is_none() { self.flush(look) } else { self.check_usable() };
        if !self.link.close(failure) {
            return Ok(());
        }
        let (outcome, reason) = match (failure, &flushed) {
            (None, Ok(())) => (Outcome::Finished, String::new()),
            (None, Err(error)) => (Outcome::Failed, error.to_string()),
            (Some(reason), _) => (Outcome::Failed, reason.to_owned()),
        };
        let left = self.link.membership.leave(outcome, &reason);
        let left = wait_for_work(&self.runtime, "to leave the run", 2 * self.timeout, look, left)?;
        if failure.is_none() { flushed.and_then(|()| left.map_err(SessionError::from)) } else { Ok(()) }
    }

    /// Each other worker has left, or was silent for its lease. Who has started the servers calls this before they end.
    pub fn wait_for_other_workers(&self, look: Look<'_>) -> Result<(), SessionError> {
        let is_other = |member: &MemberStatus| {
            member.role == i32::from(Role::DenseWorker) && member.index != self.rank && member.state == "alive"
        };
        let gone = async {
            // A coordinator that does not answer has ended.
            while let Ok(status) = self.link.control.status(StatusRequest {}).await {
                if status.state != "training" || !status.members.iter().any(is_other) {
                    break;
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        wait_for_work(&self.runtime, "for the other workers to leave the run", self.timeout, look, gone)
    }
}
