//! Which ids get a row. One that does not is answered with zeros; its gradients are counted and dropped.

/// When an id gets a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Admission {
    /// At its first sighting, a sighting being a lookup for training that names it.
    #[default]
    Always,
    /// At this sighting.
    Count {
        /// Sightings needed, at least 1.
        sightings: u32,
        /// How they are counted.
        counter: Counter,
    },
    /// At its first sighting if it is of the chosen share of ids, a function of (seed, table, id); else never.
    Probability {
        /// Share of ids that are chosen, 0 to 1.
        share: f32,
    },
}

/// How sightings are counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Counter {
    /// One counter for each id that has no row yet.
    Exact,
    /// A count-min sketch (Cormode and Muthukrishnan 2005) with conservative update in constant memory: a count is
    /// never too low, and with probability 1 − `failure` it is too high by at most `error` times all sightings.
    CountMin {
        /// Share of all sightings, above 0 and below 1.
        error: f32,
        /// Above 0 and below 1.
        failure: f32,
    },
}

impl Admission {
    /// The first setting that is out of range.
    pub(crate) fn problem(&self) -> Option<String> {
        let open = |name: &str, value: f32| {
            let inside = value > 0.0 && value < 1.0;
            (!inside).then(|| format!("{name} of the admission sketch is {value}; expected above 0 and below 1"))
        };
        match *self {
            Self::Count { sightings: 0, .. } => Some("admission after 0 sightings; expected at least 1".to_owned()),
            Self::Count { counter: Counter::CountMin { error, failure }, .. } => {
                open("error", error).or_else(|| open("failure", failure))
            }
            Self::Probability { share } if !(0.0..=1.0).contains(&share) => {
                Some(format!("admission of a share of {share}; expected 0 to 1"))
            }
            _ => None,
        }
    }
}
