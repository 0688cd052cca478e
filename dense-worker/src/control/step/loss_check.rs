//! Ends training whose loss makes no sense (`super::divergence`).

use tracing::warn;

use super::divergence::LossSense;
use super::main_target::loss_of_ignorance;
use crate::control::trainer::Trainer;
use crate::error::WorkerError;
use crate::event::Evaluation;

impl Trainer {
    /// # Errors
    /// [`WorkerError::LossWithoutSense`]: on all workers that step together, whose loss is one.
    pub(super) fn check_divergence(&mut self, loss: f64) -> Result<(), WorkerError> {
        match self.loss.divergence.note_loss(loss) {
            LossSense::Fine => Ok(()),
            LossSense::None => Err(self.diverged("the training loss", self.tracker.smoothed_loss())),
            LossSense::Doubtful => {
                if !std::mem::replace(&mut self.loss.divergence.warned, true) {
                    self.warn_of_loss("the training loss", self.tracker.smoothed_loss());
                }
                Ok(())
            }
        }
    }

    /// After the last step: by the evaluation of the model where there is one, else by the last steps.
    ///
    /// # Errors
    /// As [`Self::check_divergence`]: there is nothing worth saving.
    pub(crate) fn check_sense(&self, evaluation: Option<Evaluation>) -> Result<(), WorkerError> {
        let held_out = evaluation.and_then(|evaluation| evaluation.logloss);
        let (what, loss) = match held_out {
            Some(loss) => ("the logloss of the held-out part", loss),
            None => ("the training loss", self.tracker.smoothed_loss()),
        };
        let nothing = loss_of_ignorance([self.run.job.features.main_target()]);
        match held_out.map_or_else(|| self.loss.divergence.at_end(), |loss| LossSense::from_loss(loss, nothing)) {
            LossSense::Fine => {
                let measured = evaluation.unwrap_or_else(|| self.tracker.recent_measures());
                self.warn_of_ignorance(measured.normalised_entropy);
                Ok(())
            }
            LossSense::None => Err(self.diverged(what, loss)),
            LossSense::Doubtful => {
                self.warn_of_loss(what, loss);
                Ok(())
            }
        }
    }

    fn warn_of_ignorance(&self, entropy: Option<f64>) {
        let divergence = &self.loss.divergence;
        if divergence.has_learned_nothing(entropy) {
            let (entropy, highest) = (entropy.unwrap_or_default(), divergence.highest);
            warn!(
                step = self.tracker.steps,
                "the model is no better than the share of positives alone (normalised entropy {entropy:.3}), and the loss of a step was \
                 up to {highest:.3e}: lower the learning rates, or look at the numeric columns with `zagros data inspect JOB`"
            );
        }
    }

    fn warn_of_loss(&self, what: &str, loss: f64) {
        let nothing = self.loss.divergence.ignorance;
        warn!(
            step = self.tracker.steps,
            "{what} is {loss:.2}, and a network that knows nothing has {nothing:.2}: training may have diverged; lower the \
             learning rates, or look at the numeric columns with `zagros data inspect JOB`"
        );
    }

    fn diverged(&self, what: &'static str, loss: f64) -> WorkerError {
        WorkerError::LossWithoutSense { step: self.tracker.steps, what, loss }
    }
}
