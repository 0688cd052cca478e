//! Progress on the terminal: one live line, or without a terminal one line every ten seconds.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressStyle};
use zagros_dense_worker::{Evaluation, HeldOutPart, Observer, RareCategories, StepReport, WorkerEvent};
use zagros_shell::note;
use zagros_shell::print::{NoteMode, note_mode};

use crate::measures;

const LINE_EVERY: Duration = Duration::from_secs(10);
/// The first steps are slower than the rest, so no end is estimated before this time.
const SETTLED: Duration = Duration::from_secs(2);
/// The bar counts in thousandths of the whole run.
const BAR_LENGTH: u64 = 1000;

/// Shows a run on standard error.
pub(crate) struct Terminal {
    bar: Option<ProgressBar>,
    /// Whether it waits for other processes.
    has_peers: bool,
    state: Mutex<LineState>,
}

struct LineState {
    epochs: u32,
    /// The number of steps after which the run ends, whatever the data.
    most_steps: Option<u64>,
    started: Instant,
    last_line: Option<Instant>,
    last_status: String,
}

impl LineState {
    fn new(epochs: u32, most_steps: Option<u64>) -> Self {
        Self { epochs, most_steps, started: Instant::now(), last_line: None, last_status: String::new() }
    }
}

impl Terminal {
    /// Draws a live line if standard error is a terminal. Shows waits for other processes if there are any.
    pub(crate) fn new(has_peers: bool) -> Self {
        let bar = (std::io::stderr().is_terminal() && note_mode() == NoteMode::Shown).then(new_bar);
        Self { bar, has_peers, state: Mutex::new(LineState::new(1, None)) }
    }

    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| note!("{text}")),
            None => note!("{text}"),
        }
    }

    /// Shows an activity between steps. A repeated one is shown once.
    fn status(&self, text: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &self.bar {
            Some(bar) => bar.set_message(text.to_owned()),
            None if state.last_status != text => note!("{text}"),
            None => {}
        }
        text.clone_into(&mut state.last_status);
    }

    fn step(&self, report: &StepReport) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let done = share_done(report, state.epochs, state.most_steps);
        if let Some(bar) = &self.bar {
            bar.set_position((done * BAR_LENGTH as f64) as u64);
            bar.set_message(describe(report, state.epochs, eta(state.started.elapsed(), done)));
        } else if state.last_line.is_none_or(|last| last.elapsed() >= LINE_EVERY) {
            state.last_line = Some(Instant::now());
            let eta = eta(state.started.elapsed(), done);
            match note_mode() {
                NoteMode::Logged => log(report, state.epochs, eta),
                NoteMode::Shown | NoteMode::Hidden => note!("{}", describe(report, state.epochs, eta)),
            }
        }
    }
}

impl Observer for Terminal {
    fn observe(&self, event: &WorkerEvent) {
        match event {
            WorkerEvent::Fitting => self.status("measuring numeric columns (reads the training rows once)"),
            WorkerEvent::RareCategories(rare) => self.line(&describe_rare(rare)),
            WorkerEvent::WaitingFor(whom) if self.has_peers => self.status(&format!("waiting for {whom}")),
            WorkerEvent::Started { epochs, steps_hint, .. } => {
                *self.state.lock().unwrap_or_else(PoisonError::into_inner) = LineState::new(*epochs, *steps_hint);
            }
            WorkerEvent::Step(report) => self.step(report),
            WorkerEvent::Evaluating { part, .. } => self.status(&format!("scoring the {} part", part.name())),
            WorkerEvent::Evaluated { step, part, evaluation, targets, .. } => {
                self.line(&describe_evaluation(*step, *part, evaluation));
                for of in targets.iter().skip(1) {
                    self.line(&format!("{} of {}: {}", part.name(), of.target, measures::in_words(&of.evaluation)));
                }
            }
            WorkerEvent::Chosen { message, .. } => self.line(message),
            WorkerEvent::Resumed { step, folder } => {
                self.line(&format!("going on after step {step}, from {folder} (--fresh starts over)"));
            }
            WorkerEvent::StartedFrom { folder, rows, differences, .. } => {
                self.line(&format!("starting from {folder}: {} rows and the dense network", HumanCount(*rows)));
                differences.iter().for_each(|difference| self.line(&format!("  {difference}")));
            }
            WorkerEvent::WorkerLost { step, workers, cause, timeout } => {
                self.line(&describe_lost(*step, workers, cause, *timeout))
            }
            WorkerEvent::Regrouped { step, generation, source, workers } => self.line(&format!(
                "training continues after step {step} with {}, from the state of dense worker {source} (process group of \
                 generation {generation})",
                among(workers)
            )),
            WorkerEvent::Checkpoint { step, seconds, .. } => {
                self.line(&format!("checkpoint after step {step}, written in {seconds:.1} s"));
            }
            _ => {}
        }
    }
}

/// The lines of a worker for which another worker reports: only what it waits for.
pub(crate) struct WaitLines(pub(crate) Arc<Terminal>);

impl Observer for WaitLines {
    fn observe(&self, event: &WorkerEvent) {
        let is_its_own = matches!(event, WorkerEvent::WorkerLost { .. } | WorkerEvent::Regrouped { .. });
        if is_its_own || matches!(event, WorkerEvent::WaitingFor(_) | WorkerEvent::Fitting) {
            self.0.observe(event);
        }
    }
}

/// `dense workers 0, 2`, or their number if there are many.
fn among(workers: &[u32]) -> String {
    const NAMED: usize = 8;
    let names: Vec<String> = workers.iter().map(ToString::to_string).collect();
    match workers.len() {
        1 => format!("dense worker {} alone", names[0]),
        2..=NAMED => format!("dense workers {}", names.join(", ")),
        many => format!("{many} dense workers"),
    }
}

fn new_bar() -> ProgressBar {
    let bar = ProgressBar::new(BAR_LENGTH);
    let style = ProgressStyle::with_template("{spinner:.cyan} {wide_bar:.cyan/dim} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸─"));
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// The same for a program, with a field per number.
fn log(report: &StepReport, epochs: u32, eta: Option<Duration>) {
    tracing::info!(
        step = report.step,
        epoch = report.epoch + 1,
        epochs,
        epoch_fraction = report.epoch_fraction,
        samples_per_second = report.samples_per_second,
        loss = report.loss_smoothed,
        auc = report.auc_so_far,
        staleness = report.staleness,
        seconds_left = eta.map(|eta| eta.as_secs_f64()),
        "training"
    );
}

fn describe(report: &StepReport, epochs: u32, eta: Option<Duration>) -> String {
    let eta = eta.map_or_else(String::new, |left| format!("  {} left", HumanDuration(left)));
    let auc = report.auc_so_far.map_or_else(String::new, |auc| format!("  AUC so far {auc:.4}"));
    format!(
        "step {}  epoch {}/{epochs} {:>3.0} %  {} samples/s  loss {:.4}{auc}  staleness {}{eta}",
        HumanCount(report.step),
        report.epoch + 1,
        report.epoch_fraction * 100.0,
        HumanCount(report.samples_per_second as u64),
        report.loss_smoothed,
        report.staleness,
    )
}

fn describe_lost(step: u64, workers: &str, cause: &str, timeout: Duration) -> String {
    let workers = if workers.is_empty() { "the group of workers" } else { workers };
    format!(
        "{workers} lost after step {step} ({cause}); waiting for another process in its slot for up to {timeout:?} \
         (cluster.timeout_seconds) after its lease has expired"
    )
}

fn describe_rare(RareCategories { feature, categories, listed, share }: &RareCategories) -> String {
    let (categories, listed, rows) = (HumanCount(*categories), HumanCount(*listed), 100.0 * share);
    format!(
        "feature `{feature}` encodes the {listed} most frequent of {categories} categories (`max_size`); {rows:.1} % of the training rows \
         have another, which counts as one that never occurs"
    )
}

fn describe_evaluation(step: u64, part: HeldOutPart, evaluation: &Evaluation) -> String {
    let samples = HumanCount(evaluation.samples);
    format!("{} after step {step}: {} ({samples} samples)", part.name(), measures::in_words(evaluation))
}

/// The completed share of the run: of its data or of its steps, whichever is larger.
fn share_done(report: &StepReport, epochs: u32, most_steps: Option<u64>) -> f64 {
    let of_data = (f64::from(report.epoch) + report.epoch_fraction) / f64::from(epochs);
    let of_steps = most_steps.map_or(0.0, |most| report.step as f64 / most.max(1) as f64);
    of_data.max(of_steps)
}

/// Estimated time left at the mean speed so far; `None` at the beginning.
fn eta(elapsed: Duration, done: f64) -> Option<Duration> {
    let known = elapsed >= SETTLED && done > 0.0 && done < 1.0;
    known.then(|| elapsed.mul_f64((1.0 - done) / done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_with_its_data_or_its_steps() {
        let report = StepReport { step: 30, epoch: 1, epoch_fraction: 0.5, ..StepReport::default() };
        for (epochs, steps) in [(2, None), (2, Some(1000)), (20, Some(40))] {
            assert_eq!(share_done(&report, epochs, steps), 0.75, "{epochs} {steps:?}");
        }
        for (millis, share, left) in
            [(10_000, 0.25, Some(30)), (10_000, 0.0, None), (10_000, 1.0, None), (100, 0.25, None)]
        {
            assert_eq!(eta(Duration::from_millis(millis), share), left.map(Duration::from_secs), "{millis} {share}");
        }
    }
}
