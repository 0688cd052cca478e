//! The settings of a table, and their checks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::optimizer::{LARGEST, Optimizer, UpdateLimits};
use crate::row::access::AccessCodec;
use crate::row::init::Initializer;
use crate::{AdmissionPolicy, EvictionPolicy, LearningRateSchedule, TableError, WeightType, init::RowSeed};

/// The default number of stripes of a table. Threads rarely want the same stripe of 64, and a request with a few
/// hundred ids of a table still finds several ids in each stripe.
pub const DEFAULT_STRIPES: usize = 64;

/// Every stripe may hold this many rows, whatever the memory budget. Requests page rows in by chunks of this size.
pub(crate) const STRIPE_FLOOR: usize = 64;

const MAX_DIM: usize = 1 << 16;
/// The hash bits that choose the stripe are not used by the index. There are 25 such bits.
const MAX_STRIPES: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableConfig {
    /// Weights per row, 1 to 65536.
    pub dim: usize,
    /// How the first weights of a row are drawn.
    pub init: Initializer,
    pub optimizer: Optimizer,
    /// Clipping of gradients, and the bound of weights. [`LARGEST`] bounds both.
    pub limits: UpdateLimits,
    /// What the table does with a gradient that is not finite, or that is unclipped and larger than [`LARGEST`].
    pub non_finite: NonFinitePolicy,
    pub element: WeightType,
    pub schedule: LearningRateSchedule,
    pub admission: AdmissionPolicy,
    pub eviction: EvictionPolicy,
    /// The number of parts with a lock of their own, a power of two up to 65536.
    pub stripes: usize,
}

/// What the table does with a gradient that is infinite, not a number, or so large that the row might overflow.
///
/// A table refuses the whole push, or it skips the row and updates the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NonFinitePolicy {
    /// The push is refused, and the run stops.
    #[default]
    Refuse,
    /// The gradient is skipped and counted.
    Skip,
}

impl Default for TableConfig {
    fn default() -> Self {
        Self {
            dim: 16,
            init: Initializer::Zero,
            optimizer: Optimizer::Sgd { lr: 0.1, momentum: 0.0, l2: 0.0 },
            limits: UpdateLimits::default(),
            non_finite: NonFinitePolicy::Refuse,
            element: WeightType::F32,
            schedule: LearningRateSchedule::Constant,
            admission: AdmissionPolicy::Always,
            eviction: EvictionPolicy::default(),
            stripes: DEFAULT_STRIPES,
        }
    }
}

/// Sizes and rules of a table's slots. Each user has a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowLayout {
    pub(crate) dim: usize,
    /// Words of a row's weights.
    pub(crate) weights: usize,
    /// Words of a slot.
    pub(crate) stride: usize,
    pub(crate) element: WeightType,
    pub(crate) optimizer: Optimizer,
    pub(crate) limits: UpdateLimits,
    pub(crate) schedule: LearningRateSchedule,
    pub(crate) non_finite: NonFinitePolicy,
    pub(crate) seed: u64,
    pub(crate) table: u32,
    init: Initializer,
}

impl TableConfig {
    pub(crate) fn check_settings(&self, table: u32) -> Result<(), TableError> {
        let sizes = if !(1..=MAX_DIM).contains(&self.dim) {
            Some(format!("dim is {}; expected 1 to {MAX_DIM}", self.dim))
        } else if !self.stripes.is_power_of_two() || self.stripes > MAX_STRIPES {
            Some(format!("stripes is {}; expected a power of two up to {MAX_STRIPES}", self.stripes))
        } else {
            None
        };
        let rules = || self.schedule.problem().or_else(|| self.admission.problem()).or_else(|| self.eviction.problem());
        let settings = || self.init.problem().or_else(|| self.optimizer.problem()).or_else(|| self.limits.problem());
        let problem = sizes.or_else(settings).or_else(rules);
        problem.map_or(Ok(()), |problem| Err(TableError::Config { table, problem }))
    }

    /// Words of 32 bits per slot: weights and optimiser state.
    pub fn stride(&self) -> usize {
        self.element.words(self.dim) + self.optimizer.state_len(self.dim)
    }

    /// Bytes of the rows that a stripe may hold whatever the memory budget.
    pub fn stripe_floor(&self) -> usize {
        STRIPE_FLOOR * self.cold_words() * size_of::<u32>()
    }

    /// Words of 32 bits of a row in the cold tier: its slot and its access metadata.
    pub fn cold_words(&self) -> usize {
        self.stride() + 1
    }

    /// Whether rows have access metadata in a server whose memory is limited or not: they may be evicted or refused.
    pub fn has_access(&self, is_limited: bool) -> bool {
        let leaves_for_cold = self.eviction.small_norm > 0.0 && self.eviction.keeps_evicted_rows();
        is_limited || self.eviction.ttl.is_some() || leaves_for_cold || self.admission != AdmissionPolicy::Always
    }

    /// The format of access metadata, as [`crate::Table::access_layout`].
    pub fn access_format(&self) -> String {
        AccessCodec::new(&self.eviction).describe()
    }

    pub(crate) fn layout(&self, seed: u64, table: u32) -> RowLayout {
        let Self { dim, init, optimizer, element, schedule, non_finite, .. } = *self;
        let limits = UpdateLimits { weight_bound: self.limits.weight_bound.min(LARGEST), ..self.limits };
        let (weights, stride) = (element.words(dim), self.stride());
        RowLayout { dim, weights, stride, element, optimizer, limits, schedule, non_finite, seed, table, init }
    }
}

impl RowLayout {
    /// Writes the first weights of a row, rounded as its slot stores them.
    #[inline]
    pub(crate) fn fill_weights(&self, id: u64, weights: &mut [f32]) {
        self.init.fill(RowSeed { seed: self.seed, table: self.table, id }, weights);
        self.element.round_nearest(weights);
    }

    /// Writes the first content of a slot.
    #[inline]
    pub(crate) fn fill_slot(&self, id: u64, slot: &mut [u32]) {
        let (words, state) = slot.split_at_mut(self.weights);
        let state = bytemuck::cast_slice_mut(state);
        if self.element == WeightType::F32 {
            let weights = bytemuck::cast_slice_mut(words);
            self.fill_weights(id, weights);
            self.optimizer.init_state(weights, state);
        } else {
            with_buffer(self.dim, |weights| {
                self.fill_weights(id, weights);
                self.element.encode(weights, words);
                self.optimizer.init_state(weights, state);
            });
        }
    }

    #[inline(always)]
    pub(crate) fn read_weights(&self, slot: &[u32], weights: &mut [f32]) {
        self.element.decode(&slot[..self.weights], weights);
    }
}

/// Lends a buffer of `dim` values. A row of usual width needs no allocation.
#[inline]
fn with_buffer(dim: usize, work: impl FnOnce(&mut [f32])) {
    const USUAL: usize = 256;
    if dim <= USUAL { work(&mut [0.0; USUAL][..dim]) } else { work(&mut vec![0.0; dim]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ttl;

    fn good() -> TableConfig {
        let optimizer = Optimizer::Adagrad { lr: 0.1, epsilon: 1e-8, initial_accumulator: 0.0, l2: 0.0 };
        TableConfig { dim: 16, init: Initializer::Uniform { bound: 0.1 }, optimizer, ..TableConfig::default() }
    }

    fn refused(config: TableConfig) -> String {
        config.check_settings(3).expect_err("out of range").to_string()
    }

    #[test]
    fn settings_out_of_range_are_refused_by_name() {
        assert_eq!(good().check_settings(3), Ok(()));
        assert_eq!(refused(TableConfig { dim: 0, ..good() }), "table 3: dim is 0; expected 1 to 65536");
        let (init, optimizer) =
            (Initializer::Normal { deviation: f32::NAN }, Optimizer::Sgd { lr: f32::INFINITY, momentum: 0.0, l2: 0.0 });
        let limits = UpdateLimits { weight_bound: 0.0, ..UpdateLimits::default() };
        let admission = AdmissionPolicy::Probability { share: 1.5 };
        let eviction = EvictionPolicy { ttl: Some(Ttl::Steps(0)), ..EvictionPolicy::default() };
        let schedule = LearningRateSchedule::Step { warmup: 0, every: 0, factor: 0.5 };
        for (config, reason) in [
            (TableConfig { stripes: 48, ..good() }, "power of two"),
            (TableConfig { stripes: 0, ..good() }, "power of two"),
            (TableConfig { init, ..good() }, "normal deviation is NaN"),
            (TableConfig { optimizer, ..good() }, "Sgd { lr: inf"),
            (TableConfig { limits, ..good() }, "weight_bound is 0"),
            (TableConfig { admission, ..good() }, "a share of 1.5"),
            (TableConfig { eviction, ..good() }, "time to live is 0"),
            (TableConfig { schedule, ..good() }, "every 0 steps"),
        ] {
            assert!(refused(config).contains(reason), "{reason}");
        }
    }

    /// A lookup for reading returns the weights that the slot would hold.
    #[test]
    fn a_narrow_row_starts_from_the_nearest_values() {
        let ftrl = Optimizer::Ftrl { lr: 0.1, beta: 1.0, l1: 0.5, l2: 0.0 };
        // Words of the weights, then the rounding error: relative, and of the row. Weights are up to 0.1.
        for (element, dim, words, error, steps) in [
            (WeightType::F16, 5, 3, 2.0_f32.powi(-11), 0.0),
            (WeightType::Bf16, 300, 150, 2.0_f32.powi(-8), 0.0),
            (WeightType::Int8, 5, 3, 0.0, 0.1 / 253.0),
            (WeightType::Int8, 300, 76, 0.0, 0.1 / 253.0),
        ] {
            let config = TableConfig { dim, element, optimizer: ftrl, ..good() };
            let [layout, exact] =
                [element, WeightType::F32].map(|element| TableConfig { element, ..config }.layout(1, 2));
            assert_eq!(layout.stride, words + 2 * dim);
            let mut slot = vec![u32::MAX; layout.stride];
            layout.fill_slot(9, &mut slot);
            let [mut stored, mut reported, mut unrounded] = [(); 3].map(|()| vec![f32::NAN; dim]);
            layout.read_weights(&slot, &mut stored);
            layout.fill_weights(9, &mut reported);
            exact.fill_weights(9, &mut unrounded);
            assert_eq!(stored, reported);
            let z: &[f32] = bytemuck::cast_slice(&slot[layout.weights..][..dim]);
            for index in 0..dim {
                assert!((stored[index] - unrounded[index]).abs() <= error * unrounded[index].abs() + steps);
                let threshold = 0.5 * stored[index].signum() * f32::from(stored[index] != 0.0);
                assert_eq!(z[index], -(stored[index] * 10.0) - threshold);
            }
        }
    }
}
