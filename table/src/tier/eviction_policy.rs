//! The rules of eviction: which rows are evicted, and where they go.

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
    #[must_use]
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
