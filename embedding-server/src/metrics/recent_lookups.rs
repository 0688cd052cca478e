//! Recent activity of a server, computed from its metrics at intervals, for the live page.

use std::collections::VecDeque;

use zagros_plumbing::metrics::{Histogram, latency_buckets};
use zagros_protocol::control::ServerLoad;
use zagros_table::TableSet;

use super::ServerMetrics;

/// The number of remembered looks. With one look a second they cover the last ten seconds.
const LOOKS: usize = 10;
/// The percentile of lookup times that is reported.
const TAIL: f64 = 0.99;

/// The counts at the last looks, oldest first.
#[derive(Debug, Default)]
pub(crate) struct RecentLookups(VecDeque<LookupCounts>);

#[derive(Clone, Debug, Default)]
struct LookupCounts {
    found: u64,
    missed: u64,
    seconds: f64,
    /// Lookups by bucket of their duration. Lookups above the last bound are in no bucket.
    buckets: Vec<u64>,
    lookups: u64,
}

impl RecentLookups {
    /// Adds to `held` the activity since the oldest remembered look.
    pub(crate) fn sample_load(&mut self, metrics: &ServerMetrics, tables: &TableSet, held: ServerLoad) -> ServerLoad {
        let now = LookupCounts::new(&metrics.lookup.seconds, tables);
        let earlier = self.0.front().cloned().unwrap_or_default();
        self.0.push_back(now.clone());
        if self.0.len() > LOOKS {
            self.0.pop_front();
        }
        let lately = now.counts_since(&earlier);
        let (requests, under_way) = metrics.request_counts();
        let lookups = lately.lookups as f64;
        let asked = lately.found + lately.missed;
        ServerLoad {
            requests,
            under_way: u32::try_from(under_way).unwrap_or(u32::MAX),
            hit_rate: (asked > 0).then(|| lately.found as f64 / asked as f64),
            lookup_seconds_mean: (lookups > 0.0).then(|| lately.seconds / lookups),
            lookup_seconds_p99: lately.percentile(TAIL),
            ..held
        }
    }
}

impl LookupCounts {
    fn new(times: &Histogram, tables: &TableSet) -> Self {
        let mut counts = Self { seconds: times.get_sample_sum(), ..Self::default() };
        for table in tables.iter() {
            let of_table = table.event_counts();
            counts.found += of_table.hits;
            counts.missed += of_table.misses;
        }
        let reported = prometheus::core::Metric::metric(times);
        let reported = reported.get_histogram();
        counts.lookups = reported.get_sample_count();
        counts.buckets = reported.get_bucket().iter().map(prometheus::proto::Bucket::cumulative_count).collect();
        counts
    }

    fn counts_since(&self, before: &Self) -> Self {
        let buckets = self.buckets.iter().enumerate();
        let earlier = |index: usize| before.buckets.get(index).copied().unwrap_or(0);
        Self {
            found: self.found.saturating_sub(before.found),
            missed: self.missed.saturating_sub(before.missed),
            seconds: (self.seconds - before.seconds).max(0.0),
            buckets: buckets.map(|(index, count)| count.saturating_sub(earlier(index))).collect(),
            lookups: self.lookups.saturating_sub(before.lookups),
        }
    }

    /// The smallest bucket bound below which this share of lookups is. The last bound for slower lookups.
    fn percentile(&self, share: f64) -> Option<f64> {
        if self.lookups == 0 {
            return None;
        }
        let wanted = (share * self.lookups as f64).ceil() as u64;
        let bounds = latency_buckets();
        let place = self.buckets.iter().position(|below| *below >= wanted);
        bounds.get(place.unwrap_or(bounds.len() - 1)).copied()
    }
}

#[cfg(test)]
mod tests {
    use zagros_protocol::datapath::Access;

    use super::*;
    use crate::testing;
    use crate::testing::{lookup_of, placed};

    #[test]
    fn a_percentile_is_the_bound_of_its_bucket() {
        let bounds = latency_buckets();
        let counts =
            |buckets: &[u64], lookups| LookupCounts { buckets: buckets.to_vec(), lookups, ..LookupCounts::default() };
        assert_eq!(counts(&[0; 20], 0).percentile(0.99), None);
        assert_eq!(counts(&[0, 98, 99, 100], 100).percentile(0.99), Some(bounds[2]));
        assert_eq!(counts(&[5; 20], 10).percentile(0.99), Some(bounds[19]), "half took longer than any bound");
    }

    #[test]
    fn recent_lookups_are_reported_and_earlier_ones_are_not() {
        let service = placed(1, 0);
        let mut recent = RecentLookups::default();
        let mut look = || recent.sample_load(&service.metrics, &service.tables, service.current_load());
        assert_eq!((look().hit_rate, look().lookup_seconds_p99), (None, None));
        let lookup = |ids: &[u64]| {
            let request = lookup_of(&[(0, ids)], Access::Train);
            service.metrics.lookup.observe(|| testing::lookup(&service, &request)).unwrap();
        };
        lookup(&[1, 2, 3, 4]);
        lookup(&[1, 2, 3, 4]);
        let reported = look();
        assert_eq!((reported.rows, reported.requests, reported.under_way, reported.hit_rate), (4, 2, 0, Some(0.5)));
        let [mean, p99] = [reported.lookup_seconds_mean, reported.lookup_seconds_p99].map(Option::unwrap);
        assert!(mean > 0.0 && p99 > 0.0, "{reported:?}");
        for _ in 0..LOOKS {
            look();
        }
        assert_eq!((look().hit_rate, look().requests), (None, 2));
        lookup(&[1]);
        assert_eq!(look().hit_rate, Some(1.0));
    }
}
