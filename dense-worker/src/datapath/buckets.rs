//! Gradients on their way to the all-reduce.
//!
//! Gradients are sent in buckets of one size, from the last weight to the first. The backward half computes the gradients
//! of the last layers first, so their buckets are summed while it still runs (Li et al. 2020, "PyTorch Distributed",
//! section 3.2.3). The bounds of the buckets depend on the number of weights alone, which is equal on all workers.

use std::ops::Range;

use zagros_collective::{CollectiveError, CollectiveGroup, PendingSum};

/// Gradients per bucket, 1 MiB. The last bucket overlaps with no other work, so a bucket must be small enough to be summed
/// fast. It must be large enough that the fixed cost of a bucket is small.
pub(crate) const BUCKET: usize = 1 << 18;

#[derive(Debug, Default)]
pub(crate) struct GradientBuckets {
    size: usize,
    weights: usize,
    /// Number of weights, from the first one on, whose gradients are not sent yet.
    left: usize,
    /// Factor of each value in the sum.
    share: f32,
    /// The buckets in flight: first weight, and the sum.
    under_way: Vec<(usize, PendingSum)>,
    failed: Option<CollectiveError>,
    spare: Vec<Vec<f32>>,
}

impl GradientBuckets {
    pub(crate) fn new(size: usize) -> Self {
        Self { size: size.max(1), ..Self::default() }
    }

    /// Begins a step, in which each value of this worker counts `share`. Gives up what an earlier step left.
    pub(crate) fn begin_step(&mut self, weights: usize, share: f32) {
        self.under_way.clear();
        self.failed = None;
        (self.weights, self.left, self.share) = (weights, weights, share);
    }

    /// Notes that the gradients of all weights from `from` on are final. Sends each full bucket, except the one of the
    /// first weights.
    pub(crate) fn send_ready(&mut self, group: &mut dyn CollectiveGroup, from: usize, gradients: &[f32]) {
        while self.left > self.size && self.left - self.size >= from && self.failed.is_none() {
            let bucket = self.left - self.size..self.left;
            self.send(group, bucket.clone(), &gradients[bucket.start - from..bucket.end - from], &[]);
        }
    }

    /// `gradients` are those of the whole network. `besides` are more values, equally many
    /// on every worker, which are summed without `share`.
    pub(crate) fn send_remaining(&mut self, group: &mut dyn CollectiveGroup, gradients: &[f32], besides: &[f32]) {
        self.send_ready(group, 0, gradients);
        if self.failed.is_none() {
            self.send(group, 0..self.left, &gradients[..self.left], besides);
        }
    }

    fn send(&mut self, group: &mut dyn CollectiveGroup, weights: Range<usize>, gradients: &[f32], besides: &[f32]) {
        let mut bucket = self.spare.pop().unwrap_or_default();
        bucket.clear();
        bucket.extend(gradients.iter().map(|gradient| gradient * self.share));
        bucket.extend_from_slice(besides);
        match group.start_all_reduce_sum(bucket) {
            Ok(pending) => self.under_way.push((weights.start, pending)),
            Err(error) => self.failed = Some(error),
        }
        self.left = weights.start;
    }

    /// Waits for every sum and gives it to `put`, with its first weight. Returns the sums of the values `besides`.
    pub(crate) fn wait_for_sums<E: From<CollectiveError>>(
        &mut self,
        group: &mut dyn CollectiveGroup,
        mut put: impl FnMut(usize, &[f32]) -> Result<(), E>,
    ) -> Result<Vec<f32>, E> {
        let (mut end, mut besides) = (self.weights, Vec::new());
        for (first, pending) in self.under_way.drain(..) {
            let sums = group.wait(pending)?;
            let (gradients, rest) = sums.split_at(end - first);
            put(first, gradients)?;
            besides.extend_from_slice(rest);
            end = first;
            self.spare.push(sums);
        }
        self.failed.take().map_or(Ok(besides), |error| Err(error.into()))
    }
}

#[cfg(test)]
mod tests {
    use zagros_collective::SingleRank;
    use zagros_zip::ZipEq;

    use super::*;
    use crate::error::WorkerError;

    const WEIGHTS: usize = 10;

    /// Starts of the sent buckets after each report of `ready`, and of all buckets.
    fn cut(size: usize, ready: &[usize]) -> (Vec<Vec<usize>>, Vec<usize>) {
        let gradients: Vec<f32> = (0..WEIGHTS).map(|weight| weight as f32).collect();
        let mut buckets = GradientBuckets::new(size);
        buckets.begin_step(WEIGHTS, 2.0);
        let starts = |buckets: &GradientBuckets| buckets.under_way.iter().map(|(start, _)| *start).collect::<Vec<_>>();
        let mut sent_starts = Vec::new();
        for from in ready {
            buckets.send_ready(&mut SingleRank, *from, &gradients[*from..]);
            sent_starts.push(starts(&buckets));
        }
        buckets.send_remaining(&mut SingleRank, &gradients, &[7.0, 8.0]);
        let all = starts(&buckets);
        let mut sums = [0.0; WEIGHTS];
        let put = |first: usize, values: &[f32]| {
            sums[first..][..values.len()].copy_from_slice(values);
            Ok::<_, WorkerError>(())
        };
        assert_eq!(buckets.wait_for_sums(&mut SingleRank, put).unwrap(), [7.0, 8.0]);
        assert!(sums.iter().zip_eq(&gradients).all(|(sum, gradient)| *sum == 2.0 * gradient), "{sums:?}");
        (sent_starts, all)
    }

    #[test]
    fn buckets_leave_once_they_are_full_and_never_before() {
        assert_eq!(cut(3, &[8, 7, 2]), (vec![vec![], vec![7], vec![7, 4]], vec![7, 4, 1, 0]));
        // All at once, as autograd reports them, and a worker without samples.
        assert_eq!(cut(3, &[]).1, [7, 4, 1, 0]);
        // The last bucket waits for the values besides.
        assert_eq!(cut(5, &[0]), (vec![vec![5]], vec![5, 0]));
        assert_eq!(cut(WEIGHTS, &[0]), (vec![vec![]], vec![0]));
        assert_eq!(cut(100, &[]).1, [0]);
    }

    #[test]
    fn values_of_a_step_never_reach_the_next_step() {
        let mut buckets = GradientBuckets::new(2);
        buckets.begin_step(4, 1.0);
        buckets.send_ready(&mut SingleRank, 0, &[9.0; 4]);
        buckets.begin_step(4, 1.0);
        buckets.send_remaining(&mut SingleRank, &[1.0; 4], &[]);
        let mut places = Vec::new();
        let put = |first, values: &[f32]| {
            places.push((first, values.to_vec()));
            Ok::<_, WorkerError>(())
        };
        assert!(buckets.wait_for_sums(&mut SingleRank, put).unwrap().is_empty());
        assert_eq!(places, [(2, vec![1.0; 2]), (0, vec![1.0; 2])]);
    }
}
