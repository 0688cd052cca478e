//! Rows as training leaves them: uniform first weights, changed by a few Adagrad steps, most of them by one or two.

const STRIPES: u64 = 64;

/// Rows by number. Row `n` has a cold key that looks random, like that of a real id.
pub(crate) struct Workload {
    rows: usize,
    dim: usize,
    slots: Vec<u32>,
}

pub(crate) struct Batch {
    pub(crate) cold_keys: Vec<u64>,
    pub(crate) rows: Vec<u32>,
}

impl Workload {
    pub(crate) fn new(rows: usize, dim: usize) -> Self {
        let mut slots = Vec::with_capacity(rows * 2 * dim);
        for number in 0..rows as u64 {
            append(number, dim, &mut slots);
        }
        Self { rows, dim, slots }
    }

    pub(crate) fn width(&self) -> usize {
        2 * self.dim
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots.len() * 4
    }

    /// All rows in batches. Each batch is from one of [`STRIPES`] ranges of cold keys, like the rows that one stripe
    /// evicts.
    pub(crate) fn batches(&self, at_once: usize) -> impl Iterator<Item = Batch> {
        let mut numbers: Vec<usize> = (0..self.rows).collect();
        for window in numbers.chunks_mut(at_once * STRIPES as usize) {
            window.sort_by_key(|number| cold_key(*number as u64) / (u64::MAX / STRIPES));
        }
        let starts = (0..self.rows).step_by(at_once);
        starts.map(move |start| {
            let part = &numbers[start..self.rows.min(start + at_once)];
            Batch { cold_keys: self.cold_keys(part), rows: self.rows(part) }
        })
    }

    /// Some random rows once more, in the order of their cold keys.
    pub(crate) fn again(&self, call: usize, count: usize) -> Batch {
        let mut picked = self.pick(call + 1_000_000, count.min(self.rows));
        picked.sort_unstable_by_key(|number| cold_key(*number as u64));
        Batch { cold_keys: self.cold_keys(&picked), rows: self.rows(&picked) }
    }

    /// All rows by number, in parts.
    pub(crate) fn in_order(&self, at_once: usize) -> impl Iterator<Item = &[u32]> {
        self.slots.chunks(at_once * self.width())
    }

    pub(crate) fn pick(&self, call: usize, count: usize) -> Vec<usize> {
        let random = |index: usize| mix((call * count + index) as u64 ^ 0x5eed) as usize % self.rows;
        (0..count).map(random).collect()
    }

    pub(crate) fn cold_keys(&self, numbers: &[usize]) -> Vec<u64> {
        numbers.iter().map(|number| cold_key(*number as u64)).collect()
    }

    pub(crate) fn absent(&self, call: usize, count: usize) -> Vec<u64> {
        (0..count).map(|index| cold_key((self.rows + call * count + index) as u64)).collect()
    }

    pub(crate) fn rows(&self, numbers: &[usize]) -> Vec<u32> {
        numbers.iter().flat_map(|number| &self.slots[number * self.width()..][..self.width()]).copied().collect()
    }
}

/// Appends a row's weights and accumulators.
fn append(number: u64, dim: usize, slots: &mut Vec<u32>) {
    let (lr, epsilon, initial) = (0.01, 1e-8, 0.01);
    // The number of steps is distributed as in click logs: half of the ids occur once, a quarter twice, and so on.
    let steps = 1 + mix(number).trailing_ones() as u64;
    let uniform = |lane: u64| (mix(number.wrapping_mul(0x1_0001) + lane) >> 40) as f32 / (1 << 23) as f32 - 1.0;
    let (mut weights, mut sums) = (Vec::with_capacity(dim), Vec::with_capacity(dim));
    for lane in 0..dim as u64 {
        let (mut weight, mut sum) = (0.01 * uniform(lane), initial);
        for step in 1..=steps {
            let gradient = 0.1 * uniform(lane + step * dim as u64).powi(3);
            sum += gradient * gradient;
            weight -= lr * gradient / (sum.sqrt() + epsilon);
        }
        weights.push(weight.to_bits());
        sums.push(sum.to_bits());
    }
    slots.extend(weights);
    slots.extend(sums);
}

fn cold_key(number: u64) -> u64 {
    mix(number)
}

/// A one-to-one mixing function of 64 bits, the finaliser of splitmix64.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
