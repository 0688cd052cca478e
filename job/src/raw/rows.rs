//! Keys of `[embedding]` and `[tables.<name>]` about rows: how they are stored, which there are, where they stay.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Defaults of `error` and `failure`.
pub(crate) const SKETCH: (f64, f64) = (1e-5, 0.01);

/// What becomes of a gradient that is infinite or not a number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NonFinite {
    /// Its whole push is refused, and the run stops.
    Refuse,
    /// Its row is skipped and counted; the other rows of the push are updated.
    Skip,
}

/// How weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Element {
    /// Exact.
    F32,
    /// Half the bytes, rounded stochastically: 11 significant bits, largest value 65504.
    F16,
    /// Half the bytes, rounded stochastically: 8 significant bits, the range of f32.
    Bf16,
}

/// Factor on the learning rate by step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Schedule {
    /// Always 1.
    Constant,
    /// Up to 1, then down in a straight line to `floor`, where it stays.
    Linear {
        /// Steps of the rise from 0 to 1.
        #[serde(default)]
        #[schemars(range(max = 1_000_000_000_000_u64))]
        warmup: u64,
        /// Steps of the fall after it.
        #[schemars(range(min = 1, max = 1_000_000_000_000_u64))]
        decay: u64,
        /// Last factor.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0))]
        floor: f64,
    },
    /// Up to 1, then down along half a cosine to `floor`, where it stays (Loshchilov and Hutter 2017).
    Cosine {
        /// Steps of the rise from 0 to 1.
        #[serde(default)]
        #[schemars(range(max = 1_000_000_000_000_u64))]
        warmup: u64,
        /// Steps of the fall after it.
        #[schemars(range(min = 1, max = 1_000_000_000_000_u64))]
        decay: u64,
        /// Last factor.
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0))]
        floor: f64,
    },
    /// Up to 1, then times `factor` after each further `every` steps.
    Step {
        /// Steps of the rise from 0 to 1.
        #[serde(default)]
        #[schemars(range(max = 1_000_000_000_000_u64))]
        warmup: u64,
        /// Steps between two falls.
        #[schemars(range(min = 1, max = 1_000_000_000_000_u64))]
        every: u64,
        /// What remains after a fall.
        #[serde(default = "factor")]
        #[schemars(range(min = 0.0, max = 1.0))]
        factor: f64,
    },
}

/// Which ids get a row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Admission {
    /// Each, when it is first looked up for training.
    Always,
    /// Each, when it is looked up for training this many times.
    Count {
        /// Sightings needed; the row is there from the last of them on.
        #[serde(default = "sightings")]
        #[schemars(range(min = 1, max = 65535))]
        sightings: u32,
        /// How sightings are counted.
        #[serde(default = "counter")]
        counter: Counter,
        /// Share of all sightings of a table on a server that a count may be too high by; of `count_min` alone, which
        /// takes 2 bytes × 2.72 / error × ln(1 / failure) for each table and server.
        #[serde(default = "error")]
        #[schemars(range(min = 1e-8, max = 0.5))]
        error: f64,
        /// Probability that a count is too high by more; of `count_min` alone.
        #[serde(default = "failure")]
        #[schemars(range(min = 1e-9, max = 0.5))]
        failure: f64,
    },
    /// A share of the ids, chosen by a hash of seed, table and id; the others never.
    Probability {
        /// Share of ids that get a row.
        #[schemars(range(min = 0.0, max = 1.0))]
        share: f64,
    },
}

/// How sightings are counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Counter {
    /// One counter for each id that has no row yet.
    Exact,
    /// In constant memory, now and then too high, never too low (Cormode and Muthukrishnan 2005).
    CountMin,
}

/// Which rows leave memory first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Evict {
    /// Those used longest ago.
    Lru,
    /// Those used least often of late.
    Lfu {
        /// Steps after which a use counts half.
        #[serde(default = "half_life")]
        #[schemars(range(min = 1, max = 1_000_000_000))]
        half_life: u32,
    },
}

/// Where rows go that leave memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Victims {
    /// To disk, from where they come back when they are asked for: nothing is lost.
    Cold,
    /// Nowhere: they start again from their first value. Counted.
    Drop,
}

fn factor() -> f64 {
    0.5
}

fn sightings() -> u32 {
    2
}

fn counter() -> Counter {
    Counter::Exact
}

fn error() -> f64 {
    SKETCH.0
}

fn failure() -> f64 {
    SKETCH.1
}

fn half_life() -> u32 {
    10_000
}
