//! Gradients on their way to their sum over all workers.
//!
//! They leave in buckets of one size, cut from the last weight to the first: a backward pass ends with the first layers,
//! so the last layers' buckets are summed while it still runs (Li et al. 2020, "PyTorch Distributed", section 3.2.3).
//! Where buckets are cut depends on the number of weights alone, which all workers have in common.

use std::ops::Range;

use zagros_collective::{Collective, CollectiveError, PendingSum};

/// Gradients in a bucket, 1 MiB: small enough that the last one, for which nothing is left to do meanwhile, is soon
/// done; large enough that what each costs besides is small.
pub const BUCKET: usize = 1 << 18;

/// The buckets of one step after another.
#[derive(Debug)]
pub struct Buckets {
    size: usize,
    /// Of the network.
    weights: usize,
    /// Weights below have not left yet.
    left: usize,
    /// What each value counts in the sum.
    share: f32,
    /// First weight of each, and the sum.
    under_way: Vec<(usize, PendingSum)>,
    /// Why one could not leave.
    failed: Option<CollectiveError>,
    /// Memory of buckets that are over.
    spare: Vec<Vec<f32>>,
}

impl Buckets {
    /// For buckets of so many gradients.
    #[must_use]
    pub fn new(size: usize) -> Self {
        Self {
            size: size.max(1),
            weights: 0,
            left: 0,
            share: 0.0,
            under_way: Vec::new(),
            failed: None,
            spare: Vec::new(),
        }
    }

    /// A step begins, to which each value of this worker counts `share`. What an earlier one left is given up.
    pub fn begin(&mut self, weights: usize, share: f32) {
        self.under_way.clear();
        self.failed = None;
        (self.weights, self.left, self.share) = (weights, weights, share);
    }

    /// The gradients of all weights from `from` on are final: sends the buckets that are full, but for the one of the
    /// first weights.
    pub fn ready(&mut self, group: &mut dyn Collective, from: usize, gradients: &[f32]) {
        while self.left > self.size && self.left - self.size >= from && self.failed.is_none() {
            let bucket = self.left - self.size..self.left;
            self.send(group, bucket.clone(), &gradients[bucket.start - from..bucket.end - from], &[]);
        }
    }

    /// Sends the rest of `gradients`, which are all of the network's, and as many values besides on every worker, which
    /// are summed as they are.
    pub fn close(&mut self, group: &mut dyn Collective, gradients: &[f32], besides: &[f32]) {
        self.ready(group, 0, gradients);
        if self.failed.is_none() {
            self.send(group, 0..self.left, &gradients[..self.left], besides);
        }
    }

    fn send(&mut self, group: &mut dyn Collective, weights: Range<usize>, gradients: &[f32], besides: &[f32]) {
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

    /// Waits for every sum and gives it to `put`, with its first weight; the sums of what was besides are answered.
    ///
    /// # Errors
    /// When a worker does not take part, or `put` fails.
    pub fn finish<E: From<CollectiveError>>(
        &mut self,
        group: &mut dyn Collective,
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
    use zagros_collective::Alone;
    use zagros_zip::ZipEq;

    use super::*;
    use crate::error::WorkerError;

    const WEIGHTS: usize = 10;

    /// Starts of the buckets that have left after each time that so much was ready, then of all.
    fn cut(size: usize, ready: &[usize]) -> (Vec<Vec<usize>>, Vec<usize>) {
        let gradients: Vec<f32> = (0..WEIGHTS).map(|weight| weight as f32).collect();
        let mut buckets = Buckets::new(size);
        buckets.begin(WEIGHTS, 2.0);
        let starts = |buckets: &Buckets| buckets.under_way.iter().map(|(start, _)| *start).collect::<Vec<_>>();
        let mut after = Vec::new();
        for from in ready {
            buckets.ready(&mut Alone, *from, &gradients[*from..]);
            after.push(starts(&buckets));
        }
        buckets.close(&mut Alone, &gradients, &[7.0, 8.0]);
        let all = starts(&buckets);
        let mut sums = [0.0; WEIGHTS];
        let put = |first: usize, values: &[f32]| {
            sums[first..][..values.len()].copy_from_slice(values);
            Ok::<_, WorkerError>(())
        };
        assert_eq!(buckets.finish(&mut Alone, put).unwrap(), [7.0, 8.0]);
        assert!(sums.iter().zip_eq(&gradients).all(|(sum, gradient)| *sum == 2.0 * gradient), "{sums:?}");
        (after, all)
    }

    #[test]
    fn buckets_leave_once_they_are_full_and_never_before() {
        assert_eq!(cut(3, &[8, 7, 2]), (vec![vec![], vec![7], vec![7, 4]], vec![7, 4, 1, 0]));
        // All at once, as of a pass that tells nothing, and of a worker without samples.
        assert_eq!(cut(3, &[]).1, [7, 4, 1, 0]);
        // The last bucket waits for what is besides.
        assert_eq!(cut(5, &[0]), (vec![vec![5]], vec![5, 0]));
        assert_eq!(cut(WEIGHTS, &[0]), (vec![vec![]], vec![0]));
        assert_eq!(cut(100, &[]).1, [0]);
    }

    #[test]
    fn what_a_step_left_is_no_part_of_the_next() {
        let mut buckets = Buckets::new(2);
        buckets.begin(4, 1.0);
        buckets.ready(&mut Alone, 0, &[9.0; 4]);
        buckets.begin(4, 1.0);
        buckets.close(&mut Alone, &[1.0; 4], &[]);
        let mut places = Vec::new();
        let put = |first, values: &[f32]| {
            places.push((first, values.to_vec()));
            Ok::<_, WorkerError>(())
        };
        assert!(buckets.finish(&mut Alone, put).unwrap().is_empty());
        assert_eq!(places, [(2, vec![1.0; 2]), (0, vec![1.0; 2])]);
    }
}
