//! The weights of the dense network: how many (`model.size` and µP), and where they are (`train.weights`).

use super::JobResolver;
use crate::document::KeyPath;
use crate::recipe;
use crate::settings::{
    BASE_WIDTH, CollectiveKind, Device, Job, Mode, Model, ModelSize, Parametrization, Precision, TableSettings,
    WeightStore, size,
};

impl JobResolver<'_> {
    /// The size that the job asks for. Refuses it beside what it decides.
    pub(super) fn model_size(&mut self, given: Option<&str>, model: &Model) -> Option<ModelSize> {
        let size: Result<ModelSize, String> = given?.parse();
        let size = size.map_err(|message| {
            self.problem("model.size", message, "not a size", "remove it for the widths of [model]")
        });
        if matches!(model, Model::TorchScript { .. }) {
            let help = "remove it, and choose the size where the module is made";
            self.problem("model.size", "a TorchScript module has its own layers", "without effect", help);
            return None;
        }
        let message = |key: &str| format!("model.size gives `{key}`, and the job gives it too");
        for key in model.width_keys() {
            let help = format!("remove `{key}`, or `size`");
            self.refuse_keys(&KeyPath::from("model"), &[*key], message, "given twice", &help);
        }
        size.ok()
    }

    /// The dim follows the size where the job wants it to.
    pub(super) fn sized_tables(
        &mut self,
        embedding: &TableSettings,
        size: Option<ModelSize>,
        is_wanted: bool,
    ) -> TableSettings {
        let key = "model.size_embeddings";
        match size.filter(|_| is_wanted) {
            None if is_wanted && !self.is_given("model.size") => {
                self.problem(key, "embeddings can follow a size, and there is none", "without effect", "add `size`");
                *embedding
            }
            None => *embedding,
            Some(_) if self.is_given("embedding.dim") => {
                let message = "model.size_embeddings gives `embedding.dim`, and the job gives it too";
                self.problem(key, message, "given twice", "remove `embedding.dim`, or `size_embeddings`");
                *embedding
            }
            Some(size) => TableSettings { dim: recipe::table_dim(size), ..*embedding },
        }
    }

    pub(super) fn set_widths(&mut self, job: &mut Job, size: Option<ModelSize>) {
        // Where features are wrong, the number of weights is too.
        let Some(size) = size.filter(|_| self.problems.is_empty()) else { return };
        match recipe::solve_widths(job, size) {
            Ok(model) => job.model = model,
            Err([why, help]) => {
                let message = format!("a network of {size} weights cannot be had: {why}");
                self.problem("model.size", message, "cannot be had", help);
            }
        }
    }

    /// What follows the width of the network. `has_size` says whether `model.size` is given.
    pub(super) fn resolve_parametrization(
        &mut self,
        base_width: Option<u32>,
        has_size: bool,
        model: &Model,
    ) -> Parametrization {
        let base_width = match (base_width, has_size) {
            (Some(0), _) | (None, false) => return Parametrization::Standard,
            (Some(width), _) => width,
            (None, true) => BASE_WIDTH,
        };
        if model.main_width().is_none() {
            let help = "remove it, or set it to 0";
            let message = "µP follows the width of hidden layers, and this network has none of its own";
            self.problem("model.mup_base_width", message, "no hidden layer", help);
        }
        Parametrization::Mup { base_width }
    }
}

/// Bytes of a resident weight besides the optimiser's state: its value and its gradient.
const VALUE_AND_GRADIENT: u64 = 2 * size_of::<f32>() as u64;

impl Job {
    /// Bytes of weights, gradients and optimiser state at a worker that has all; `None` for a user's module.
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
    use crate::Job;
    use crate::fixture::{CRITEO, assert_problems_with, assert_reloads, job, module};
    use crate::settings::{BASE_WIDTH, LADDER, Model, Parametrization};

    fn model(keys: &str) -> Job {
        job(CRITEO, &format!("[model]\n{keys}\n"))
    }

    /// From one preset to any other, and from no size to one: in the file and on the command line.
    #[test]
    fn a_few_keystrokes_change_the_size_and_nothing_else() {
        let file = |size: &str| format!("{CRITEO}[model]\nkind = 'ffnn'\nsize = \"{size}\"\n");
        let sizes = LADDER.map(|size| size.to_string());
        for one in &sizes {
            for other in sizes.iter().filter(|other| *other != one) {
                let [one, other] = [one, other].map(|size| job(&file(size), ""));
                let changed = other.changes_since(&one);
                let keys: Vec<&str> = changed.iter().map(|change| change.key.as_str()).collect();
                assert_eq!(keys, ["model.hidden"]);
                assert!(!changed[0].may_go_on());
            }
        }
        assert!(sizes.iter().all(|size| size.len() <= 4), "{sizes:?}");
    }

    #[test]
    fn the_resolved_job_has_widths_and_no_size() {
        for kind in ["dlrm", "wukong", "mmoe"] {
            let sized = model(&format!("kind = '{kind}'\nsize = '1.3m'\nsize_embeddings = true"));
            let text = sized.to_toml();
            assert!(!text.contains("\nsize = ") && !text.contains("size_embeddings"), "{text}");
            assert!(text.contains("mup_base_width = 128"), "{text}");
            assert_reloads(&sized);
        }
        // The other keys keep their meaning.
        let free = model("kind = 'mmoe'\nsize = '1m'\nexperts = 7\ndropout = 0.5");
        assert!(matches!(free.model, Model::Mmoe { experts: 7, .. }) && free.model.dropout_share() == 0.5);
    }

    #[test]
    fn mup_is_on_with_a_size_and_a_key_of_its_own() {
        let mup = |base_width| Parametrization::Mup { base_width };
        for (keys, expected) in [
            ("", Parametrization::Standard),
            ("mup_base_width = 64", mup(64)),
            ("size = '1m'", mup(BASE_WIDTH)),
            ("size = '1m'\nmup_base_width = 256", mup(256)),
            ("size = '1m'\nmup_base_width = 0", Parametrization::Standard),
        ] {
            assert_eq!(model(keys).parametrization, expected, "{keys}");
        }
        assert_ne!(model("mup_base_width = 64").fingerprint(), model("").fingerprint());
        let changed = model("mup_base_width = 64").changes_since(&model(""));
        assert_eq!((changed.len(), changed[0].to_string()), (1, "model.mup_base_width: nothing → 64".to_owned()));
    }

    #[test]
    fn a_size_that_cannot_be_had_is_refused_with_the_one_that_can() {
        let least = model("kind = 'ffnn'\nhidden = [4, 4]").dense_parameters().unwrap();
        assert_eq!(least, 429 * 4 + 4 + 4 * 4 + 4 + 5);
        let rows = r#"
            kind = 'ffnn'; size = '1k' => a network of 1k weights cannot be had: over the features of this job it has at least 1.75k
            kind = 'ffnn'; size = '1.75k' => fine
            kind = 'ffnn'; size = '1000t' => …cannot be had: with its widest layers it has 69.
            size = '13mb'   => …not a size
            size = 13000000 => `model.size` is an integer, expected text
            MODULE; size = '1m' => a TorchScript module has its own layers
            size_embeddings = true => embeddings can follow a size, and there is none
            size = '1m'; size_embeddings = true; [embedding]; dim = 4 => model.size_embeddings gives `embedding.dim`, and the job gives it too
            size = '1m'; bottom = [8]; top = [8] => model.size gives `bottom`, and the job gives it too & model.size gives `top`, and the job gives it too
            kind = 'dcnv2'; size = '1m'; rank = 8 => model.size gives `rank`, and the job gives it too
            kind = 'mmoe'; size = '1m'; hidden = [8] => model.size gives `hidden`, and the job gives it too
            kind = 'ffnn'; hidden = []; mup_base_width = 64 => µP follows the width of hidden layers, and this network has none of its own
        "#;
        let text = |keys: &str| format!("[model]\n{keys}").replace("[model]\nMODULE\n", &module());
        assert_problems_with(CRITEO, text, rows);
    }

    #[test]
    fn embeddings_follow_a_size_on_request() {
        let dims = |keys: &str| model(keys).tables[0].dim;
        assert_eq!(dims("size = '111k'"), 16);
        assert_eq!(dims("size = '111k'\nsize_embeddings = true"), 8);
        assert_eq!(dims("size = '1.3b'\nsize_embeddings = true"), 64);
    }
}

#[cfg(test)]
mod weight_tests {
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
