//! `zagros-bench modes`: sync, hybrid and async compared, as processes with a proxy between workers and servers that
//! adds a delay.
//!
//! Workers reach each other over plain loopback, because libtorch's Gloo makes its own connections.

mod cluster;
mod figures;
mod proxy;
mod workload;

use std::time::Duration;

use tempfile::TempDir;

use self::figures::{ModeCase, ModeFigures};
use self::proxy::NetworkLine;
use self::workload::{ModeSetting, SERVERS, WORKERS};
use crate::args::ModesArgs;
use zagros_shell::{Exit, Failure, OrFailure, err, print_figures, write_file};
use zagros_zip::ZipEq;

/// Staleness of mode async if hybrid's is not given: the default of both modes.
const USUAL: usize = 4;

pub(crate) async fn run(args: ModesArgs) -> Result<Exit, Failure> {
    let data = TempDir::new().or_internal()?;
    let job = workload::mode_job(&args, data.path())?;
    let (staleness, seeds) = if args.quick { (vec![USUAL], 1) } else { (args.staleness.clone(), args.seeds) };
    let settings = ModeSetting::all_settings(&staleness, USUAL);
    let rate = args.rate.map(|megabits| megabits * 1e6 / 8.0);
    let line = NetworkLine { delay: Duration::from_secs_f64(args.delay / 1e3), rate };
    let mut cases: Vec<ModeCase> = settings.iter().copied().map(ModeCase::new).collect();
    for seed in 0..seeds {
        // All modes with one seed, then the next seed, so that other load on the machine affects pairs alike.
        for (case, setting) in cases.iter_mut().zip_eq(&settings) {
            err!("seed {} of {seeds}: {} with staleness {}", seed + 1, case.mode, case.staleness);
            case.runs.push(cluster::run_mode(&setting.apply_to(&job, job.train.seed + seed), line).await?);
        }
    }
    let means = cases.iter().map(|case| case.mean_figures(&cases[0])).collect();
    let batch_per_worker = (job.train.batch_size / WORKERS as usize).max(1);
    let (delay_ms, rate_mbit, workers, servers, job) = (args.delay, args.rate, WORKERS, SERVERS, job.name);
    let figures = ModeFigures { job, delay_ms, rate_mbit, workers, servers, batch_per_worker, seeds, cases, means };
    if let Some(path) = &args.page {
        write_file(path, figures.report().render_page(figures::HEADING))?;
    }
    print_figures(&figures, args.json, |figures| figures.report().print())
}
