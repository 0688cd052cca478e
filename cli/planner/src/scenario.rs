//! What is simulated: machines, the speed of their cores, the work of a sample, and what goes wrong; and the same with one value changed.
//!
//! A file describes it: the machines as for `zagros plan`, and beside them the tables `[workload]`, `[simulation]` and `[calibration]`.
//! Figures of `[calibration]` replace those of the machine's own calibration, so that one file holds every assumption.

use std::ops::RangeInclusive;

use serde::Deserialize;
use toml::{Table, Value};
use zagros_job::Mode;

use crate::error::{PlannerError, check_ranges};
use crate::workload::Workload;
use crate::{Calibration, MachineGroup, Machines, SampleWork};

#[derive(Clone, Debug)]
pub struct ClusterFile {
    pub machines: Machines,
    pub settings: SimSettings,
    /// What is trained, if the file says so.
    pub workload: Option<Workload>,
    /// Figures that replace those of a calibration.
    calibration: Table,
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub machines: Machines,
    pub calibration: Calibration,
    pub work: SampleWork,
    pub settings: SimSettings,
    /// Weights of all rows, if their number is known.
    pub parameters: Option<f64>,
    /// Bytes of all rows with their optimiser state, if their number is known.
    pub row_bytes: Option<f64>,
}

impl ClusterFile {
    /// From the text of a file.
    pub fn from_toml(text: &str) -> Result<Self, PlannerError> {
        let mut file: Table =
            toml::from_str(text).map_err(|error| PlannerError::form("the machines file", error.message()))?;
        let mut table = |name: &str| match file.remove(name) {
            None => Ok(None),
            Some(Value::Table(table)) => Ok(Some(table)),
            Some(_) => Err(PlannerError::form(format!("`{name}`"), &format!("is no table: write [{name}]"))),
        };
        let (simulation, workload, calibration) = (table("simulation")?, table("workload")?, table("calibration")?);
        const TABLES: [&str; 5] = ["group", "currency", "workload", "simulation", "calibration"];
        if let Some(unknown) = file.keys().find(|key| !TABLES.contains(&key.as_str())) {
            let near = zagros_job::nearest_name(unknown, &TABLES).map(|near| format!(": did you mean `{near}`?"));
            let reason = format!("unknown table `{unknown}`{}", near.unwrap_or_default());
            return Err(PlannerError::form("the machines file", &reason));
        }
        let machines = Machines::from_toml(&file.to_string())?;
        let settings: Option<SimSettings> = simulation.map(|table| typed("[simulation]", table)).transpose()?;
        let workload: Option<Workload> = workload.map(|table| typed("[workload]", table)).transpose()?;
        Ok(Self {
            machines,
            settings: settings.unwrap_or_default().checked()?,
            workload: workload.map(Workload::checked).transpose()?,
            calibration: calibration.unwrap_or_default(),
        })
    }

    /// A calibration with the figures of this file in it.
    pub fn merge_calibration(&self, measured: &Calibration) -> Result<Calibration, PlannerError> {
        if self.calibration.is_empty() {
            return Ok(measured.clone());
        }
        let mut all: Table = toml::from_str(&measured.to_toml())
            .map_err(|error| PlannerError::form("the calibration", error.message()))?;
        replace(&mut all, &self.calibration);
        Calibration::from_toml(&all.to_string()).map_err(|error| match error {
            PlannerError::Form { reason, .. } => PlannerError::Form { what: "[calibration]".to_owned(), reason },
            error => error,
        })
    }

    pub fn build_scenario(&self, measured: &Calibration) -> Result<Scenario, PlannerError> {
        let workload = self.workload.as_ref().ok_or(PlannerError::NoWorkload)?;
        Ok(Scenario {
            machines: self.machines.clone(),
            calibration: self.merge_calibration(measured)?,
            work: workload.sample_work(),
            settings: self.settings.clone(),
            parameters: Some(workload.parameters),
            row_bytes: Some(workload.row_bytes()),
        })
    }
}

impl Scenario {
    pub fn worker_count(&self) -> usize {
        self.machines.worker_count() as usize
    }

    /// 0 if they are in the one worker's process.
    pub fn server_count(&self) -> usize {
        self.machines.server_count() as usize
    }

    pub fn mode_name(&self) -> &'static str {
        match self.work.mode {
            Mode::Hybrid => "hybrid",
            Mode::Sync => "sync",
            Mode::Async => "async",
        }
    }

    /// Bytes of rows on each server, if the number of rows is known.
    pub fn server_bytes(&self) -> Option<f64> {
        self.row_bytes.map(|bytes| bytes / self.machines.server_count().max(1.0))
    }

    /// Bytes of memory that each machine with servers is short of, the group that is most so.
    pub fn too_little_memory(&self) -> Option<(String, f64)> {
        let rows = self.server_bytes()?;
        let short = |group: &MachineGroup| group.servers * rows - group.memory;
        let groups = self.machines.groups.iter().filter(|group| group.memory > 0.0 && short(group) > 0.0);
        groups.max_by(|a, b| short(a).total_cmp(&short(b))).map(|group| (group.name.clone(), short(group)))
    }
}

fn typed<T: serde::de::DeserializeOwned>(name: &str, table: Table) -> Result<T, PlannerError> {
    // Through text, so that a message names the key as the file has it.
    toml::from_str(&table.to_string()).map_err(|error| PlannerError::form(name, error.message()))
}

/// Puts the values of `changes` into `all`, table by table.
fn replace(all: &mut Table, changes: &Table) {
    for (key, change) in changes {
        match (all.get_mut(key), change) {
            (Some(Value::Table(inner)), Value::Table(change)) => replace(inner, change),
            _ => drop(all.insert(key.clone(), change.clone())),
        }
    }
}

/// The table `[simulation]`: how long a run is simulated, by which chance, and what goes wrong in it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SimSettings {
    /// Of all chance. Default: 1.
    pub seed: u64,
    /// Steps of each worker. Default: 200.
    pub steps: u64,
    /// How much the steps of a worker differ: standard deviation over mean. Default: 0.03.
    pub step_variation: f64,
    /// Share of the workers that are slow for the whole run. Default: 0.
    pub straggler_share: f64,
    /// How many times longer a step of a slow worker takes. Default: 1.5.
    pub straggler_factor: f64,
    /// Threads of other programs on each machine that always have work. Default: 0.
    pub background_threads: f64,
    /// µs from one worker to the next in an all-reduce. Default: half of the round trip between machines and of that of the calibration.
    pub all_reduce_hop_us: Option<f64>,
    /// Hours between two failures of a machine, on average. Default: 10,000.
    pub hours_between_failures: f64,
    /// Seconds from the loss of a worker's machine to another process in its place. Default: 30.
    pub worker_restart_seconds: f64,
    /// Seconds from the loss of a server's process to its return with the rows of its log. Default: 60.
    pub server_restart_seconds: f64,
    /// Seconds of silence after which a worker counts as lost. Default: 10.
    pub lease_seconds: f64,
}

impl Default for SimSettings {
    fn default() -> Self {
        Self {
            seed: 1,
            steps: 200,
            step_variation: 0.03,
            straggler_share: 0.0,
            straggler_factor: 1.5,
            background_threads: 0.0,
            all_reduce_hop_us: None,
            hours_between_failures: 10_000.0,
            worker_restart_seconds: 30.0,
            server_restart_seconds: 60.0,
            lease_seconds: 10.0,
        }
    }
}

impl SimSettings {
    pub fn checked(self) -> Result<Self, PlannerError> {
        const SHARE: &str = "is not between 0 and 1";
        const FROM_ZERO: &str = "is not between 0 and 1,000,000";
        const POSITIVE: &str = "is not between 0.1 and 1,000,000,000";
        let hop = self.all_reduce_hop_us.unwrap_or(0.0);
        check_ranges(
            "[simulation]",
            &[
                ("steps", self.steps as f64, 2.0..=1e6, "is not between 2 and 1,000,000"),
                ("step_variation", self.step_variation, 0.0..=1.0, SHARE),
                ("straggler_share", self.straggler_share, 0.0..=1.0, SHARE),
                ("straggler_factor", self.straggler_factor, 1.0..=1000.0, "is not between 1 and 1,000"),
                ("background_threads", self.background_threads, 0.0..=1e6, FROM_ZERO),
                ("all_reduce_hop_us", hop, 0.0..=1e6, FROM_ZERO),
                ("worker_restart_seconds", self.worker_restart_seconds, 0.0..=1e6, FROM_ZERO),
                ("server_restart_seconds", self.server_restart_seconds, 0.0..=1e6, FROM_ZERO),
                ("hours_between_failures", self.hours_between_failures, 0.1..=1e9, POSITIVE),
                ("lease_seconds", self.lease_seconds, 0.1..=1e9, POSITIVE),
            ],
        )?;
        Ok(self)
    }
}

/// What can be varied: its name, its values, whether these are whole, and what a value changes.
struct VariedKey(&'static str, RangeInclusive<f64>, bool, fn(&mut Scenario, f64));

const KEYS: [VariedKey; 9] = [
    VariedKey("workers", 1.0..=65_536.0, true, |run, value| run.machines = run.machines.with_workers(value)),
    VariedKey("servers", 1.0..=65_536.0, true, |run, value| run.machines = run.machines.with_servers(value)),
    VariedKey("staleness", 0.0..=4096.0, true, |run, value| run.work.staleness = value),
    VariedKey("batch_size", 1.0..=1e9, true, |run, value| run.work.batch = value),
    VariedKey("network_gbit", f64::MIN_POSITIVE..=f64::MAX, false, |run, value| {
        run.machines.groups.iter_mut().for_each(|group| group.network_gbit = value);
    }),
    VariedKey("round_trip_us", 0.0..=1e9, false, |run, value| {
        run.machines.groups.iter_mut().for_each(|group| group.round_trip_us = value);
    }),
    VariedKey("parameters", f64::MIN_POSITIVE..=f64::MAX, false, |run, value| {
        run.row_bytes = run.row_bytes.map(|bytes| bytes * value / run.parameters.unwrap_or(value));
        run.parameters = Some(value);
    }),
    VariedKey("straggler_share", 0.0..=1.0, false, |run, value| run.settings.straggler_share = value),
    VariedKey("step_variation", 0.0..=1.0, false, |run, value| run.settings.step_variation = value),
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
        let bad =
            || PlannerError::Value(format!("--what-if {text}: write a key and its values, such as staleness=0,1,4"));
        let (key, values) = text.split_once('=').ok_or_else(bad)?;
        let names = KEYS.map(|key| key.0);
        let Some(VariedKey(name, range, is_whole, apply)) = KEYS.into_iter().find(|known| known.0 == key.trim()) else {
            let hint = match zagros_job::nearest_name(key, &names) {
                Some(near) => format!(": did you mean `{near}`?"),
                None => format!(": the keys are {}", names.join(", ")),
            };
            return Err(PlannerError::Value(format!("`{key}` cannot be varied{hint}")));
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

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "[[group]]\nname = 'w'\ncount = 2\ncores = 8\nmemory = '64GiB'\nworkers = 1\n\
                        [[group]]\nname = 's'\ncount = 2\ncores = 8\nmemory = '64GiB'\nservers = 1\n\
                        [workload]\nparameters = 1e9\nhidden = [64]\n[simulation]\nsteps = 50\n";

    #[test]
    fn a_file_has_machines_and_what_runs_on_them() {
        let file = ClusterFile::from_toml(FILE).unwrap();
        let scenario = file.build_scenario(&Calibration::default()).unwrap();
        assert_eq!((scenario.worker_count(), scenario.server_count(), scenario.settings.steps), (2, 2, 50));
        assert_eq!(scenario.settings.seed, 1);
        assert_eq!(scenario.calibration, Calibration::default());
        assert_eq!(scenario.machines.with_servers(6.0).server_count(), 6.0);
        let nothing = FILE.replace("[workload]\nparameters = 1e9\nhidden = [64]\n", "");
        let refused = ClusterFile::from_toml(&nothing).unwrap().build_scenario(&Calibration::default()).unwrap_err();
        assert!(matches!(refused, PlannerError::NoWorkload));
    }

    #[test]
    fn figures_of_the_file_replace_those_of_the_calibration() {
        let text = format!("{FILE}[calibration]\nsource = 'a paper'\n[calibration.wire]\nround_trip_us = 50.0\n");
        let file = ClusterFile::from_toml(&text).unwrap();
        let (own, measured) = (file.merge_calibration(&Calibration::default()).unwrap(), Calibration::default());
        assert_eq!((own.wire.round_trip_us, &own.source[..]), (50.0, "a paper"));
        assert_eq!((own.wire.client_step, &own.rows), (measured.wire.client_step, &measured.rows));
        let misspelt = text.replace("round_trip_us", "roundtrip_us");
        let refused = ClusterFile::from_toml(&misspelt).unwrap().merge_calibration(&measured).unwrap_err().to_string();
        assert!(
            refused.starts_with("[calibration]: ") && refused.contains("did you mean `round_trip_us`?"),
            "{refused}"
        );
    }

    #[test]
    fn a_misspelt_key_of_any_table_is_refused_with_what_it_may_mean() {
        let refused = |from: &str, to: &str| ClusterFile::from_toml(&FILE.replace(from, to)).unwrap_err().to_string();
        assert!(refused("steps", "step").contains("[simulation]: unknown field `step`"));
        assert!(refused("steps", "stepz").contains("did you mean `steps`?"));
        assert!(refused("hidden", "hiden").contains("did you mean `hidden`?"));
        assert!(refused("cores = 8", "core = 8").contains("did you mean `cores`?"));
        assert!(refused("steps = 50", "steps = 1").contains("[simulation] has steps = 1"));
        assert!(refused("[simulation]", "[simulations]").contains("did you mean `simulation`?"));
        assert!(refused("[simulation]", "[[simulation]]").contains("is no table"));
    }

    #[test]
    fn too_little_memory_is_named_with_its_group() {
        let scenario = |parameters: &str| {
            let text = FILE.replace("1e9", parameters);
            ClusterFile::from_toml(&text).unwrap().build_scenario(&Calibration::default()).unwrap()
        };
        assert_eq!(scenario("1e9").too_little_memory(), None);
        let (group, short) = scenario("1e12").too_little_memory().unwrap();
        assert!(group == "s" && short > 4e12, "{group} {short}");
    }
}
