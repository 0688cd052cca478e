//! Which servers keep requests waiting, and for how long: by this a slow one is named.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What one server has not answered yet.
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

/// Requests under way. One lock a request, never one a row.
#[derive(Clone, Debug, Default)]
pub(super) struct Requests {
    open: Arc<Mutex<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    /// By number, so that the first of a server is its oldest.
    requests: BTreeMap<u64, Request>,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    server: u32,
    pushes: bool,
    since: Instant,
}

/// A request that is under way while this lives.
#[derive(Debug)]
pub(super) struct UnderWay {
    number: u64,
    open: Arc<Mutex<Open>>,
}

impl Requests {
    /// A request to a server that begins now.
    pub(super) fn begin(&self, server: u32, pushes: bool) -> UnderWay {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let number = open.next;
        open.next += 1;
        open.requests.insert(number, Request { server, pushes, since: Instant::now() });
        UnderWay { number, open: Arc::clone(&self.open) }
    }

    /// By server, those without a request skipped.
    pub(super) fn waiting(&self) -> Vec<Waiting> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut servers, now) = (BTreeMap::new(), Instant::now());
        for request in open.requests.values() {
            let (server, oldest) = (request.server, now.saturating_duration_since(request.since));
            let told = servers.entry(server).or_insert(Waiting { server, lookups: 0, pushes: 0, oldest });
            told.lookups += usize::from(!request.pushes);
            told.pushes += usize::from(request.pushes);
        }
        servers.into_values().collect()
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).requests.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_waits_as_long_as_its_oldest_request_and_is_forgotten_with_its_last() {
        let requests = Requests::default();
        assert!(requests.waiting().is_empty());
        let first = requests.begin(1, true);
        let second = requests.begin(1, false);
        let other = requests.begin(0, false);
        let waiting = requests.waiting();
        let told = |waiting: &Waiting| (waiting.server, waiting.lookups, waiting.pushes);
        assert_eq!(waiting.iter().map(told).collect::<Vec<_>>(), [(0, 1, 0), (1, 1, 1)]);
        assert!(waiting[1].oldest >= waiting[0].oldest);
        drop((first, other));
        assert_eq!(requests.waiting().iter().map(told).collect::<Vec<_>>(), [(1, 1, 0)]);
        drop(second);
        assert!(requests.waiting().is_empty());
    }
}
