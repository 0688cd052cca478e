//! From the outputs of networks to scores.

use zagros_eval::TargetForm;

/// What is written of the outputs of a network.
#[derive(Clone, Debug)]
pub(crate) struct ScoreForm {
    /// The outputs themselves, and not what they predict.
    pub(crate) logits: bool,
    /// In the order of the network's outputs.
    pub(crate) targets: Vec<TargetForm>,
}

impl ScoreForm {
    pub(crate) fn columns(&self) -> usize {
        self.targets.iter().map(|target| target.output_count()).sum()
    }

    /// The scores of samples, `[samples * columns]`.
    pub(crate) fn scores(&self, outputs: &[f32]) -> Vec<f64> {
        if self.logits { outputs.iter().map(|logit| f64::from(*logit)).collect() } else { self.predictions(outputs) }
    }

    /// What the outputs of the samples predict.
    pub(crate) fn predictions(&self, outputs: &[f32]) -> Vec<f64> {
        let mut scores = Vec::with_capacity(outputs.len());
        let mut rest = outputs;
        while !rest.is_empty() {
            for target in &self.targets {
                let (own, others) = rest.split_at(target.output_count().min(rest.len()));
                target.predict(own, &mut scores);
                rest = others;
            }
        }
        scores
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_has_its_own_outputs() {
        let form = ScoreForm { logits: false, targets: vec![TargetForm::Click, TargetForm::Regression] };
        assert_eq!((form.columns(), form.scores(&[0.0, 7.0, 0.0, 8.0])), (2, vec![0.5, 7.0, 0.5, 8.0]));
        let logits = ScoreForm { logits: true, ..form };
        assert_eq!(logits.scores(&[0.5, 7.0]), [0.5, 7.0]);
    }
}
