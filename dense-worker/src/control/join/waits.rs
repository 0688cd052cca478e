//! What holds a worker up, also while no step is made. The coordinator hears of slow servers, and of the disk.
//!
//! A server that does not answer fills the window, and then all stands still until it answers or the timeout ends. Long
//! before that a warning says which one it is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use prometheus::{GaugeVec, Opts, Registry};
use tokio_util::task::AbortOnDropHandle;
use zagros_embedding_client::{EmbeddingClient, StalenessWindow, UnansweredRequests};
use zagros_plumbing::metrics::{DiskSpace, register};
use zagros_protocol::control::{Disk, ServerWait};

use crate::control::trainer::RunContext;
use crate::event::{Observer, WorkerEvent};

const PERIOD: Duration = Duration::from_millis(250);
/// Waits shorter than this are how it should be.
const WORTH_REPORTING: Duration = Duration::from_secs(1);

/// A wait of which a server is reported to be slow; again when it has doubled.
const SLOW: Duration = Duration::from_secs(3);

/// Reports the servers, and the disk below the run folder, and tells of slow servers, while the handle lives.
pub(crate) fn watch_servers(run: &RunContext, window: StalenessWindow, registry: &Registry) -> AbortOnDropHandle<()> {
    let help = "Seconds that the oldest unanswered request to an embedding server has waited.";
    let gauge = GaugeVec::new(Opts::new("zagros_worker_server_wait_seconds", help), &["server"]);
    let gauge = register(registry, gauge);
    // What these hold, servers in this process among it, must not live as long as a task that sleeps.
    let (client, membership) = (Arc::downgrade(&run.client), Arc::downgrade(&run.membership));
    let (waits, observer, places) = (run.metrics.waits.clone(), Arc::clone(&run.observer), run.job.train.staleness + 1);
    let folder = run.folder.as_ref().map(|folder| folder.path().to_owned());
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut reported = ReportedWaits::default();
        loop {
            let (Some(client), Some(membership)) = (client.upgrade(), membership.upgrade()) else { return };
            let waiting = client.unanswered_requests();
            let requests = worth_reporting(&waiting);
            waits.set_requests(requests.clone());
            membership.set_waits(requests);
            if let Some(Ok(DiskSpace { free, size })) = folder.as_deref().map(DiskSpace::measure) {
                membership.set_disk(Disk { free_bytes: free, size_bytes: size });
            }
            show(&gauge, client.known_servers().len(), &waiting);
            for news in reported.news(&waiting) {
                tell(&news, &client, (window.batch_count(), places), &*observer);
            }
            drop((client, membership));
            tokio::time::sleep(PERIOD).await;
        }
    }))
}

fn worth_reporting(waiting: &[UnansweredRequests]) -> Vec<ServerWait> {
    let wait = |waiting: &UnansweredRequests| ServerWait {
        server: waiting.server,
        lookups: u32::try_from(waiting.lookups).unwrap_or(u32::MAX),
        pushes: u32::try_from(waiting.pushes).unwrap_or(u32::MAX),
        oldest_ms: u64::try_from(waiting.oldest.as_millis()).unwrap_or(u64::MAX),
    };
    waiting.iter().filter(|waiting| waiting.oldest >= WORTH_REPORTING).map(wait).collect()
}

/// Every server has a wait, most of them none: a series that comes and goes is no base for an alert. A server that has
/// left the run has none.
fn show(gauge: &GaugeVec, servers: usize, waiting: &[UnansweredRequests]) {
    let mut gone = servers as u32..;
    while gone.next().is_some_and(|server| gauge.remove_label_values(&[server.to_string().as_str()]).is_ok()) {}
    for server in 0..servers as u32 {
        let wait = waiting.iter().find(|other| other.server == server).map_or(0.0, |other| other.oldest.as_secs_f64());
        gauge.with_label_values(&[server.to_string().as_str()]).set(wait);
    }
}

#[derive(Clone, Debug, PartialEq)]
enum ServerNews {
    Slow(UnansweredRequests),
    Back(u32),
}

/// What was reported: by server, the wait from which on it is reported again.
#[derive(Debug, Default)]
struct ReportedWaits {
    again_at: BTreeMap<u32, Duration>,
}

impl ReportedWaits {
    fn news(&mut self, waiting: &[UnansweredRequests]) -> Vec<ServerNews> {
        let is_slow = |server: u32| waiting.iter().any(|other| other.server == server && other.oldest >= SLOW);
        let back: Vec<u32> = self.again_at.keys().copied().filter(|server| !is_slow(*server)).collect();
        self.again_at.retain(|server, _| is_slow(*server));
        let mut news: Vec<ServerNews> = back.into_iter().map(ServerNews::Back).collect();
        for server in waiting.iter().filter(|server| server.oldest >= SLOW) {
            let again_at = self.again_at.entry(server.server).or_insert(SLOW);
            if server.oldest >= *again_at {
                *again_at = server.oldest * 2;
                news.push(ServerNews::Slow(server.clone()));
            }
        }
        news
    }
}

fn tell(news: &ServerNews, client: &EmbeddingClient, (inside, places): (usize, usize), observer: &dyn Observer) {
    let name = |server: u32| {
        let servers = client.known_servers();
        servers
            .get(server as usize)
            .map_or_else(|| format!("embedding server {server}"), |shard| shard.name().to_owned())
    };
    match news {
        ServerNews::Slow(UnansweredRequests { server, lookups, pushes, oldest }) => {
            let server = name(*server);
            let seconds = oldest.as_secs_f64();
            let full = if inside >= places { ", and the window is full: training waits for it" } else { "" };
            tracing::warn!(
                "{server} is slow: its oldest request has waited {seconds:.1} s; {pushes} pushes and {lookups} lookups wait \
                 for it, {inside} of {places} batches are under way{full}"
            );
            observer.observe(&WorkerEvent::SlowServer { server, oldest: *oldest, pushes: *pushes, lookups: *lookups });
        }
        ServerNews::Back(server) => tracing::warn!("{} answers again", name(*server)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_reported_once_it_is_long() {
        let millis = |wait, millis| UnansweredRequests { oldest: Duration::from_millis(millis), ..wait };
        let reported = worth_reporting(&[millis(waiting(0, 0), 999), millis(waiting(3, 0), 1500)]);
        assert_eq!(reported, [ServerWait { server: 3, lookups: 1, pushes: 2, oldest_ms: 1500 }]);
    }

    fn waiting(server: u32, seconds: u64) -> UnansweredRequests {
        UnansweredRequests { server, lookups: 1, pushes: 2, oldest: Duration::from_secs(seconds) }
    }

    #[test]
    fn a_server_that_nobody_waits_for_shows_no_wait() {
        let gauge = GaugeVec::new(Opts::new("wait_seconds", "A test."), &["server"]).unwrap();
        show(&gauge, 2, &[waiting(1, 4)]);
        let wait_of = |server: &str| gauge.with_label_values(&[server]).get();
        assert_eq!((wait_of("0"), wait_of("1")), (0.0, 4.0));
        show(&gauge, 2, &[]);
        assert_eq!((wait_of("0"), wait_of("1")), (0.0, 0.0));
        show(&gauge, 4, &[]);
        show(&gauge, 1, &[]);
        assert_eq!(prometheus::core::Collector::collect(&gauge)[0].get_metric().len(), 1, "servers that have left");
    }

    #[test]
    fn a_slow_server_is_reported_once_and_again_when_its_wait_has_doubled() {
        let mut reported = ReportedWaits::default();
        assert!(reported.news(&[waiting(0, 0), waiting(1, 2)]).is_empty());
        assert_eq!(reported.news(&[waiting(0, 1), waiting(1, 4)]), [ServerNews::Slow(waiting(1, 4))]);
        assert!(reported.news(&[waiting(1, 5)]).is_empty() && reported.news(&[waiting(1, 7)]).is_empty());
        assert_eq!(reported.news(&[waiting(1, 8)]), [ServerNews::Slow(waiting(1, 8))]);
        // Its oldest request was answered; a younger one waits.
        assert_eq!(reported.news(&[waiting(1, 1)]), [ServerNews::Back(1)]);
        assert!(reported.news(&[]).is_empty());
        assert_eq!(reported.news(&[waiting(1, 3)]), [ServerNews::Slow(waiting(1, 3))]);
    }
}
