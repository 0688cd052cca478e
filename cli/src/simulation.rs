//! Simulated runs: reads the job, its first rows, the calibration and the machines file, and leaves the rest to `zagros-planner`.

use std::path::Path;

use indicatif::{HumanBytes, HumanCount};
use serde::Serialize;
use zagros_job::{Job, WeightStore};
use zagros_planner::{
    Calibration, ClusterFile, FailureReport, PlannerError, SampleWork, Scenario, SimReport, SimSettings,
};
use zagros_shell::{CommandReport, Exit, Failure, ReportTable, read_named_file};

use crate::args::SimulateArgs;
use crate::planning::{self, count};

/// The run that is to be simulated, and its name.
pub(crate) fn scenario(args: &SimulateArgs) -> Result<(String, Scenario), Failure> {
    let calibration = planning::calibration(args.place.calibration.as_deref())?;
    let file = args.place.machines.as_deref().map(read).transpose()?;
    let (name, mut scenario) = match (&args.job, file) {
        (None, None) => return Err(refused(PlannerError::NoWorkload)),
        (None, Some(file)) => {
            let stem = args.place.machines.as_deref().and_then(Path::file_stem).unwrap_or_default();
            (stem.to_string_lossy().into_owned(), file.build_scenario(&calibration).map_err(refused)?)
        }
        (Some(_), Some(file)) if file.workload.is_some() => return Err(refused(PlannerError::TwoWorkloads)),
        (Some(job), file) => of_job(args, job, file, &calibration)?,
    };
    let settings = &mut scenario.settings;
    settings.steps = args.steps.unwrap_or(settings.steps);
    settings.seed = args.seed.unwrap_or(settings.seed);
    settings.background_threads = args.background_threads.unwrap_or(settings.background_threads);
    scenario.settings = scenario.settings.checked().map_err(refused)?;
    Ok((name, scenario))
}

/// A job on the machines of a file, or on this one.
fn of_job(
    args: &SimulateArgs,
    file: &Path,
    cluster: Option<ClusterFile>,
    calibration: &Calibration,
) -> Result<(String, Scenario), Failure> {
    let (calibration, settings, described) = match cluster {
        Some(cluster) => {
            let calibration = cluster.merge_calibration(calibration).map_err(refused)?;
            (calibration, cluster.settings, Some(cluster.machines))
        }
        None => (calibration.clone(), SimSettings::default(), None),
    };
    let (mut job, machines) = planning::job_on_machines(file, args.sets.clone(), &args.place, described)?;
    if job.train.weights == WeightStore::Streamed {
        tracing::warn!("streamed weights are not simulated: each worker has the whole dense network here");
        job.train.weights = WeightStore::Resident;
    }
    let data = planning::measure_shape(&job, None);
    let work = SampleWork::new(&job, &data).map_err(refused)?;
    let (parameters, bytes) = rows(&job, args.rows);
    Ok((job.name.clone(), Scenario { machines, calibration, work, settings, parameters, row_bytes: bytes }))
}

/// Weights and bytes of so many rows, of a mean table.
fn rows(job: &Job, rows: Option<u64>) -> (Option<f64>, Option<f64>) {
    let scaled = |figure: f64| rows.map(|rows| rows as f64 * figure);
    let dim = planning::table_mean(job, |table| table.dim);
    (scaled(dim), scaled(planning::table_mean(job, zagros_job::Table::row_bytes)))
}

fn read(file: &Path) -> Result<ClusterFile, Failure> {
    ClusterFile::from_toml(&read_named_file(file)?).map_err(|error| {
        Failure::usage(format!("{}: {error}", file.display()), "docs/how-to/simulate.md describes the file")
    })
}

pub(crate) fn refused(error: PlannerError) -> Failure {
    let exit = if matches!(error, PlannerError::Stuck { .. }) { Exit::Internal } else { Exit::Usage };
    Failure::with_help(exit, error.to_string(), "docs/how-to/simulate.md says what can be simulated")
}

#[derive(Debug, Serialize)]
pub(crate) struct SimulationFigures {
    name: String,
    /// Where the speed of a core comes from.
    calibration: String,
    /// The run as it is described; `None` with tables.
    pub(crate) run: Option<SimReport>,
    pub(crate) tables: Vec<WhatIfTable>,
    pub(crate) failures: Option<FailureReport>,
}

#[derive(Debug, Serialize)]
pub(crate) struct WhatIfTable {
    pub(crate) key: &'static str,
    pub(crate) rows: Vec<WhatIfRow>,
}

#[derive(Debug, Serialize)]
pub(crate) struct WhatIfRow {
    pub(crate) value: f64,
    pub(crate) run: SimReport,
}

impl SimulationFigures {
    pub(crate) fn new(name: &str, scenario: &Scenario) -> Self {
        let calibration = scenario.calibration.source.clone();
        Self { name: name.to_owned(), calibration, run: None, tables: Vec::new(), failures: None }
    }

    pub(crate) fn report(&self) -> CommandReport {
        let mut report = CommandReport::default();
        report.add_lead(&format!("{}  simulated; nothing was run", self.name));
        if let Some(run) = &self.run {
            add_run(&mut report, run);
        }
        for table in &self.tables {
            report.add_title(&format!("runs by {}", table.key)).add_table(table.to_table());
        }
        if let Some(failures) = &self.failures {
            add_failures(&mut report, failures);
        }
        report.add_lead(&format!("\n  speed of a core: {}", self.calibration));
        report
    }
}

impl WhatIfTable {
    fn to_table(&self) -> ReportTable {
        let row = |WhatIfRow { value, run }: &WhatIfRow| {
            let step = &run.step;
            let bottleneck = run.bottleneck.split(':').next().unwrap_or_default();
            let memory =
                run.too_little_memory.as_ref().map(|(group, bytes)| format!("; {}", too_little(group, *bytes)));
            let numbers = [step.wait_for_rows_ms, step.dense_ms, step.wait_for_workers_ms, run.staleness_mean]
                .map(|ms| format!("{ms:.2}"));
            let named = [number(*value), count(run.samples_per_second)].into_iter();
            named.chain(numbers).chain([format!("{bottleneck}{}", memory.unwrap_or_default())]).collect()
        };
        let head = [self.key, "samples/s", "rows waited ms", "dense ms", "workers ms", "staleness", "bottleneck"];
        ReportTable::new(&head, self.rows.iter().map(row).collect())
    }
}

fn add_run(report: &mut CommandReport, run: &SimReport) {
    let servers = planning::servers_in_words(run.servers as f64);
    let (rate, workers) = (count(run.samples_per_second), run.workers);
    let SimReport { mode, staleness, batch_size, step, .. } = run;
    report.add_lead(&format!(
        "\n  {rate} samples/s with {workers} dense worker(s) and {servers}, mode {mode}, staleness {staleness}, batch {batch_size}"
    ));
    report.add_lead(&format!("  bottleneck: {}", run.bottleneck));
    let parts = [
        ("waiting for rows", step.wait_for_rows_ms),
        ("gather, forward, backward, update", step.dense_ms),
        ("waiting for workers, all-reduce", step.wait_for_workers_ms),
    ];
    let parts = parts.map(|(name, ms)| vec![name.to_owned(), format!("{ms:.2}")]).to_vec();
    report.add_title("a step of a worker").add_table(ReportTable::new(&["part", "ms"], parts));
    let busy = run.busy.iter().map(|busy| vec![busy.resource.clone(), format!("{:.1}", busy.share * 100.0)]);
    report.add_title("busy").add_table(ReportTable::new(&["resource", "% of the time"], busy.collect()));
    let lookups = run.staleness_histogram.iter().sum::<u64>().max(1) as f64;
    let shares = run.staleness_histogram.iter().enumerate();
    let shares: Vec<String> =
        shares.map(|(staleness, count)| format!("{staleness}: {:.0} %", *count as f64 / lookups * 100.0)).collect();
    let lookups = format!("{} (mean {:.2})", shares.join(", "), run.staleness_mean);
    let mut facts = vec![("lookups by staleness", lookups)];
    let bytes = run.server_bytes.filter(|_| run.servers > 0);
    facts.extend(bytes.map(|bytes| ("rows on each server", HumanBytes(bytes as u64).to_string())));
    facts.extend(run.too_little_memory.iter().map(|(group, bytes)| ("memory", too_little(group, *bytes))));
    facts.push(("simulated", format!("{:.1} s of the run in {} events", run.seconds, HumanCount(run.events))));
    report.add_title("the run").add_facts(facts);
}

fn too_little(group: &str, bytes: f64) -> String {
    format!("rows do not fit: each machine of `{group}` is {} short of memory", HumanBytes(bytes as u64))
}

fn add_failures(report: &mut CommandReport, failures: &FailureReport) {
    report.add_title("failures");
    for role in &failures.roles {
        let (name, again) =
            (if role.role == "worker" { "worker machine" } else { role.role }, HumanCount(role.trained_again));
        let (seconds, machines) = (role.lost_seconds, role.machines);
        report.add_lead(&format!(
            "  the loss of a {name:<15}{seconds:>8.1} s, {again} samples trained on again; {machines} machine(s)"
        ));
    }
    report.add_lead(&format!(
        "  one failure in {} h of each machine costs {:.3} % of the time; one failure an hour of all machines {:.2} %",
        HumanCount(failures.hours_between_failures as u64),
        failures.lost_share * 100.0,
        failures.lost_share_hourly * 100.0
    ));
}

/// Short for large values: `1e14`.
fn number(value: f64) -> String {
    if value >= 1e9 { format!("{value:e}") } else { format!("{value}") }
}
