//! `zagros simulate`: a run on a described cluster, event by event.

use zagros_shell::{Exit, Failure, OrInternal, out, print_answer};
use zagros_sim::WhatIf;

use crate::args::SimulateArgs;
use crate::simulation::{self, SimulationFigures};

pub(crate) fn run(args: &SimulateArgs) -> Result<Exit, Failure> {
    let (name, scenario) = simulation::scenario(args)?;
    let sweeps = args.what_if.iter().map(|text| WhatIf::parse(text)).collect::<Result<Vec<_>, _>>();
    let sweeps = sweeps.map_err(simulation::refused)?;
    let mut figures = SimulationFigures::new(&name, &scenario);
    if sweeps.is_empty() {
        figures.run = Some(zagros_sim::simulate(&scenario).map_err(simulation::refused)?);
    }
    for sweep in &sweeps {
        let rows =
            sweep.varied_scenarios(&scenario).map(|(value, scenario)| Ok((value, zagros_sim::simulate(&scenario)?)));
        let rows = rows.collect::<Result<Vec<_>, _>>().map_err(simulation::refused)?;
        figures.add_table(sweep.key, rows);
    }
    if args.failures {
        figures.failures = Some(zagros_sim::simulate_failures(&scenario).map_err(simulation::refused)?);
    }
    if args.json {
        print_answer(&serde_json::to_string(&figures).or_internal()?)?;
    } else {
        out!("{}", figures.in_words().trim_end());
    }
    Ok(Exit::Success)
}
