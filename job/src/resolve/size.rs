//! `model.size` and µP: a size becomes widths, and the base width a parametrisation.

use super::JobResolver;
use crate::document::KeyPath;
use crate::recipe::{self, SizeError};
use crate::settings::{BASE_WIDTH, Job, Model, ModelSize, Parametrization, TableSettings};

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
        for key in model.width_keys() {
            if !self.is_given(&format!("model.{key}")) {
                continue;
            }
            let message = format!("model.size gives `{key}`, and the job gives it too");
            self.problem(KeyPath::from("model").key(key), message, "given twice", format!("remove `{key}`, or `size`"));
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
        let (message, help) = match recipe::solve_widths(job, size) {
            Ok(model) => return job.model = model,
            Err(SizeError::TooSmall { least }) => (
                format!(
                    "a network of {size} weights cannot be had: over the features of this job it has at least {least}"
                ),
                format!("choose {least} or more, or fewer features, or a smaller embedding.dim"),
            ),
            Err(SizeError::TooLarge { most }) => (
                format!("a network of {size} weights cannot be had: with its widest layers it has {most}"),
                format!("choose {most} or less"),
            ),
        };
        self.problem("model.size", message, "cannot be had", help);
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
