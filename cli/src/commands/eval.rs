//! `zagros eval`: score data with a saved model, in one process.

use std::sync::Arc;
use std::time::Duration;

use zagros_dense_worker::{Evaluate, ImportanceOptions, Measures};
use zagros_plumbing::lifecycle::Shutdown;
use zagros_shell::{Exit, Failure, OrInternal, answer, out, watch_signals};

use crate::args::EvalArgs;
use crate::importance;
use crate::report;
use crate::saved::{SavedModel, check_trust};
use crate::slices;
use crate::terminal::Terminal;
use zagros_launch::EmbeddedCluster;

/// Loads, scores, prints.
pub(crate) async fn run(args: EvalArgs) -> Result<Exit, Failure> {
    let saved = SavedModel::find(&args.run, Duration::from_secs(args.timeout))?;
    let job = saved.job(&args.sets)?;
    check_trust(&job, args.trust_module.as_deref())?;
    let shutdown = Shutdown::new();
    let signals = watch_signals(&shutdown)?;
    let EmbeddedCluster { control, connect, .. } = EmbeddedCluster::start(&job).await?;
    let terminal = Arc::new(Terminal::new(false));
    let evaluate = Evaluate {
        model: saved.folder,
        files: (!args.data.is_empty()).then_some(args.data),
        importance: args.importance.map(|repeats| ImportanceOptions { repeats }),
        job,
        control,
        connect,
        observer: terminal.clone(),
        shutdown,
    };
    let measures = evaluate.run().await;
    terminal.finish();
    print(&measures.map_err(|error| report::failure(error, &signals))?, args.json)?;
    Ok(Exit::Success)
}

fn print(measures: &Measures, json: bool) -> Result<(), Failure> {
    if json {
        return answer(&serde_json::to_string(measures).or_internal()?);
    }
    let evaluation = &measures.evaluation;
    let measure = |value: Option<f64>| value.map_or_else(|| "undefined".to_owned(), |value| format!("{value:.4}"));
    out!("samples              {}", indicatif::HumanCount(evaluation.samples));
    out!("AUC                  {}", measure(evaluation.auc));
    if let Some(gauc) = report::grouped(evaluation) {
        out!("GAUC                 {gauc}");
    }
    out!("logloss              {}", measure(evaluation.logloss));
    out!("normalised entropy   {}", measure(evaluation.normalised_entropy));
    out!("calibration          {}", measure(evaluation.calibration));
    out!("calibration error    {}", measure(evaluation.ece));
    if let Some(calibrated) = &measures.calibrated {
        out!("after calibration    {}", report::calibrated(calibrated));
    }
    slices::print(&measures.slices);
    measures.importance.iter().for_each(importance::print);
    Ok(())
}
