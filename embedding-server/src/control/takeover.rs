//! Taking over the log of a lost server that nobody replaces: this process serves its rows in its place, as a member of the run of
//! its own (ADR 54). Recovery, windows of pushes and moves of buckets are those of any server that comes back with its log.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::Registry;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{info, warn};
use zagros_coordinator_client::ControlPlane;
use zagros_job::Job;
use zagros_plumbing::admin::PageAccess;
use zagros_plumbing::{Shutdown, StopMeaning};
use zagros_protocol::control::LostLog;
use zagros_protocol::{Lineage, ServerIndex};
use zagros_transport::Credentials;

use crate::durability::check_free;
use crate::server::{ServerRows, run_taken};
use crate::{ServerConfig, ServerEnd, ServerError};

/// The pause before a log is looked at again.
const PAUSE: Duration = Duration::from_secs(5);

/// What a server needs besides the rows of the lost one: the settings of the server whose process it is.
pub(crate) struct TakeoverHost {
    pub(crate) job: Arc<Job>,
    pub(crate) control: Arc<dyn ControlPlane>,
    /// Where this process listens.
    pub(crate) bind: IpAddr,
    /// `host:port` where workers reach this process.
    pub(crate) advertised: String,
    pub(crate) credentials: Credentials,
    pub(crate) page: PageAccess,
    pub(crate) storage_folders: Vec<String>,
    pub(crate) on_stop: StopMeaning,
    pub(crate) shutdown: Shutdown,
    /// Tells this process from others.
    pub(crate) instance: u64,
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
        info!(lost = lost.0, "takes over the log of a lost embedding server");
        match self.serve(lost, lineage).await {
            Ok(ServerEnd::Released) => info!(lost = lost.0, "the other servers have the buckets of the lost server"),
            Ok(ServerEnd::Stopped) => {}
            Err(error) => warn!(lost = lost.0, %error, "stopped serving in the place of a lost embedding server"),
        }
    }

    async fn serve(&self, index: ServerIndex, lineage: Lineage) -> Result<ServerEnd, ServerError> {
        let host = &self.host;
        let failed =
            |source: std::io::Error| ServerError::Serve { index: index.0, port: "data", source: Box::new(source) };
        let data_listener = TcpListener::bind((host.bind, 0)).await.map_err(failed)?;
        let port = data_listener.local_addr().map_err(failed)?.port();
        let name = host.advertised.rsplit_once(':').map_or(host.advertised.as_str(), |(name, _)| name);
        let config = ServerConfig {
            job: Arc::clone(&host.job),
            index,
            control: Arc::clone(&host.control),
            data_listener,
            advertised: format!("{name}:{port}"),
            admin_listener: None,
            credentials: host.credentials.clone(),
            page: host.page.clone(),
            storage_folders: host.storage_folders.clone(),
            on_stop: host.on_stop,
            // Metrics of two servers in one registry would have one name. The coordinator has the load of each.
            registry: Registry::new(),
        };
        run_taken(config, ServerRows::Taken { lineage, host: host.instance }, host.shutdown.clone()).await
    }
}
