//! How long each server has left requests unanswered. The figures show which server is slow.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

#[derive(Clone, Debug, PartialEq)]
pub struct UnansweredRequests {
    pub server: u32,
    pub lookups: usize,
    pub pushes: usize,
    /// Age of the oldest request, with retries.
    pub oldest: Duration,
}

/// The unanswered requests. A request takes one lock, a row takes none.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenRequests {
    open: Arc<Mutex<RequestList>>,
}

#[derive(Debug, Default)]
struct RequestList {
    next: u64,
    requests: BTreeMap<u64, OpenRequest>,
}

#[derive(Clone, Copy, Debug)]
struct OpenRequest {
    server: u32,
    pushes: bool,
    since: Instant,
}

/// An unanswered request. Dropping the guard ends it.
#[derive(Debug)]
pub(super) struct RequestGuard {
    number: u64,
    open: Arc<Mutex<RequestList>>,
}

impl OpenRequests {
    /// Starts a request to a server. Its ids have waited for so long already, maybe for other servers.
    pub(super) fn begin_request(&self, server: u32, pushes: bool, waited: Duration) -> RequestGuard {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let number = open.next;
        open.next += 1;
        let now = Instant::now();
        open.requests.insert(number, OpenRequest { server, pushes, since: now.checked_sub(waited).unwrap_or(now) });
        RequestGuard { number, open: Arc::clone(&self.open) }
    }

    /// One entry for each server with an unanswered request.
    pub(super) fn unanswered_by_server(&self) -> Vec<UnansweredRequests> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut servers, now) = (BTreeMap::new(), Instant::now());
        for request in open.requests.values() {
            let (server, oldest) = (request.server, now.saturating_duration_since(request.since));
            let entry = servers.entry(server).or_insert(UnansweredRequests { server, lookups: 0, pushes: 0, oldest });
            entry.lookups += usize::from(!request.pushes);
            entry.pushes += usize::from(request.pushes);
            entry.oldest = entry.oldest.max(oldest);
        }
        servers.into_values().collect()
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).requests.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_of_a_server_is_that_of_its_oldest_request() {
        let requests = OpenRequests::default();
        assert!(requests.unanswered_by_server().is_empty());
        let first = requests.begin_request(1, true, Duration::ZERO);
        let second = requests.begin_request(1, false, Duration::from_secs(7));
        let other = requests.begin_request(0, false, Duration::ZERO);
        let waiting = requests.unanswered_by_server();
        let entry = |waiting: &UnansweredRequests| (waiting.server, waiting.lookups, waiting.pushes);
        assert_eq!(waiting.iter().map(entry).collect::<Vec<_>>(), [(0, 1, 0), (1, 1, 1)]);
        assert!(waiting[0].oldest < Duration::from_secs(7) && waiting[1].oldest >= Duration::from_secs(7));
        drop((first, other));
        assert_eq!(requests.unanswered_by_server().iter().map(entry).collect::<Vec<_>>(), [(1, 1, 0)]);
        drop(second);
        assert!(requests.unanswered_by_server().is_empty());
    }
}
