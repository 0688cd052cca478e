//! What a table is made from, and the checks that stand at its door.

use crate::init::Initializer;
use crate::optimizer::Optimizer;
use crate::{TableError, init::RowSeed};

/// Stripes of a table unless the caller chooses: enough that threads rarely meet, few enough that a request with a
/// few hundred ids of a table still finds several in each.
pub const DEFAULT_STRIPES: usize = 64;

/// Widest row accepted, in values.
const MAX_DIM: usize = 1 << 16;
/// The stripe is chosen by hash bits that the index does not use; there are 25 of them.
const MAX_STRIPES: usize = 1 << 16;

/// What a table is made from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableConfig {
    /// Weights per row, 1 to 65536.
    pub dim: usize,
    /// First value of a row.
    pub init: Initializer,
    /// How gradients are applied.
    pub optimizer: Optimizer,
    /// Independently locked parts, a power of two up to 65536.
    pub stripes: usize,
}

/// Sizes and rules of one table's slots; copied to where they are needed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) dim: usize,
    pub(crate) stride: usize,
    pub(crate) optimizer: Optimizer,
    init: Initializer,
    seed: u64,
    table: u32,
}

impl TableConfig {
    /// Refuses settings out of range.
    pub(crate) fn check(&self, table: u32) -> Result<(), TableError> {
        let sizes = if !(1..=MAX_DIM).contains(&self.dim) {
            Some(format!("dim is {}; expected 1 to {MAX_DIM}", self.dim))
        } else if !self.stripes.is_power_of_two() || self.stripes > MAX_STRIPES {
            Some(format!("stripes is {}; expected a power of two up to {MAX_STRIPES}", self.stripes))
        } else {
            None
        };
        let problem = sizes.or_else(|| self.init.problem()).or_else(|| self.optimizer.problem());
        problem.map_or(Ok(()), |problem| Err(TableError::Config { table, problem }))
    }

    pub(crate) fn layout(&self, seed: u64, table: u32) -> Layout {
        let stride = self.dim + self.optimizer.state_len(self.dim);
        Layout { dim: self.dim, stride, optimizer: self.optimizer, init: self.init, seed, table }
    }
}

impl Layout {
    /// First weights of a row.
    #[inline]
    pub(crate) fn fill_weights(&self, id: u64, weights: &mut [f32]) {
        self.init.fill(RowSeed { seed: self.seed, table: self.table, id }, weights);
    }

    /// First content of a whole slot.
    #[inline]
    pub(crate) fn fill_slot(&self, id: u64, slot: &mut [f32]) {
        let (weights, state) = slot.split_at_mut(self.dim);
        self.fill_weights(id, weights);
        self.optimizer.init_state(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: TableConfig = TableConfig {
        dim: 16,
        init: Initializer::Uniform { bound: 0.1 },
        optimizer: Optimizer::Adagrad { lr: 0.1, epsilon: 1e-8, initial_accumulator: 0.0, l2: 0.0 },
        stripes: DEFAULT_STRIPES,
    };

    fn refused(config: TableConfig) -> String {
        config.check(3).expect_err("out of range").to_string()
    }

    #[test]
    fn settings_out_of_range_are_refused_by_name() {
        assert_eq!(GOOD.check(3), Ok(()));
        assert_eq!(refused(TableConfig { dim: 0, ..GOOD }), "table 3: dim is 0; expected 1 to 65536");
        assert!(refused(TableConfig { stripes: 48, ..GOOD }).contains("power of two"));
        assert!(refused(TableConfig { stripes: 0, ..GOOD }).contains("power of two"));
        let init = Initializer::Normal { deviation: f32::NAN };
        assert!(refused(TableConfig { init, ..GOOD }).contains("normal deviation is NaN"));
        let optimizer = Optimizer::Sgd { lr: f32::INFINITY, l2: 0.0 };
        assert!(refused(TableConfig { optimizer, ..GOOD }).contains("lr of sgd is inf"));
    }

    #[test]
    fn a_slot_holds_weights_and_state() {
        let layout = GOOD.layout(1, 2);
        assert_eq!((layout.dim, layout.stride), (16, 32));
        let mut slot = [f32::NAN; 32];
        layout.fill_slot(9, &mut slot);
        assert!(slot[..16].iter().any(|weight| *weight != 0.0));
        assert_eq!(slot[16..], [0.0; 16]);
    }
}
