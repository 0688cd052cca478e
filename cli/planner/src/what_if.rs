//! The same run with one value changed: what a table of `zagros simulate --what-if` shows.

use std::ops::RangeInclusive;

use crate::error::PlannerError;
use crate::scenario::Scenario;

/// What can be varied.
struct VariedKey {
    name: &'static str,
    range: RangeInclusive<f64>,
    is_whole: bool,
    apply: fn(&mut Scenario, f64),
}

const fn varied(
    name: &'static str,
    range: RangeInclusive<f64>,
    is_whole: bool,
    apply: fn(&mut Scenario, f64),
) -> VariedKey {
    VariedKey { name, range, is_whole, apply }
}

const KEYS: [VariedKey; 9] = [
    varied("workers", 1.0..=65_536.0, true, |run, value| run.machines = run.machines.with_workers(value)),
    varied("servers", 1.0..=65_536.0, true, |run, value| *run = run.with_servers(value)),
    varied("staleness", 0.0..=4096.0, true, |run, value| run.work.staleness = value),
    varied("batch_size", 1.0..=1e9, true, |run, value| run.work.batch = value),
    varied("network_gbit", f64::MIN_POSITIVE..=f64::MAX, false, |run, value| {
        run.machines.groups.iter_mut().for_each(|group| group.bytes_per_second = value * 1e9 / 8.0);
    }),
    varied("round_trip_us", 0.0..=1e9, false, |run, value| {
        run.machines.groups.iter_mut().for_each(|group| group.round_trip = value * 1e-6);
    }),
    varied("parameters", f64::MIN_POSITIVE..=f64::MAX, false, |run, value| {
        run.row_bytes = run.row_bytes.map(|bytes| bytes * value / run.parameters.unwrap_or(value));
        run.parameters = Some(value);
    }),
    varied("straggler_share", 0.0..=1.0, false, |run, value| run.settings.straggler_share = value),
    varied("step_variation", 0.0..=1.0, false, |run, value| run.settings.step_variation = value),
];

#[derive(Clone, Debug)]
pub struct WhatIf {
    pub key: &'static str,
    apply: fn(&mut Scenario, f64),
    values: Vec<f64>,
}

impl WhatIf {
    /// From `key=value,value`.
    pub fn parse(text: &str) -> Result<Self, PlannerError> {
        let bad = || PlannerError::Axis { text: text.to_owned() };
        let (key, values) = text.split_once('=').ok_or_else(bad)?;
        let names = KEYS.map(|key| key.name);
        let Some(VariedKey { name, range, is_whole, apply }) = KEYS.into_iter().find(|known| known.name == key.trim())
        else {
            let hint = match zagros_job::nearest_name(key, &names) {
                Some(near) => format!(": did you mean `{near}`?"),
                None => format!(": the keys are {}", names.join(", ")),
            };
            return Err(PlannerError::UnknownAxis { key: key.to_owned(), hint });
        };
        let is_taken = |value: &f64| range.contains(value) && !(is_whole && value.fract() != 0.0);
        let number = |value: &str| value.trim().parse::<f64>().ok().filter(is_taken).ok_or_else(bad);
        let values = values.split(',').map(number).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { key: name, apply, values })
    }

    pub fn varied_scenarios<'a>(&'a self, scenario: &'a Scenario) -> impl Iterator<Item = (f64, Scenario)> + 'a {
        self.values.iter().map(|value| {
            let mut changed = scenario.clone();
            (self.apply)(&mut changed, *value);
            (*value, changed)
        })
    }
}
