//! `zagros eval`: score data with a saved model, in one process.

use std::sync::Arc;
use std::time::Duration;

use zagros_dense_worker::{EvaluateCommand, ImportanceOptions, PartMeasures};
use zagros_plumbing::lifecycle::Shutdown;
use zagros_shell::{Exit, Failure, OrInternal, out, print_answer, watch_signals};

use crate::args::EvalArgs;
use crate::importance;
use crate::measures;
use crate::report;
use crate::saved::{SavedModel, check_trust};
use crate::scored_rows::job_for;
use crate::slices;
use crate::terminal::Terminal;
use zagros_launch::EmbeddedCluster;

pub(crate) async fn run(args: EvalArgs) -> Result<Exit, Failure> {
    let saved = SavedModel::find(&args.run, Duration::from_secs(args.timeout))?;
    let job = match args.data.as_slice() {
        [] => saved.load_job(&args.sets)?,
        files => job_for(&saved, &args.sets, files, None)?,
    };
    check_trust(&job, args.trust_module.as_deref())?;
    let shutdown = Shutdown::new();
    let signals = watch_signals(&shutdown)?;
    let EmbeddedCluster { control, connect, .. } = EmbeddedCluster::start(&job).await?;
    let terminal = Arc::new(Terminal::new(false));
    let evaluate = EvaluateCommand {
        model: saved.folder,
        files: (!args.data.is_empty()).then_some(args.data),
        importance: args.importance.map(|repeats| ImportanceOptions { repeats }),
        job,
        control,
        connect,
        observer: terminal.clone(),
        shutdown,
    };
    let found = evaluate.run().await;
    terminal.finish();
    print(&found.map_err(|error| report::scoring_failure(error, &signals, &[]))?, args.json)?;
    Ok(Exit::Success)
}

fn print(found: &PartMeasures, json: bool) -> Result<(), Failure> {
    if json {
        return print_answer(&serde_json::to_string(found).or_internal()?);
    }
    let PartMeasures { evaluation, targets, slices, .. } = found;
    let measure = measures::format_measure;
    out!("samples              {}", indicatif::HumanCount(evaluation.samples));
    let others = measures::of_others(evaluation);
    if !others.is_empty() {
        others.iter().for_each(|(name, value)| out!("{name:<21}{}", measures::format_measure(*value)));
        print_calibrated(found);
        measures::print_targets(targets);
        found.importance.iter().for_each(importance::print);
        return Ok(());
    }
    out!("AUC                  {}", measure(evaluation.auc));
    if let Some(gauc) = report::grouped_auc(evaluation) {
        out!("GAUC                 {gauc}");
    }
    out!("logloss              {}", measure(evaluation.logloss));
    out!("normalised entropy   {}", measure(evaluation.normalised_entropy));
    out!("calibration          {}", measure(evaluation.calibration));
    measures::print_targets(targets);
    out!("calibration error    {}", measure(evaluation.ece));
    print_calibrated(found);
    slices::print(slices);
    found.importance.iter().for_each(importance::print);
    Ok(())
}

fn print_calibrated(found: &PartMeasures) {
    if let Some(calibrated) = &found.calibrated {
        out!("after calibration    {}", report::calibrated_text(calibrated));
    }
}
