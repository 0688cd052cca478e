//! Where the weights of the dense network are: checks of streamed weights, and the choice of `train.weights = "auto"`.

use super::JobResolver;
use crate::settings::{CollectiveKind, Device, Job, Mode, Precision, WeightStore, size};

/// Bytes of a resident weight besides the optimiser's state: its value and its gradient.
const VALUE_AND_GRADIENT: u64 = 2 * size_of::<f32>() as u64;

impl Job {
    /// Bytes of weights, gradients and optimiser state at a worker that has all; `None` for a user's module.
    #[must_use]
    pub fn resident_bytes(&self) -> Option<u64> {
        let each = VALUE_AND_GRADIENT + self.state_values() * size_of::<f32>() as u64;
        self.dense_parameters().map(|weights| weights * each)
    }
}

impl JobResolver<'_> {
    /// Decides where weights are, if the job leaves it open.
    pub(super) fn weights_fit(&mut self, job: &mut Job) {
        let needed = job.resident_bytes().unwrap_or(0);
        let is_too_large = job.train.memory.is_some_and(|memory| needed > memory);
        match job.train.weights {
            WeightStore::Auto if !is_too_large => job.train.weights = WeightStore::Resident,
            WeightStore::Auto => {
                job.train.weights = WeightStore::Streamed;
                self.streamed_weights_fit(job);
            }
            WeightStore::Streamed => self.streamed_weights_fit(job),
            WeightStore::Resident if is_too_large => {
                let (needed, memory) = (size::write(needed), size::write(job.train.memory.unwrap_or(0)));
                let message = format!("the dense network needs {needed}, and `train.memory` is {memory}");
                let help = "set train.weights = \"auto\" to stream its weights, or choose a smaller network";
                self.problem("train.memory", message, "too little", help);
            }
            WeightStore::Resident => {}
        }
    }

    fn streamed_weights_fit(&mut self, job: &Job) {
        let (train, is_nccl) = (&job.train, job.cluster.collective == CollectiveKind::Nccl);
        let reasons = [
            ("train.mode", train.mode == Mode::Async, "mode \"async\" keeps the weights in another form"),
            ("train.device", train.device == Device::Cuda, "streamed weights are for processors"),
            ("train.precision", train.precision != Precision::F32, "layers with streamed weights compute in f32"),
            ("train.ema", train.ema.is_some(), "the servers keep no average of streamed weights"),
            ("cluster.collective", is_nccl, "the parts of layers are exchanged between processors"),
            ("train.reset_embeddings", train.reset_embeddings, "streamed weights are rows, and rows begin anew"),
            ("model", job.dense_layers().is_none(), "the layers of a module of your own are not known"),
        ];
        for (key, _, message) in reasons.into_iter().filter(|(_, is_so, _)| *is_so) {
            let help = "set train.weights = \"resident\", or change this key; docs/how-to/stream-weights.md says which networks stream";
            self.problem(key, message, "not with streamed weights", help);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{CRITEO, assert_problems_with, job, module, problems};

    /// About 13·512 weights and more.
    const NETWORK: &str = "[model]\nkind = 'ffnn'\nhidden = [64]\n";

    fn chosen(train: &str) -> WeightStore {
        job(CRITEO, &format!("{NETWORK}[train]\n{train}\n")).train.weights
    }

    #[test]
    fn a_network_that_does_not_fit_is_streamed() {
        let weights = job(CRITEO, NETWORK).dense_parameters().unwrap();
        assert_eq!(job(CRITEO, NETWORK).resident_bytes(), Some(16 * weights));
        assert_eq!(chosen(""), WeightStore::Resident);
        let (fits, short) = (16 * weights, 16 * weights - 1);
        assert_eq!(chosen(&format!("memory = '{fits}'")), WeightStore::Resident);
        assert_eq!(chosen(&format!("memory = '{short}'")), WeightStore::Streamed);
        assert_eq!(chosen("weights = 'streamed'"), WeightStore::Streamed);
        // Gradient descent keeps nothing.
        let plain = format!("{NETWORK}[optimizer]\nkind = 'sgd'\nmomentum = 0\n[train]\nmemory = '{}'\n", 8 * weights);
        assert_eq!(job(CRITEO, &plain).train.weights, WeightStore::Resident);
        let found = problems(CRITEO, &format!("{NETWORK}[train]\nweights = 'resident'\nmemory = '{short}'\n"));
        assert!(found[0].starts_with("the dense network needs "), "{found:?}");
    }

    #[test]
    fn what_cannot_be_streamed_is_refused_by_its_key() {
        let rows = r#"
            mode = 'async'     => mode "async" keeps the weights in another form
            precision = 'bf16' => layers with streamed weights compute in f32
            ema = 0.9          => the servers keep no average of streamed weights
            MODULE             => the layers of a module of your own are not known
        "#;
        let text = |keys: &str| format!("[train]\nweights = 'streamed'\n{keys}").replace("MODULE", &module());
        assert_problems_with(CRITEO, text, rows);
    }

    #[test]
    fn every_network_of_ours_can_be_streamed() {
        for text in ["[mlp]\nnorm = 'batch'\n", "[model]\nkind = 'wukong'\n", "[features]\nnumeric_embedding = {}\n"] {
            let streamed = job(CRITEO, &format!("[train]\nweights = 'streamed'\n{text}"));
            assert_eq!(streamed.train.weights, WeightStore::Streamed, "{text}");
            assert!(streamed.to_toml().contains("weights = \"streamed\""), "{text}");
        }
    }
}
