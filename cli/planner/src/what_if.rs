//! The same run with one value changed: what a table of `zagros simulate --what-if` shows.

use zagros_zip::ZipEq;

use crate::error::PlannerError;
use crate::scenario::Scenario;

/// Names of what can be varied, and what each is.
const AXES: [(&str, VariedKey); 9] = [
    ("workers", VariedKey::Workers),
    ("servers", VariedKey::Servers),
    ("staleness", VariedKey::Staleness),
    ("batch_size", VariedKey::BatchSize),
    ("network_gbit", VariedKey::NetworkGbit),
    ("round_trip_us", VariedKey::RoundTripUs),
    ("parameters", VariedKey::Parameters),
    ("straggler_share", VariedKey::StragglerShare),
    ("step_variation", VariedKey::StepVariation),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VariedKey {
    Workers,
    Servers,
    Staleness,
    BatchSize,
    NetworkGbit,
    RoundTripUs,
    Parameters,
    StragglerShare,
    StepVariation,
}

#[derive(Clone, Debug, PartialEq)]
pub struct WhatIf {
    axis: VariedKey,
    pub key: &'static str,
    pub values: Vec<f64>,
}

impl WhatIf {
    /// From `key=value,value`.
    pub fn parse(text: &str) -> Result<Self, PlannerError> {
        let bad = || PlannerError::Axis { text: text.to_owned() };
        let (key, values) = text.split_once('=').ok_or_else(bad)?;
        let names = AXES.map(|(name, _)| name);
        let Some((key, axis)) = AXES.into_iter().find(|(name, _)| *name == key.trim()) else {
            let hint = match zagros_job::nearest_name(key, &names) {
                Some(near) => format!(": did you mean `{near}`?"),
                None => format!(": the keys are {}", names.join(", ")),
            };
            return Err(PlannerError::UnknownAxis { key: key.to_owned(), hint });
        };
        let number = |value: &str| value.trim().parse::<f64>().ok().filter(|value| axis.takes(*value)).ok_or_else(bad);
        let values = values.split(',').map(number).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { axis, key, values })
    }

    #[must_use]
    pub fn apply(&self, scenario: &Scenario, value: f64) -> Scenario {
        let mut changed = scenario.clone();
        match self.axis {
            VariedKey::Workers => changed.machines = scenario.machines.with_workers(value),
            VariedKey::Servers => changed = scenario.with_servers(value),
            VariedKey::Staleness => changed.work.staleness = value,
            VariedKey::BatchSize => changed.work.batch = value,
            VariedKey::NetworkGbit => {
                changed.machines.groups.iter_mut().for_each(|group| group.bytes_per_second = value * 1e9 / 8.0);
            }
            VariedKey::RoundTripUs => {
                changed.machines.groups.iter_mut().for_each(|group| group.round_trip = value * 1e-6)
            }
            VariedKey::Parameters => {
                changed.row_bytes =
                    scenario.row_bytes.map(|bytes| bytes * value / scenario.parameters.unwrap_or(value));
                changed.parameters = Some(value);
            }
            VariedKey::StragglerShare => changed.settings.straggler_share = value,
            VariedKey::StepVariation => changed.settings.step_variation = value,
        }
        changed
    }

    pub fn varied_scenarios<'a>(&'a self, scenario: &'a Scenario) -> impl Iterator<Item = (f64, Scenario)> + 'a {
        let changed: Vec<Scenario> = self.values.iter().map(|value| self.apply(scenario, *value)).collect();
        self.values.iter().copied().zip_eq(changed)
    }
}

impl VariedKey {
    fn takes(self, value: f64) -> bool {
        match self {
            Self::Workers | Self::Servers => (1.0..=65_536.0).contains(&value) && value.fract() == 0.0,
            Self::BatchSize => (1.0..=1e9).contains(&value) && value.fract() == 0.0,
            Self::Staleness => (0.0..=4096.0).contains(&value) && value.fract() == 0.0,
            Self::NetworkGbit | Self::Parameters => value > 0.0 && value.is_finite(),
            Self::RoundTripUs => (0.0..=1e9).contains(&value),
            Self::StragglerShare | Self::StepVariation => (0.0..=1.0).contains(&value),
        }
    }
}
