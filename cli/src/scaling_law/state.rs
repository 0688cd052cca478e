//! What is durable of a family besides its runs: `family.json`, the plan, and `job.toml`, the job that it is of. With them, the same command
//! goes on after it was stopped or killed, by the same plan.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zagros_job::{Job, KeyChange, Overrides};
use zagros_plumbing::{disk, durable};
use zagros_scaling::{Family, RunCost};
use zagros_shell::{Exit, Failure, OrInternal};

use super::setup::FamilySetup;

/// Names of the files that another process may read while the family trains.
pub(super) const FORECAST: &str = "forecast.json";
pub(super) const VERIFICATION: &str = "verification.json";
const FAMILY: &str = "family.json";
const JOB: &str = "job.toml";
/// Layout of the file; counts up when an older release could not read it.
const FORMAT: u32 = 1;

/// What a family is known by. A command with another one is another family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct FamilyIdentity {
    format: u32,
    sizes: Vec<String>,
    parameters: Vec<u64>,
    next: String,
    seeds: u64,
    shares: Vec<f64>,
    batch_size: usize,
    rows: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct FamilyPlan {
    identity: FamilyIdentity,
    /// As it was measured.
    pub(super) cost: RunCost,
    pub(super) held_out: u64,
    pub(super) family: Family,
}

impl FamilyIdentity {
    fn new(setup: &FamilySetup) -> Self {
        Self {
            format: FORMAT,
            sizes: setup.sizes.iter().map(|size| size.size.to_string()).collect(),
            parameters: setup.sizes.iter().map(|size| size.parameters).collect(),
            next: setup.next.size.to_string(),
            seeds: setup.seeds,
            shares: setup.shares.clone(),
            batch_size: setup.job.train.batch_size,
            rows: setup.rows,
        }
    }
}

impl FamilyPlan {
    /// The plan in the folder, if there is one. Refuses that of another family or of another job.
    pub(super) fn read(setup: &FamilySetup) -> Result<Option<Self>, Failure> {
        let path = setup.folder.join(FAMILY);
        if !path.exists() {
            return Ok(None);
        }
        let found: Option<Self> = read_json(&path)?;
        let help =
            "give the same command as before to go on, or train another family in another folder: --folder FOLDER";
        let Some(plan) = found.filter(|plan| plan.identity == FamilyIdentity::new(setup)) else {
            let what = format!("{} holds a family of other sizes, seeds, shares or rows", setup.folder.display());
            return Err(Failure::with_help(Exit::Usage, what, help));
        };
        let earlier_job = Job::load(&setup.folder.join(JOB), &Overrides::none());
        let earlier_job = earlier_job.map_err(|errors| Failure::new(Exit::Usage, errors))?;
        let changes = setup.job.changes_since(&earlier_job);
        let learning: String = changes
            .iter()
            .filter(|change| change.is_learning())
            .map(|change: &KeyChange| format!("\n  {change}"))
            .collect();
        if !learning.is_empty() {
            let what =
                format!("the job learns differently than that of the family in {}:{learning}", setup.folder.display());
            return Err(Failure::with_help(Exit::Usage, what, help));
        }
        Ok(Some(plan))
    }

    /// Writes it. The job is there before the plan, so a plan has its job.
    pub(super) fn write(setup: &FamilySetup, cost: RunCost, held_out: u64, family: Family) -> Result<Self, Failure> {
        let plan = Self { identity: FamilyIdentity::new(setup), cost, held_out, family };
        write(&setup.folder.join(JOB), setup.job.to_toml().as_bytes())?;
        write_json(&setup.folder.join(FAMILY), &plan)?;
        Ok(plan)
    }
}

/// Writes a value as JSON, whole or not at all.
pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Failure> {
    write(path, &serde_json::to_vec_pretty(value).or_internal()?)
}

/// Writes a file, whole or not at all.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<(), Failure> {
    durable::write(path, content).map_err(|error| {
        let what = format!("cannot write {}: {error}", path.display());
        Failure::with_help(Exit::Storage, what, disk::next_step(&error))
    })
}

/// Reads a value; `None` if there is no file, or one of another layout.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Failure> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let what = format!("cannot read {}: {error}", path.display());
            Err(Failure::with_help(Exit::Storage, what, disk::next_step(&error)))
        }
    }
}
