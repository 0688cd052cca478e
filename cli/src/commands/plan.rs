//! `zagros plan`: what a job will need and do on this machine or on described ones.

use zagros_cost::DataShape;
use zagros_job::threads::{Machine, core_count};
use zagros_shell::{Exit, Failure, OrInternal, load_job_for, print_answer};

use crate::args::PlanArgs;
use crate::planning::{self, PlanFigures};

pub(crate) fn run(args: &PlanArgs) -> Result<Exit, Failure> {
    let mut sets = args.job.sets();
    sets.extend(args.servers.map(|servers| format!("cluster.servers={servers}")));
    sets.extend(args.workers.map(|workers| format!("cluster.workers={workers}")));
    let here = Machine { cores: core_count(), workers: 1, servers: 0 };
    let mut job = load_job_for(&args.job.job, &sets, &here)?;
    let has_processes = args.servers.is_some() || args.workers.is_some() || job.cluster.workers > 1;
    let machines = match &args.machines {
        Some(file) => {
            let machines = planning::machines(file)?;
            job.cluster.workers = machines.worker_count().max(1.0) as u32;
            machines
        }
        None if has_processes => {
            let (workers, servers) = (job.cluster.workers as usize, job.cluster.servers as usize);
            let machine = Machine { workers, servers, ..here };
            job = load_job_for(&args.job.job, &sets, &machine)?;
            planning::this_machine(&job, &machine)
        }
        None => planning::this_machine(&job, &here),
    };
    let calibration = planning::calibration(args.calibration.as_deref())?;
    let data = DataShape { rows: args.rows, ..planning::measure_shape(&job, args.samples) };
    let forecast = planning::forecast(&job, &data, &calibration, &machines)?;
    let figures = PlanFigures::new((&job, &data), (&calibration, &machines), &forecast);
    if args.json {
        print_answer(&serde_json::to_string(&figures).or_internal()?)?;
    } else {
        figures.print(&job);
    }
    Ok(Exit::Success)
}
