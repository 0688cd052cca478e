//! The rules of eviction: which rows are evicted, and where they go.
//!
//! The time by which rows age. The caller sets it, because this crate has no clock.

use std::sync::atomic::{AtomicU64, Ordering};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which rows leave memory, and where they go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Eviction")]
pub struct EvictionPolicy {
    /// Which rows leave first once `cluster.memory` is used up.
    pub order: EvictionOrder,
    /// Age since the last use at which a row is forgotten, `{ steps = 100000 }` or `{ seconds = 86400 }`. A forgotten row starts again
    /// from its first value. Default: none, no row is forgotten.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Ttl>,
    /// Euclidean norm below which the weights of a row count as small; 0 for none. Rows with small weights are evicted from time
    /// to time. With `target = "cold"` it needs `cluster.memory`.
    #[schemars(range(min = 0.0, max = 1e30))]
    pub small_norm: f32,
    /// Where rows go that are evicted because memory is short or their norm is small.
    pub target: EvictionTarget,
}

/// Which rows are evicted first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum EvictionOrder {
    /// The least recently used rows.
    #[default]
    Lru,
    /// The least frequently used rows. After 10,000 steps a use counts half.
    Lfu {
        /// Steps after which a use counts half, at least 1. Every job has the default.
        #[serde(skip, default = "half_life")]
        half_life: u32,
    },
}

fn half_life() -> u32 {
    10_000
}

/// An age, in one of two units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Ttl {
    /// By training.
    Steps(
        /// Steps of training without a use.
        #[schemars(range(min = 1, max = 4_294_967_295_u32))]
        u32,
    ),
    /// By time.
    Seconds(
        /// Seconds without a use. They are counted while the row's server runs: setting the time of day ages no row, nor does the time
        /// between a save and the run that resumes from it. Excludes `order` by frequency, which counts steps.
        #[schemars(range(min = 1, max = 4_294_967_295_u32))]
        u32,
    ),
}

/// Where evicted rows go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EvictionTarget {
    /// To the cold tier on disk. A lookup brings them back, so nothing is lost.
    #[default]
    Cold,
    /// Nowhere. They are dropped and counted. Their next use starts from their first weights.
    Drop,
}

impl EvictionPolicy {
    pub fn keeps_evicted_rows(&self) -> bool {
        self.target == EvictionTarget::Cold
    }

    pub(crate) fn problem(&self) -> Option<String> {
        if !(self.small_norm.is_finite() && self.small_norm >= 0.0) {
            return Some(format!("small_norm is {}; expected a finite number of at least 0", self.small_norm));
        }
        if matches!(self.ttl, Some(Ttl::Steps(0) | Ttl::Seconds(0))) {
            return Some("the time to live is 0; expected at least 1".to_owned());
        }
        match (self.order, self.ttl) {
            (EvictionOrder::Lfu { half_life: 0 }, _) => {
                Some("the half-life of uses is 0 steps; expected at least 1".to_owned())
            }
            (EvictionOrder::Lfu { .. }, Some(Ttl::Seconds(_))) => {
                Some("uses are counted by steps (lfu), but the time to live is in seconds; give it in steps".to_owned())
            }
            _ => None,
        }
    }
}

/// A time, in both units of a row's age.
///
/// Steps are training steps. They are equal in every process of a run. Seconds count from the start of this process.
/// For another process only differences of seconds have a meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableTime {
    pub steps: u64,
    /// Seconds since the tables were made, by a monotonic clock.
    pub seconds: u64,
}

/// What becomes of the count of steps when saved rows are put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepClock {
    /// Steps count on from those of the save.
    GoesOn,
    /// Steps count from those of this run. A row's time to live in steps counts from the start of the run at the earliest.
    Restarts,
}

/// A time that only moves forwards.
#[derive(Debug, Default)]
pub(crate) struct TableClock {
    steps: AtomicU64,
    seconds: AtomicU64,
}

impl TableClock {
    /// Advances to `moment`. A time before the present one is ignored.
    pub(crate) fn advance(&self, moment: TableTime) {
        self.steps.fetch_max(moment.steps, Ordering::Relaxed);
        self.seconds.fetch_max(moment.seconds, Ordering::Relaxed);
    }

    /// Counts steps from 0 again. Seconds continue, because they belong to this process and not to the model.
    pub(crate) fn restart_steps(&self) {
        self.steps.store(0, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> TableTime {
        TableTime { steps: self.steps.load(Ordering::Relaxed), seconds: self.seconds.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_goes_back() {
        let clock = TableClock::default();
        clock.advance(TableTime { steps: 5, seconds: 100 });
        clock.advance(TableTime { steps: 9, seconds: 3 });
        assert_eq!(clock.now(), TableTime { steps: 9, seconds: 100 });
    }
}
