//! How long requests to each server have been waiting. A slow server is named by it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The requests that one server has not answered yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    /// Its index.
    pub server: u32,
    /// Lookups.
    pub lookups: usize,
    /// Pushes.
    pub pushes: usize,
    /// How long the oldest of them has waited, retries included.
    pub oldest: Duration,
}

/// The open requests. One lock for each request, never one for each row.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenRequests {
    open: Arc<Mutex<RequestList>>,
}

#[derive(Debug, Default)]
struct RequestList {
    next: u64,
    /// By number, so that the first of a server is its oldest.
    requests: BTreeMap<u64, OpenRequest>,
}

#[derive(Clone, Copy, Debug)]
struct OpenRequest {
    server: u32,
    pushes: bool,
    since: Instant,
}

/// A request. It is open while this value lives.
#[derive(Debug)]
pub(super) struct RequestGuard {
    number: u64,
    open: Arc<Mutex<RequestList>>,
}

impl OpenRequests {
    /// A request to a server that begins now.
    pub(super) fn begin(&self, server: u32, pushes: bool) -> RequestGuard {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let number = open.next;
        open.next += 1;
        open.requests.insert(number, OpenRequest { server, pushes, since: Instant::now() });
        RequestGuard { number, open: Arc::clone(&self.open) }
    }

    /// One entry for each server that has an open request.
    pub(super) fn waiting(&self) -> Vec<Waiting> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut servers, now) = (BTreeMap::new(), Instant::now());
        for request in open.requests.values() {
            let (server, oldest) = (request.server, now.saturating_duration_since(request.since));
            let entry = servers.entry(server).or_insert(Waiting { server, lookups: 0, pushes: 0, oldest });
            entry.lookups += usize::from(!request.pushes);
            entry.pushes += usize::from(request.pushes);
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
    fn a_server_waits_as_long_as_its_oldest_request_and_is_forgotten_with_its_last() {
        let requests = OpenRequests::default();
        assert!(requests.waiting().is_empty());
        let first = requests.begin(1, true);
        let second = requests.begin(1, false);
        let other = requests.begin(0, false);
        let waiting = requests.waiting();
        let entry = |waiting: &Waiting| (waiting.server, waiting.lookups, waiting.pushes);
        assert_eq!(waiting.iter().map(entry).collect::<Vec<_>>(), [(0, 1, 0), (1, 1, 1)]);
        assert!(waiting[1].oldest >= waiting[0].oldest);
        drop((first, other));
        assert_eq!(requests.waiting().iter().map(entry).collect::<Vec<_>>(), [(1, 1, 0)]);
        drop(second);
        assert!(requests.waiting().is_empty());
    }
}
