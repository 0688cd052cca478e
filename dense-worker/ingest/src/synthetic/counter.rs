//! Random numbers as a function of (seed, stream, position), so that any row can be made on its own.

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
    fn streams_differ() {
        assert_ne!(RandomStream::new(1).bits(0), RandomStream::new(2).bits(0));
        assert_ne!(RandomStream::new(1).bits(0), RandomStream::new(1).bits(1));
    }
}
