//! The table `[simulation]`: how long a run is simulated, by which chance, and what goes wrong in it.

use serde::Deserialize;

use crate::error::SimError;

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
    pub fn checked(self) -> Result<Self, SimError> {
        let bad =
            |key, value: f64, why| Err(SimError::Value { table: "simulation", key, value: value.to_string(), why });
        if !(2..=1_000_000).contains(&self.steps) {
            return bad("steps", self.steps as f64, "is not between 2 and 1,000,000");
        }
        let shares = [("step_variation", self.step_variation), ("straggler_share", self.straggler_share)];
        if let Some((key, value)) = shares.into_iter().find(|(_, value)| !(0.0..=1.0).contains(value)) {
            return bad(key, value, "is not between 0 and 1");
        }
        if !(1.0..=1000.0).contains(&self.straggler_factor) {
            return bad("straggler_factor", self.straggler_factor, "is not between 1 and 1,000");
        }
        let from_zero = [
            ("background_threads", self.background_threads),
            ("all_reduce_hop_us", self.all_reduce_hop_us.unwrap_or(0.0)),
            ("worker_restart_seconds", self.worker_restart_seconds),
            ("server_restart_seconds", self.server_restart_seconds),
        ];
        if let Some((key, value)) = from_zero.into_iter().find(|(_, value)| !(0.0..=1e6).contains(value)) {
            return bad(key, value, "is not between 0 and 1,000,000");
        }
        let positives =
            [("hours_between_failures", self.hours_between_failures), ("lease_seconds", self.lease_seconds)];
        match positives.into_iter().find(|(_, value)| !(0.1..=1e9).contains(value)) {
            Some((key, value)) => bad(key, value, "is not between 0.1 and 1,000,000,000"),
            None => Ok(self),
        }
    }
}
