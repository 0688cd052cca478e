//! Forecasts: what a job will need and do on this machine or on described ones (`zagros plan`), the speed of this machine (`calibrate`), a
//! run on a described cluster, event by event (`simulate`), and the built-in networks with the sizes that they come in (`models`).

use zagros_planner::{DataShape, ForecastInputs, WhatIf};
use zagros_plumbing::memory::MemoryLimit;
use zagros_shell::{Exit, Failure, OrFailure, out, print_figures, print_report, write_file};

use crate::args::{CalibrateArgs, ModelsArgs, PlanArgs, SimulateArgs};
use crate::backend::backend;
use crate::models::ModelTable;
use crate::planning::{self, PlanReport};
use crate::simulation::{self, SimulationFigures, WhatIfRow, WhatIfTable};

pub(crate) fn run(args: &PlanArgs) -> Result<Exit, Failure> {
    let described = args.place.machines.as_deref().map(planning::machines).transpose()?;
    let (job, machines) = planning::job_on_machines(&args.job.job, args.job.sets(), &args.place, described)?;
    let calibration = planning::calibration(args.place.calibration.as_deref())?;
    let data = DataShape { rows: args.rows, ..planning::measure_shape(&job, args.samples) };
    let forecast = planning::forecast(&job, &data, &calibration, &machines)?;
    let inputs = ForecastInputs { job: &job, data: &data, calibration: &calibration, machines: &machines };
    let report = PlanReport { inputs, forecast: &forecast };
    print_figures(&report.to_json(), args.json, |_| report.report().print())
}

/// Measures this machine, and writes the figures where `zagros plan` finds them.
pub(crate) async fn calibrate(args: CalibrateArgs) -> Result<Exit, Failure> {
    let file = match args.output {
        Some(file) => file,
        None => planning::calibration_file().ok_or_else(|| {
            let help =
                "say where to write: --output calibration.toml; and give that file to `zagros plan --calibration`";
            Failure::usage("neither HOME nor XDG_CACHE_HOME is set, so there is no cache folder", help)
        })?,
    };
    // Before half a minute of measurements.
    let made = file.parent().map_or(Ok(()), std::fs::create_dir_all);
    made.map_err(|error| Failure::unwritable(&file, &error))?;
    let program = std::env::current_exe().or_internal()?;
    let today = jiff::Zoned::now().date();
    let calibration = zagros_bench::measure_machine(&program, backend(), &today.to_string()).await?;
    let figures = calibration.to_toml();
    write_file(&file, &figures)?;
    out!("{figures}\nwritten to {}", file.display());
    Ok(Exit::Success)
}

pub(crate) fn simulate(args: &SimulateArgs) -> Result<Exit, Failure> {
    let (name, scenario) = simulation::scenario(args)?;
    let sweeps = args.what_if.iter().map(|text| WhatIf::parse(text)).collect::<Result<Vec<_>, _>>();
    let sweeps = sweeps.map_err(simulation::refused)?;
    let mut figures = SimulationFigures::new(&name, &scenario);
    if sweeps.is_empty() {
        figures.run = Some(zagros_planner::simulate(&scenario).map_err(simulation::refused)?);
    }
    for sweep in &sweeps {
        let rows = sweep
            .varied_scenarios(&scenario)
            .map(|(value, scenario)| Ok(WhatIfRow { value, run: zagros_planner::simulate(&scenario)? }));
        let rows = rows.collect::<Result<Vec<_>, _>>().map_err(simulation::refused)?;
        figures.tables.push(WhatIfTable { key: sweep.key, rows });
    }
    if args.failures {
        figures.failures = Some(zagros_planner::simulate_failures(&scenario).map_err(simulation::refused)?);
    }
    print_figures(&figures, args.json, |figures| figures.report().print())
}

pub(crate) fn list_models(args: &ModelsArgs) -> Result<Exit, Failure> {
    let table = ModelTable::new(args, &planning::calibration(None)?, MemoryLimit::of_this_process())?;
    print_report(&table, args.json, |table| table.report().print())
}
