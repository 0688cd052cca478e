//! What the measurements of a family say: law, forecast, best sizes, verification.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zagros_experiments::scaling::{
    ComputeOptimum, ForecastPlan, ForecastTarget, Law, LossForecast, Measurement, Measurements,
};
use zagros_plumbing::disk;
use zagros_shell::{Exit, Failure, OrFailure, write_file};

use super::FamilyPlan;
use super::member::{FamilyMember, MemberPoint};
use super::setup::FamilySetup;

/// Probability of the interval of a forecast.
const LEVEL: f64 = 0.9;
const REPLAYS: usize = 400;
const SEED: u64 = 1;
/// Compute budgets for which the best size is shown, as multiples of the largest trained compute.
const BUDGETS: [f64; 5] = [0.1, 1.0, 10.0, 100.0, 1000.0];

/// A forecast with what it is compared with. Written before the size is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct KeptForecast {
    /// The size, as it was asked for.
    pub(super) size: String,
    pub(super) forecast: LossForecast,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ForecastVerification {
    pub(super) size: String,
    /// Log loss that was measured, nats.
    pub(super) loss: f64,
    /// Forecast less truth, nats.
    pub(super) error: f64,
    /// Whether the interval holds the truth.
    pub(super) inside: bool,
    /// The largest trained size less the truth, nats.
    pub(super) last_value_error: f64,
    /// The line in the logarithm of the compute less the truth, nats.
    pub(super) line_error: Option<f64>,
}

pub(super) struct FamilyAnalysis {
    pub(super) points: Vec<MemberPoint>,
    pub(super) measured: Option<Measurements>,
    pub(super) shares: Vec<f64>,
    /// `None` with `problem`.
    pub(super) forecast: Option<KeptForecast>,
    /// Why there is no law.
    pub(super) problem: Option<String>,
    pub(super) verification: Option<ForecastVerification>,
}

impl FamilyAnalysis {
    pub(super) fn fit(setup: &FamilySetup, plan: &FamilyPlan, points: Vec<MemberPoint>) -> Self {
        let shares = plan.family.shares.clone();
        let longest = FamilyMember::next(setup, &shares);
        let target = ForecastTarget {
            parameters: setup.next.parameters as f64,
            samples: setup.sample_count(longest.step_count(setup)),
        };
        let made = Measurements::new(points.iter().map(|point| point.measured).collect()).and_then(|measured| {
            let plan = ForecastPlan { target, level: LEVEL, replays: REPLAYS, seed: SEED };
            Ok((LossForecast::from_measurements(&measured, &plan)?, measured))
        });
        let (forecast, measured, problem) = match made {
            Ok((forecast, measured)) => {
                (Some(KeptForecast { size: setup.next.size.to_string(), forecast }), Some(measured), None)
            }
            Err(error) => (None, None, Some(error.to_string())),
        };
        Self { points, measured, shares, forecast, problem, verification: None }
    }

    /// Writes the forecast of the whole family. Once the next size has been started, the forecast that was written before stays.
    pub(super) fn keep_forecast(&mut self, setup: &FamilySetup) -> Result<(), Failure> {
        let path = setup.base.folder.join(FORECAST);
        let next = FamilyMember::next(setup, &self.shares);
        if next.folder.exists()
            && let Some(kept) = read_json::<KeptForecast>(&path)?
        {
            self.forecast = Some(kept);
            self.verify(&next, setup);
            return Ok(());
        }
        match &self.forecast {
            Some(forecast) => write_json(&path, forecast),
            None => Ok(()),
        }
    }

    /// Compares the next size, if it was measured, with its forecast.
    pub(super) fn verify(&mut self, next: &FamilyMember, setup: &FamilySetup) {
        let truth = next.measured_points(setup).and_then(|points| points.last().cloned());
        let kept = self.forecast.as_ref().zip(truth);
        self.verification = kept.map(|(kept, truth)| ForecastVerification::new(kept, &truth));
    }

    pub(super) fn chosen_law(&self) -> Option<&Law> {
        self.forecast.as_ref().map(|kept| kept.forecast.choice.chosen_law())
    }

    /// Best sizes for compute budgets around the trained ones.
    pub(super) fn optima(&self) -> Vec<ComputeOptimum> {
        let (Some(law), Some(measured)) = (self.chosen_law(), &self.measured) else { return Vec::new() };
        let most = measured.as_slice().iter().map(Measurement::training_flop).fold(0.0, f64::max);
        BUDGETS.iter().filter_map(|times| law.optimum(times * most)).collect()
    }
}

impl ForecastVerification {
    pub(super) fn new(kept: &KeptForecast, truth: &MemberPoint) -> Self {
        let loss = truth.measured.loss;
        Self {
            size: kept.size.clone(),
            loss,
            error: kept.forecast.loss - loss,
            inside: kept.forecast.interval_contains(loss),
            last_value_error: kept.forecast.last - loss,
            line_error: kept.forecast.line_in_log_compute.map(|value| value - loss),
        }
    }
}

/// Names of the files that another process may read while the family trains.
pub(super) const FORECAST: &str = "forecast.json";
pub(super) const VERIFICATION: &str = "verification.json";

/// Writes a value as JSON, whole or not at all.
pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Failure> {
    write_file(path, serde_json::to_vec_pretty(value).or_internal()?)
}

/// Reads a value; `None` if there is no file, or one of another layout.
fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Failure> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let what = format!("cannot read {}: {error}", path.display());
            Err(Failure::with_help(Exit::Storage, what, disk::next_step(&error)))
        }
    }
}
