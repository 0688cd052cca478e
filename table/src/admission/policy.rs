//! The settings of admission: which ids get a row.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sketch::CountMinSketch;

/// The largest count of a sketch.
const LARGEST_COUNT: u32 = u16::MAX as u32;

/// Which ids get a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[schemars(rename = "Admission")]
pub enum AdmissionPolicy {
    /// Each id, at its first training lookup.
    #[default]
    Always,
    /// Each id, once it was looked up for training often enough.
    Count {
        /// Training lookups of an id after which it gets a row. The last of them already finds the row.
        #[serde(rename = "min_count", default = "twice")]
        #[schemars(range(min = 1, max = 65535))]
        threshold: u32,
        /// How lookups are counted.
        #[serde(default)]
        counter: FrequencyCounter,
    },
    /// A share of the ids, chosen by a hash of seed, table and id. The other ids never get a row.
    Probability {
        /// Share of ids that get a row.
        #[schemars(range(min = 0.0, max = 1.0))]
        share: f32,
    },
}

/// How the lookups of an id without a row are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[schemars(rename = "Counter")]
pub enum FrequencyCounter {
    /// One counter for each id that has no row yet.
    #[default]
    Exact,
    /// A sketch with constant memory, 27 bytes / error for each table and server. A count is sometimes too high and never too low (Cormode
    /// and Muthukrishnan 2005). Counts stay: an id whose row was dropped gets a new row at its next use.
    CountMin {
        /// Largest overcount, as a share of all lookups of a table on a server; one count in 100 may be too high by more.
        #[serde(default = "overcount")]
        #[schemars(range(min = 1e-8, max = 0.5))]
        error: f32,
        /// Probability of a larger error, above 0 and below 1. Every job has the default.
        #[serde(skip, default = "failure")]
        failure: f32,
    },
}

fn twice() -> u32 {
    2
}

fn overcount() -> f32 {
    1e-5
}

fn failure() -> f32 {
    0.01
}

impl AdmissionPolicy {
    /// Bytes of the sketches of a table with `stripes` stripes, before it has rows: 2 × 2.72 / error × ln(1 / failure),
    /// with each factor rounded up.
    pub fn sketch_bytes(&self, stripes: usize) -> u64 {
        match *self {
            Self::Count { counter: FrequencyCounter::CountMin { error, failure }, .. } => {
                CountMinSketch::bytes_for(error, failure, stripes)
            }
            _ => 0,
        }
    }

    pub(crate) fn problem(&self) -> Option<String> {
        let open = |name: &str, value: f32| {
            let inside = value > 0.0 && value < 1.0;
            (!inside).then(|| format!("{name} of the admission sketch is {value}; expected above 0 and below 1"))
        };
        match *self {
            Self::Count { threshold, .. } if !(1..=LARGEST_COUNT).contains(&threshold) => {
                Some(format!("an admission threshold of {threshold}; expected 1 to {LARGEST_COUNT}"))
            }
            Self::Count { counter: FrequencyCounter::CountMin { error, failure }, .. } => {
                open("error", error).or_else(|| open("failure", failure))
            }
            Self::Probability { share } if !(0.0..=1.0).contains(&share) => {
                Some(format!("admission of a share of {share}; expected 0 to 1"))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_reported() {
        let problem = |admission: AdmissionPolicy| admission.problem().unwrap();
        let count = |threshold, counter| AdmissionPolicy::Count { threshold, counter };
        assert_eq!(problem(count(0, FrequencyCounter::Exact)), "an admission threshold of 0; expected 1 to 65535");
        assert!(problem(count(65_536, FrequencyCounter::Exact)).contains("expected 1 to 65535"));
        let sketch = |error, failure| problem(count(2, FrequencyCounter::CountMin { error, failure }));
        assert!(sketch(1.0, 0.5).contains("error of the admission sketch is 1"));
        assert!(sketch(0.5, f32::NAN).contains("failure of the admission sketch is NaN"));
        assert!(problem(AdmissionPolicy::Probability { share: -0.5 }).contains("a share of -0.5"));
        assert_eq!(count(65_535, FrequencyCounter::CountMin { error: 0.1, failure: 0.1 }).problem(), None);
    }
}
