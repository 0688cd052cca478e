//! Which ids get a row: the keys of a job file. The keys of the frequency count are side by side.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zagros_table::{AdmissionPolicy, FrequencyCounter};

/// Probability that the count of a sketch is too high by more than its `error`.
const FAILURE: f32 = 0.01;

/// Which ids get a row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum AdmissionKeys {
    /// Each id, at its first training lookup.
    Always,
    /// Each id, once it was looked up for training often enough.
    Count {
        /// Training lookups of an id after which it gets a row. The last of them already finds the row.
        #[serde(default = "lookups")]
        #[schemars(range(min = 1, max = 65535))]
        min_count: u32,
        /// How lookups are counted.
        #[serde(default)]
        counter: CounterKind,
        /// Largest overcount, as a share of all lookups of a table on a server; one count in 100 may be too high by more. Used by
        /// `count_min` only, which takes 27 bytes / error for each table and server.
        #[serde(default = "error")]
        #[schemars(range(min = 1e-8, max = 0.5))]
        error: f32,
    },
    /// A share of the ids, chosen by a hash of seed, table and id. The other ids never get a row.
    Probability {
        /// Share of ids that get a row.
        #[schemars(range(min = 0.0, max = 1.0))]
        share: f32,
    },
}

/// How lookups are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum CounterKind {
    /// One counter for each id that has no row yet.
    #[default]
    Exact,
    /// A sketch with constant memory. A count is sometimes too high and never too low (Cormode and Muthukrishnan 2005).
    CountMin,
}

pub(super) fn serialize<S: Serializer>(admission: &AdmissionPolicy, to: S) -> Result<S::Ok, S::Error> {
    AdmissionKeys::from(*admission).serialize(to)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<AdmissionPolicy, D::Error> {
    AdmissionKeys::deserialize(from).map(AdmissionPolicy::from)
}

impl From<AdmissionKeys> for AdmissionPolicy {
    fn from(keys: AdmissionKeys) -> Self {
        match keys {
            AdmissionKeys::Always => Self::Always,
            AdmissionKeys::Count { min_count, counter: CounterKind::Exact, .. } => {
                Self::Count { threshold: min_count, counter: FrequencyCounter::Exact }
            }
            AdmissionKeys::Count { min_count, counter: CounterKind::CountMin, error } => {
                Self::Count { threshold: min_count, counter: FrequencyCounter::CountMin { error, failure: FAILURE } }
            }
            AdmissionKeys::Probability { share } => Self::Probability { share },
        }
    }
}

impl From<AdmissionPolicy> for AdmissionKeys {
    fn from(admission: AdmissionPolicy) -> Self {
        match admission {
            AdmissionPolicy::Always => Self::Always,
            AdmissionPolicy::Count { threshold: min_count, counter: FrequencyCounter::Exact } => {
                Self::Count { min_count, counter: CounterKind::Exact, error: error() }
            }
            AdmissionPolicy::Count { threshold: min_count, counter: FrequencyCounter::CountMin { error, .. } } => {
                Self::Count { min_count, counter: CounterKind::CountMin, error }
            }
            AdmissionPolicy::Probability { share } => Self::Probability { share },
        }
    }
}

fn lookups() -> u32 {
    2
}

fn error() -> f32 {
    1e-5
}
