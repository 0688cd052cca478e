//! Taking over the log of a lost server that nobody replaces: this process serves its rows in its place, as a member of the run of
//! its own (ADR 54). Recovery, windows of pushes and moves of buckets are those of any server that comes back with its log.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{info, warn};
use zagros_job::Job;
use zagros_protocol::control::LostLog;
use zagros_protocol::{Lineage, ServerIndex};

use crate::durability::check_free;

/// The pause before a log is looked at again.
const PAUSE: Duration = Duration::from_secs(5);

/// Serves in the place of a lost server until that is over, and says how it ended.
pub(crate) type ServeTaken = Box<dyn Fn(TakenServer) -> BoxFuture<'static, ()> + Send + Sync>;

/// Whose rows a server serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerRows {
    /// Those of its own log, if it has one.
    Own,
    /// Those of a lost server, whose log this process takes over.
    Taken {
        /// Which rows these are.
        lineage: Lineage,
        /// The instance of this process.
        host: u64,
    },
}

/// A server in the place of a lost one, before it starts.
pub(crate) struct TakenServer {
    /// The index of the lost server.
    pub(crate) index: ServerIndex,
    pub(crate) rows: ServerRows,
    /// Where it listens.
    pub(crate) listener: TcpListener,
    /// `host:port` where workers reach it.
    pub(crate) advertised: String,
}

/// The process that takes over.
pub(crate) struct TakeoverHost {
    pub(crate) job: Arc<Job>,
    /// Where it listens.
    pub(crate) bind: IpAddr,
    /// `host:port` where workers reach it.
    pub(crate) advertised: String,
    /// Tells it from others.
    pub(crate) instance: u64,
    pub(crate) serve: ServeTaken,
}

/// The lost servers in whose place this process serves, or tries to.
pub(crate) struct Takeovers {
    host: TakeoverHost,
    attempts: Mutex<BTreeMap<u32, Attempt>>,
}

struct Attempt {
    began: Instant,
    task: JoinHandle<()>,
}

impl Takeovers {
    pub(crate) fn new(host: TakeoverHost) -> Self {
        Self { host, attempts: Mutex::default() }
    }

    /// Tries to take over logs. The same list again changes nothing.
    pub(crate) fn follow(this: &Arc<Self>, lost: &[LostLog]) {
        let mut attempts = this.attempts.lock();
        for log in lost {
            let is_new = attempts
                .get(&log.index)
                .is_none_or(|before| before.task.is_finished() && before.began.elapsed() >= PAUSE);
            if is_new {
                let task = tokio::spawn(Arc::clone(this).take_over(*log));
                attempts.insert(log.index, Attempt { began: Instant::now(), task });
            }
        }
    }

    /// Waits until this process serves in nobody's place any more. If the server whose process this is has failed, the others end
    /// with it: their rows are in their logs.
    pub(crate) async fn finish(&self, is_well: bool) {
        let attempts = std::mem::take(&mut *self.attempts.lock());
        for Attempt { task, .. } in attempts.into_values() {
            if !is_well {
                task.abort();
            }
            let _ = task.await;
        }
    }

    async fn take_over(self: Arc<Self>, log: LostLog) {
        let (lost, lineage) = (ServerIndex(log.index), Lineage(log.lineage));
        let job = Arc::clone(&self.host.job);
        let looked_at = tokio::task::spawn_blocking(move || check_free(&job, lost, lineage)).await;
        if let Err(why) = looked_at.unwrap_or_else(|error| Err(error.to_string())) {
            return warn!(
                lost = lost.0,
                why, "the log of a lost embedding server cannot be taken over by this process"
            );
        }
        match self.listen().await {
            Ok((listener, advertised)) => {
                info!(lost = lost.0, address = advertised, "takes over the log of a lost embedding server");
                let rows = ServerRows::Taken { lineage, host: self.host.instance };
                (self.host.serve)(TakenServer { index: lost, rows, listener, advertised }).await;
            }
            Err(error) => warn!(lost = lost.0, %error, "no port to serve in the place of a lost embedding server"),
        }
    }

    async fn listen(&self) -> io::Result<(TcpListener, String)> {
        let listener = TcpListener::bind((self.host.bind, 0)).await?;
        let own = &self.host.advertised;
        let name = own.rsplit_once(':').map_or(own.as_str(), |(name, _)| name);
        let advertised = format!("{name}:{}", listener.local_addr()?.port());
        Ok((listener, advertised))
    }
}
