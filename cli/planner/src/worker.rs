//! A simulated worker: the state machine of its training loop, its staleness window, and what it has read, looked up and pushed.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use rand_pcg::Pcg64;
use rand_pcg::rand_core::{RngCore, SeedableRng};
use zagros_worker_core::{Action, LoopConfig, RankProgress, TrainingLoop, TrainingPolicy};

use crate::coordination::SimMembership;
use crate::scenario::SimSettings;

/// Tells the workers of one seed apart: 2^64 divided by the golden ratio, which spreads neighbouring numbers.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A process of a worker. After a loss another process has the same index and the next life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkerId {
    pub(crate) index: usize,
    pub(crate) life: u32,
}

/// Samples that make a step together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SimBatch {
    pub(crate) number: u64,
    pub(crate) samples: u64,
    /// Splits that they are of, and how many samples of each.
    pub(crate) parts: Vec<(u64, u64)>,
}

/// The window of the embedding client without its waits: a worker has at most τ + 1 batches between lookup and acknowledgement (invariant DP-4).
#[derive(Debug)]
pub(crate) struct SimWindow {
    staleness: usize,
    /// Each place holds it once.
    token: Rc<()>,
}

/// A batch's place in the window, which is free once it is dropped.
#[derive(Debug)]
pub(crate) struct WindowPlace {
    /// Earlier batches in the window.
    pub(crate) staleness: usize,
    _token: Rc<()>,
}

impl SimWindow {
    pub(crate) fn new(staleness: usize) -> Self {
        Self { staleness, token: Rc::new(()) }
    }

    /// `None` while the window is full.
    pub(crate) fn take_place(&self) -> Option<Rc<WindowPlace>> {
        let inside = Rc::strong_count(&self.token) - 1;
        let place = || Rc::new(WindowPlace { staleness: inside, _token: Rc::clone(&self.token) });
        (inside <= self.staleness).then(place)
    }
}

#[derive(Debug)]
pub(crate) struct BatchLookup {
    pub(crate) batch: SimBatch,
    pub(crate) place: Rc<WindowPlace>,
    pub(crate) arrived: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SplitProgress {
    pub(crate) unread: u64,
    /// Read, and their gradients not acknowledged.
    pub(crate) outstanding: u64,
    pub(crate) trained: u64,
}

/// The loop of a worker that trains for an epoch, and does nothing else.
pub(crate) fn one_epoch(policy: TrainingPolicy, is_replacement: bool) -> LoopConfig {
    LoopConfig {
        policy,
        from_memory: false,
        epochs: 1,
        max_steps: None,
        evaluate_every: None,
        early_stop: None,
        has_held_out: false,
        resets_rows: false,
        keeps_checkpoints: false,
        checkpoint_every: None,
        is_replacement,
    }
}

/// Where a worker's time went, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TimeSpent {
    pub(crate) batches: f64,
    pub(crate) dense: f64,
    pub(crate) group: f64,
}

#[derive(Debug)]
pub(crate) struct SimWorker {
    pub(crate) id: WorkerId,
    pub(crate) training: TrainingLoop,
    /// What its driver does now, and since when.
    pub(crate) action: Action,
    pub(crate) since: f64,
    pub(crate) is_alive: bool,
    pub(crate) has_ended: bool,
    pub(crate) membership: SimMembership,
    pub(crate) generation: u64,
    /// The group that the coordinator has named, its generation and its rank there, until all of it have heard of it.
    pub(crate) formed: Option<(u64, u32)>,
    pub(crate) progress: RankProgress,
    /// How many times longer its steps take.
    pub(crate) slowness: f64,
    pub(crate) chance: Pcg64,
    pub(crate) window: SimWindow,
    /// Splits to read, in order.
    pub(crate) splits: VecDeque<u64>,
    pub(crate) held: BTreeMap<u64, SplitProgress>,
    pub(crate) batches_read: u64,
    /// Batches that are being parsed, and those that are ready.
    pub(crate) parsing: Vec<SimBatch>,
    pub(crate) ready: VecDeque<SimBatch>,
    pub(crate) streams: bool,
    /// The coordinator has nothing more for its stream.
    pub(crate) is_dry: bool,
    pub(crate) lookups: VecDeque<BatchLookup>,
    /// It waits for the first of `lookups`.
    pub(crate) asks: bool,
    pub(crate) batch: Option<(SimBatch, Rc<WindowPlace>)>,
    /// The place of the last batch in the window, until nothing is to be done between it and the next.
    pub(crate) kept: Option<Rc<WindowPlace>>,
    pub(crate) unacknowledged: usize,
    /// It waits until nothing is unacknowledged.
    pub(crate) drains: bool,
    /// Counts dense steps, so that the end of one that was given up is distinguished.
    pub(crate) attempts: u64,
    /// What of the step has not ended.
    pub(crate) step_parts: usize,
    pub(crate) steps: u64,
    pub(crate) spent: TimeSpent,
}

impl SimWorker {
    pub(crate) fn new(
        id: WorkerId,
        membership: SimMembership,
        config: LoopConfig,
        staleness: usize,
        settings: &SimSettings,
    ) -> Self {
        let life = u64::from(id.life) << 32;
        let mut chance = Pcg64::seed_from_u64(settings.seed ^ (id.index as u64 + 1 + life).wrapping_mul(SPREAD));
        let is_slow = draw_uniform(&mut chance) < settings.straggler_share;
        Self {
            id,
            training: TrainingLoop::new(config),
            action: Action::LeaveGroup,
            since: 0.0,
            is_alive: true,
            has_ended: false,
            membership,
            generation: 0,
            formed: None,
            progress: RankProgress::default(),
            slowness: if is_slow { settings.straggler_factor } else { 1.0 },
            chance,
            window: SimWindow::new(staleness),
            splits: VecDeque::new(),
            held: BTreeMap::new(),
            batches_read: 0,
            parsing: Vec::new(),
            ready: VecDeque::new(),
            streams: false,
            is_dry: false,
            lookups: VecDeque::new(),
            asks: false,
            batch: None,
            kept: None,
            unacknowledged: 0,
            drains: false,
            attempts: 0,
            step_parts: 0,
            steps: 0,
            spent: TimeSpent::default(),
        }
    }

    /// How many times longer this step takes: log-normal with mean 1, for a slow worker with its factor.
    pub(crate) fn draw_step(&mut self, variation: f64) -> f64 {
        if variation == 0.0 {
            return self.slowness;
        }
        let (u, v) = (1.0 - draw_uniform(&mut self.chance), draw_uniform(&mut self.chance));
        // Box and Muller.
        let normal = libm::sqrt(-2.0 * libm::log(u)) * libm::cos(std::f64::consts::TAU * v);
        let sigma = libm::sqrt(libm::log(1.0 + variation * variation));
        self.slowness * libm::exp(sigma * normal - sigma * sigma / 2.0)
    }

    /// The next batch of at most `most` samples from the splits that are there; `None` if they have none.
    pub(crate) fn cut_batch(&mut self, most: u64) -> Option<SimBatch> {
        let mut batch = SimBatch { number: self.batches_read, samples: 0, parts: Vec::new() };
        while batch.samples < most {
            let Some(id) = self.splits.front().copied() else { break };
            let Some(split) = self.held.get_mut(&id) else { break };
            let taken = split.unread.min(most - batch.samples);
            split.unread -= taken;
            split.outstanding += taken;
            batch.samples += taken;
            if taken > 0 {
                batch.parts.push((id, taken));
            }
            if split.unread == 0 {
                self.splits.pop_front();
            }
        }
        (batch.samples > 0).then(|| {
            self.batches_read += 1;
            batch
        })
    }

    /// Notes that the gradients of a batch are acknowledged. Returns the splits that are complete with it.
    pub(crate) fn acknowledge(&mut self, batch: &SimBatch) -> Vec<u64> {
        let mut complete = Vec::new();
        for (id, samples) in &batch.parts {
            let Some(split) = self.held.get_mut(id) else { continue };
            split.outstanding -= samples;
            split.trained += samples;
            if split.unread == 0 && split.outstanding == 0 {
                self.held.remove(id);
                complete.push(*id);
            }
        }
        complete
    }

    /// Whether nothing more comes from the stream.
    pub(crate) fn is_exhausted(&self) -> bool {
        !self.streams || self.is_dry && self.parsing.is_empty() && self.ready.is_empty() && self.lookups.is_empty()
    }

    /// Lookups that started before their batch was asked for.
    pub(crate) fn lookups_ahead(&self) -> usize {
        self.lookups.len().saturating_sub(usize::from(self.asks))
    }
}

/// From 0, below 1.
pub(crate) fn draw_uniform(chance: &mut Pcg64) -> f64 {
    (chance.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(share: f64) -> SimWorker {
        let config = one_epoch(TrainingPolicy::OneWorker { in_turns: false }, false);
        let settings = SimSettings { seed: 3, straggler_share: share, straggler_factor: 4.0, ..SimSettings::default() };
        SimWorker::new(WorkerId { index: 0, life: 0 }, SimMembership::default(), config, 1, &settings)
    }

    #[test]
    fn batches_are_cut_across_splits_and_a_split_is_complete_with_its_last_one() {
        let mut worker = worker(0.0);
        for (id, unread) in [(7, 5), (8, 2)] {
            worker.splits.push_back(id);
            worker.held.insert(id, SplitProgress { unread, ..SplitProgress::default() });
        }
        let batches: Vec<SimBatch> = std::iter::from_fn(|| worker.cut_batch(3)).collect();
        let parts: Vec<_> = batches.iter().map(|batch| batch.parts.clone()).collect();
        assert_eq!(parts, [vec![(7, 3)], vec![(7, 2), (8, 1)], vec![(8, 1)]]);
        // In any order.
        let complete: Vec<Vec<u64>> = [2, 0, 1].map(|batch| worker.acknowledge(&batches[batch])).to_vec();
        assert_eq!(complete, [vec![], vec![], vec![7, 8]]);
    }

    #[test]
    fn steps_vary_around_their_mean() {
        let mut steady = worker(0.0);
        assert_eq!(steady.draw_step(0.0), 1.0);
        let draws: Vec<f64> = (0..40_000).map(|_| steady.draw_step(0.2)).collect();
        let mean = draws.iter().sum::<f64>() / 40_000.0;
        let deviation = (draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / 40_000.0).sqrt();
        assert!((mean - 1.0).abs() < 0.005 && (deviation - 0.2).abs() < 0.005, "{mean} {deviation}");
        assert_eq!(worker(1.0).draw_step(0.0), 4.0);
    }
}
