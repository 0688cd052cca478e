//! Random numbers as a function of (seed, stream, position), so that any row can be made on its own: uniform ones, and ranks by Zipf's law,
//! by which rank r has a probability proportional to r^−s.

/// One stream of uniform numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RandomStream {
    key: u64,
}

impl RandomStream {
    /// The stream of this number. The seed is part of the number.
    pub(crate) fn new(number: u64) -> Self {
        Self { key: splitmix(number) }
    }

    /// Number `position` of the stream: 64 random bits.
    #[inline]
    pub(crate) fn bits(self, position: u64) -> u64 {
        splitmix(self.key.wrapping_add(position.wrapping_mul(GOLDEN)))
    }

    /// Number `position` of the stream: uniform in [0, 1), 53 bits.
    #[inline]
    pub(crate) fn uniform(self, position: u64) -> f64 {
        (self.bits(position) >> 11) as f64 * 2.0_f64.powi(-53)
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64 (Steele, Lea & Flood 2014) after one step of its counter.
#[inline]
pub(crate) fn splitmix(value: u64) -> u64 {
    let z = value.wrapping_add(GOLDEN);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A Zipf distribution over a vocabulary, drawn from by inversion.
#[derive(Clone, Debug)]
pub(crate) struct ZipfDistribution {
    /// Sums of r^−s up to each rank.
    sums: Vec<f64>,
}

impl ZipfDistribution {
    /// Ranks `0 .. vocabulary` (at least one) with exponent `s`.
    pub(crate) fn new(vocabulary: u32, s: f64) -> Self {
        let mut total = 0.0;
        let add_rank = |rank: u32| {
            total += f64::from(rank).powf(-s);
            total
        };
        Self { sums: (1..=vocabulary.max(1)).map(add_rank).collect() }
    }

    pub(crate) fn probability(&self, rank: u32) -> f64 {
        let rank = rank as usize;
        let lower_sum = if rank == 0 { 0.0 } else { self.sums[rank - 1] };
        (self.sums[rank] - lower_sum) / self.sums[self.sums.len() - 1]
    }

    /// The rank (from 0) of a uniform number in [0, 1): the number of sums that are not above its share of the total.
    #[inline]
    pub(crate) fn rank(&self, uniform: f64) -> u32 {
        let last = self.sums.len() - 1;
        let point = uniform * self.sums[last];
        self.sums.partition_point(|sum| *sum <= point).min(last) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs of the published SplitMix64 for the seed 1234567.
    #[test]
    fn splitmix_is_the_published_one() {
        let outputs: Vec<u64> =
            (0..3_u64).map(|step| splitmix(1_234_567_u64.wrapping_add(step.wrapping_mul(GOLDEN)))).collect();
        assert_eq!(outputs, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn uniform_numbers_fill_the_unit_interval() {
        let stream = RandomStream::new(7);
        let mut counts = [0_u32; 10];
        (0..10_000).for_each(|position| counts[(stream.uniform(position) * 10.0) as usize] += 1);
        assert!(counts.iter().all(|count| (900..1_100).contains(count)), "{counts:?}");
    }

    #[test]
    fn frequencies_follow_the_law() {
        let (zipf, stream, draws) = (ZipfDistribution::new(1_000, 1.2), RandomStream::new(3), 200_000);
        let mut counts = vec![0_u32; 1_000];
        (0..draws).for_each(|draw| counts[zipf.rank(stream.uniform(draw)) as usize] += 1);
        let total: f64 = (1..=1_000).map(|rank| f64::from(rank).powf(-1.2)).sum();
        for rank in [1_u32, 2, 5, 20] {
            let expected = draws as f64 * f64::from(rank).powf(-1.2) / total;
            let found = f64::from(counts[rank as usize - 1]);
            assert!((found - expected).abs() < 5.0 * expected.sqrt(), "rank {rank}: {found}, expected {expected}");
        }
    }
}
