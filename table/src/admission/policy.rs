//! The settings of admission: which ids get a row.

use super::sketch::CountMinSketch;

/// The largest count of a sketch.
const LARGEST_COUNT: u32 = u16::MAX as u32;

/// When an id gets a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum AdmissionPolicy {
    /// At its first use. That is the first training lookup that names it.
    #[default]
    Always,
    /// At its `threshold`-th use.
    Count {
        /// The number of uses needed, 1 to 65535.
        threshold: u32,
        counter: FrequencyCounter,
    },
    /// At its first use if the id is in the admitted share, otherwise never. The share is a function of (seed, table,
    /// id).
    Probability {
        /// The admitted share of ids, 0 to 1.
        share: f32,
    },
}

/// How the uses of an id without a row are counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FrequencyCounter {
    /// One counter for each id that has no row yet.
    Exact,
    /// A count-min sketch (Cormode and Muthukrishnan 2005) with conservative update, in constant memory. A count is
    /// never too low. With probability 1 − `failure` it is too high by at most `error` times the number of all uses.
    /// Counts stay: an id whose row was dropped gets a new row at its next use.
    CountMin {
        /// Largest error, as a share of all uses. Above 0 and below 1.
        error: f32,
        /// Probability of a larger error. Above 0 and below 1.
        failure: f32,
    },
}

impl AdmissionPolicy {
    /// Bytes of the sketches of a table with `stripes` stripes, before it has rows: 2 × 2.72 / error × ln(1 / failure),
    /// with each factor rounded up.
    #[must_use]
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
