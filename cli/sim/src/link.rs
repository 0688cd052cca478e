//! One direction of a machine's network: messages leave one after another, in the order in which they come.

#[derive(Clone, Debug)]
pub(crate) struct NetworkLink {
    bytes_per_second: f64,
    free_at: f64,
    busy: f64,
}

impl NetworkLink {
    pub(crate) fn new(bytes_per_second: f64) -> Self {
        Self { bytes_per_second, free_at: 0.0, busy: 0.0 }
    }

    /// When a message that is given at `now` has passed.
    pub(crate) fn send(&mut self, now: f64, bytes: f64) -> f64 {
        let seconds = bytes / self.bytes_per_second;
        self.busy += seconds;
        self.free_at = self.free_at.max(now) + seconds;
        self.free_at
    }

    pub(crate) fn busy_seconds(&self) -> f64 {
        self.busy
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn a_full_link_passes_exactly_its_bytes_a_second() {
        let mut link = NetworkLink::new(100.0);
        let ends: Vec<f64> = (0..4).map(|_| link.send(0.0, 50.0)).collect();
        assert_eq!(ends, [0.5, 1.0, 1.5, 2.0]);
        assert_eq!(link.send(5.0, 100.0), 6.0);
        assert_eq!(link.busy_seconds(), 3.0);
    }

    /// M/D/1: with Poisson arrivals at load ρ a message of D seconds waits ρ·D / 2(1 − ρ) on average (Pollaczek and Khinchine).
    #[test]
    fn messages_wait_as_long_as_in_an_m_d_1_queue() {
        let mut chance = rand_pcg::Pcg64::seed_from_u64(7);
        for load in [0.3, 0.6, 0.8] {
            let (mut link, mut now, mut waited) = (NetworkLink::new(1.0), 0.0, 0.0);
            let messages = 400_000;
            for _ in 0..messages {
                now -= (1.0 - chance.random::<f64>()).ln() / load;
                waited += link.send(now, 1.0) - now - 1.0;
            }
            let (seen, expected) = (waited / f64::from(messages), load / (2.0 * (1.0 - load)));
            assert!((seen / expected - 1.0).abs() < 0.05, "load {load}: {seen} instead of {expected}");
        }
    }
}
