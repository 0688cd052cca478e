//! `zagros eval`: score data with a saved model, in one process.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use zagros_coordinator::LocalCoordinator;
use zagros_dense_worker::{Evaluate, Evaluation};
use zagros_plumbing::lifecycle::Shutdown;
use zagros_plumbing::metrics::Registry;
use zagros_shell::{Exit, Failure, OrInternal, answer, load_job, out, watch_signals};

use crate::args::EvalArgs;
use crate::embedded::Embedded;
use crate::report;
use crate::terminal::Terminal;

/// Loads, scores, prints.
pub(crate) async fn run(args: EvalArgs) -> Result<Exit, Failure> {
    let run_folder = run_folder(&args.run)?;
    let job = load_job(&run_folder.join("job.toml"), &args.sets)?;
    let shutdown = Shutdown::new();
    let signals = watch_signals(&shutdown)?;
    let registry = Registry::new();
    let control = LocalCoordinator::new(&job, &registry);
    let servers = Embedded::start(&job, control.clone(), &registry).await?;
    let terminal = Arc::new(Terminal::new(false));
    let evaluate = Evaluate {
        model: run_folder.join("model"),
        files: (!args.data.is_empty()).then_some(args.data),
        job,
        control,
        connect: servers.connect(),
        observer: terminal.clone(),
        shutdown,
    };
    let evaluation = evaluate.run().await;
    terminal.finish();
    print(&evaluation.map_err(|error| report::failure(error, &signals))?, args.json)?;
    Ok(Exit::Success)
}

/// A run folder, given itself or the model folder inside it.
fn run_folder(path: &Path) -> Result<PathBuf, Failure> {
    // `.` has no parent by name.
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let candidates = [Some(path), whole.parent()];
    let found = candidates.into_iter().flatten().find(|folder| folder.join("model/manifest.json").is_file());
    found.map(Path::to_owned).ok_or_else(|| {
        let what = format!("{} holds no model: there is no model/manifest.json", path.display());
        let help = "give a run folder of a finished training, such as runs/quickstart-…; a run that failed, or one with \
                    output.save_model = false, has no model";
        Failure::with_help(Exit::Data, what, help)
    })
}

fn print(evaluation: &Evaluation, json: bool) -> Result<(), Failure> {
    if json {
        return answer(&serde_json::to_string(evaluation).or_internal()?);
    }
    let measure = |value: Option<f64>| value.map_or_else(|| "undefined".to_owned(), |value| format!("{value:.4}"));
    out!("samples              {}", indicatif::HumanCount(evaluation.samples));
    out!("AUC                  {}", measure(evaluation.auc));
    if let Some(gauc) = report::grouped(evaluation) {
        out!("GAUC                 {gauc}");
    }
    out!("logloss              {}", measure(evaluation.logloss));
    out!("normalised entropy   {}", measure(evaluation.normalised_entropy));
    out!("calibration          {}", measure(evaluation.calibration));
    Ok(())
}
