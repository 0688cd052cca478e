//! The target of a move: it copies rows until few are left, has the source freeze, and reports once it has them all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::BoxFuture;
use tracing::{info, warn};
use zagros_plumbing::Deadline;
use zagros_protocol::control::{
    FreezeMoveResponse, MoveRowsResponse, MoveStage, MoveVerdict, MovedWindows, ReportMoveResponse,
};
use zagros_protocol::{Refusal, RefusalKind};

use super::adopt::remove_rows;
use super::incoming_rows::{put_chunk, put_windows};
use super::moves::MoveActivity;
use super::{PlannedMove, purge_strays};
use crate::EmbeddingService;

/// The source is frozen once at most so many rows are left.
const FEW_ROWS: u64 = 4096;
/// The source is frozen after so many chunks of changed rows, however many rows change meanwhile.
const MOST_CHUNKS: u32 = 200;
/// How often the target reports while it copies.
const REPORT: Duration = Duration::from_millis(500);
/// The pause before a call is tried again.
const PAUSE: Duration = Duration::from_millis(20);
/// What the message says of a part of the work that panics.
const COPY_ENDED: &str = "a copy of rows ended";

/// The source of a move, as its target calls it.
pub(crate) trait MoveSource: Send + Sync {
    fn begin_copy(&self) -> BoxFuture<'_, Result<(), Refusal>>;
    fn next_rows(&self, number: u64) -> BoxFuture<'_, Result<MoveRowsResponse, Refusal>>;
    fn freeze(&self) -> BoxFuture<'_, Result<FreezeMoveResponse, Refusal>>;
}

pub(crate) trait MoveReports: Send + Sync {
    /// Reports how far the copy is, or why it failed.
    fn report(
        &self,
        stage: MoveStage,
        progress: CopyProgress,
        reason: String,
    ) -> BoxFuture<'_, Result<ReportMoveResponse, Refusal>>;
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CopyProgress {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    pub(crate) frozen: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CopyEnd {
    /// The buckets are this server's, from this generation on.
    Committed(u64),
    /// The source keeps them. The reason.
    Abandoned(String),
}

struct BucketCopy<'a> {
    service: &'a Arc<EmbeddingService>,
    plan: &'a Arc<PlannedMove>,
    source: &'a dyn MoveSource,
    reports: &'a dyn MoveReports,
    progress: CopyProgress,
    number: u64,
    stage: MoveStage,
    reported: Instant,
}

enum CopyStop {
    Failed(String),
    Ended(CopyEnd),
}

impl From<Refusal> for CopyStop {
    fn from(refusal: Refusal) -> Self {
        Self::Failed(refusal.message)
    }
}

/// Copies the rows of a move, and asks until it is known what became of it. The copy of a move that failed is removed.
pub(crate) async fn copy_buckets(
    service: Arc<EmbeddingService>,
    plan: Arc<PlannedMove>,
    source: Arc<dyn MoveSource>,
    reports: Arc<dyn MoveReports>,
) -> CopyEnd {
    let (service, plan, source, reports) = (&service, &plan, source.as_ref(), reports.as_ref());
    let (progress, stage, reported) = (CopyProgress::default(), MoveStage::Copying, Instant::now());
    let mut copy = BucketCopy { service, plan, source, reports, progress, number: 0, stage, reported };
    let ended = match copy.run().await {
        Ok(end) | Err(CopyStop::Ended(end)) => end,
        Err(CopyStop::Failed(reason)) => copy.report_failure(reason).await,
    };
    match &ended {
        CopyEnd::Committed(generation) => {
            service.moves.request_placement();
            await_generation(service, *generation).await;
            let CopyProgress { rows, bytes, frozen } = copy.progress;
            info!(server = service.index.0, %plan, rows, bytes, frozen_seconds = frozen.as_secs_f64(), "buckets taken over");
        }
        CopyEnd::Abandoned(reason) => warn!(server = service.index.0, %plan, reason, "the move was abandoned"),
    }
    {
        let mut activity = service.moves.activity.lock();
        if matches!(&*activity, MoveActivity::Incoming(now) if Arc::ptr_eq(now, plan)) {
            *activity = MoveActivity::None;
        }
    }
    if matches!(ended, CopyEnd::Abandoned(_)) {
        let _ = service.run_blocking(COPY_ENDED, |service| Ok(purge_strays(service))).await;
    }
    ended
}

impl BucketCopy<'_> {
    async fn run(&mut self) -> Result<CopyEnd, CopyStop> {
        self.begin_at_source().await?;
        self.catch_up().await?;
        self.stage = MoveStage::CaughtUp;
        self.report().await?;
        let (since, frozen) = self.freeze().await?;
        while self.copy_chunk().await?.changed > 0 {}
        self.take_windows(frozen.groups).await?;
        self.progress.frozen = since.elapsed();
        self.stage = MoveStage::Copied;
        self.ask_until_decided().await
    }

    /// Clears what there is of the buckets, and has the source note changes.
    async fn begin_at_source(&mut self) -> Result<(), CopyStop> {
        let deadline = Deadline::from_now(self.service.timeout);
        let plan = Arc::clone(self.plan);
        loop {
            let plan = Arc::clone(&plan);
            match self.service.run_blocking(COPY_ENDED, move |service| become_target(service, &plan)).await {
                Ok(()) => break,
                Err(refusal) => self.retry_later(refusal, deadline).await?,
            }
        }
        self.report().await?;
        while let Err(refusal) = self.source.begin_copy().await {
            self.retry_later(refusal, deadline).await?;
        }
        Ok(())
    }

    async fn catch_up(&mut self) -> Result<(), CopyStop> {
        let mut rounds = 0;
        loop {
            let chunk = self.copy_chunk().await?;
            rounds += u32::from(chunk.scanned);
            if chunk.scanned && (chunk.changed <= FEW_ROWS || rounds > MOST_CHUNKS) {
                return Ok(());
            }
            self.report_if_due().await?;
        }
    }

    async fn freeze(&mut self) -> Result<(Instant, FreezeMoveResponse), CopyStop> {
        let deadline = Deadline::from_now(self.service.timeout);
        loop {
            let since = Instant::now();
            match self.source.freeze().await {
                Ok(frozen) => return Ok((since, frozen)),
                Err(refusal) => {
                    self.retry_later(refusal, deadline).await?;
                    self.copy_chunk().await?;
                    self.report_if_due().await?;
                }
            }
        }
    }

    async fn copy_chunk(&mut self) -> Result<MoveRowsResponse, CopyStop> {
        let deadline = Deadline::from_now(self.service.timeout);
        let chunk = loop {
            match self.source.next_rows(self.number).await {
                Ok(chunk) => break chunk,
                Err(refusal) => self.retry_later(refusal, deadline).await?,
            }
        };
        self.number += 1;
        self.progress.rows += (chunk.ids.len() / 8) as u64;
        self.progress.bytes += (chunk.ids.len() + chunk.slots.len() + chunk.access.len() + chunk.sketch.len()) as u64;
        let head = MoveRowsResponse { ids: Bytes::new(), slots: Bytes::new(), access: Bytes::new(), ..chunk.clone() };
        let chunk = Arc::new(chunk);
        loop {
            let (plan, chunk) = (Arc::clone(self.plan), Arc::clone(&chunk));
            match self.service.run_blocking(COPY_ENDED, move |service| put_chunk(service, &plan, &chunk)).await {
                Ok(()) => return Ok(head),
                Err(refusal) => self.retry_later(refusal, deadline).await?,
            }
        }
    }

    async fn take_windows(&self, groups: Vec<MovedWindows>) -> Result<(), CopyStop> {
        let plan = Arc::clone(self.plan);
        Ok(self.service.run_blocking(COPY_ENDED, move |service| put_windows(service, &plan, &groups)).await?)
    }

    /// Pauses before a call is made again, or gives up. The source may be another process, and the move over.
    async fn retry_later(&mut self, refusal: Refusal, deadline: Deadline) -> Result<(), CopyStop> {
        if !refusal.kind.is_retryable() || deadline.is_past() {
            return Err(refusal.into());
        }
        tokio::time::sleep(PAUSE).await;
        self.report_if_due().await
    }

    /// Reports now and then, and once the coordinator announces the move no more.
    async fn report_if_due(&mut self) -> Result<(), CopyStop> {
        let is_announced = self.service.moves.announced.lock().as_ref().is_some_and(|plan| plan.id == self.plan.id);
        if is_announced && self.reported.elapsed() < REPORT { Ok(()) } else { self.report().await }
    }

    /// Reports once. A report that is lost is followed by others.
    async fn report(&mut self) -> Result<(), CopyStop> {
        self.reported = Instant::now();
        let deadline = Deadline::from_now(self.service.timeout);
        self.ask_verdict("", Some(deadline)).await?.map_or(Ok(()), |end| Err(CopyStop::Ended(end)))
    }

    async fn report_failure(&mut self, reason: String) -> CopyEnd {
        self.stage = MoveStage::Failed;
        match self.ask_verdict(&reason, None).await {
            Ok(end) => end.unwrap_or(CopyEnd::Abandoned(reason)),
            // This process is no member any more. The next one has its slot, and asks for itself.
            Err(refusal) => CopyEnd::Abandoned(refusal.message),
        }
    }

    /// The source and this server now wait for the coordinator alone.
    async fn ask_until_decided(&mut self) -> Result<CopyEnd, CopyStop> {
        loop {
            if let Some(end) = self.ask_verdict("", None).await? {
                return Ok(end);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Reports until the coordinator answers, refuses for good, or the deadline is past.
    async fn ask_verdict(&self, reason: &str, deadline: Option<Deadline>) -> Result<Option<CopyEnd>, Refusal> {
        loop {
            match self.reports.report(self.stage, self.progress, reason.to_owned()).await {
                Ok(verdict) => return Ok(copy_end(&verdict)),
                Err(refusal) if refusal.kind.is_retryable() && deadline.is_none_or(|deadline| !deadline.is_past()) => {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(refusal) => return Err(refusal),
            }
        }
    }
}

fn copy_end(response: &ReportMoveResponse) -> Option<CopyEnd> {
    match response.verdict() {
        MoveVerdict::Committed => Some(CopyEnd::Committed(response.generation)),
        MoveVerdict::Abandoned => Some(CopyEnd::Abandoned(response.reason.clone())),
        MoveVerdict::Continue | MoveVerdict::Unspecified => None,
    }
}

/// Makes this server the target of a move, without a row of its buckets.
fn become_target(service: &EmbeddingService, plan: &Arc<PlannedMove>) -> Result<(), Refusal> {
    let unavailable =
        |why: String| Refusal::new(RefusalKind::Unavailable, format!("{plan} cannot begin at its target: {why}"));
    let _no_purge = service.moves.purging.lock();
    {
        let mut activity = service.moves.activity.lock();
        match &*activity {
            MoveActivity::None => {}
            MoveActivity::Incoming(now) if Arc::ptr_eq(now, plan) => {}
            other => return Err(unavailable(other.describe_work().unwrap_or_default())),
        }
        *activity = MoveActivity::Incoming(Arc::clone(plan));
    }
    // No purge is under way, and the move is the one that comes in.
    let cleared = remove_rows(service, |table, id| plan.has_row(table, id));
    // Else a process that comes back could find rows in its cold tier that another server has changed since.
    cleared.and_then(|_| service.tables.flush_cold()).map_err(|error| unavailable(error.to_string()))
}

/// Waits until this generation is served, for the job's timeout at most.
async fn await_generation(service: &EmbeddingService, generation: u64) {
    let mut changes = service.moves.subscribe_changes();
    let reached = || service.placement().is_ok_and(|placement| placement.generation().0 >= generation);
    let wait = async { while !reached() && changes.changed().await.is_ok() {} };
    let _ = Deadline::from_now(service.timeout).bound(wait).await;
}
