//! Keys that a mode of training allows.

use super::JobResolver;
use crate::settings::{CheckpointSettings, DenseOptimizer, Mode, Table, TrainSettings, WeightStore, is_dense_table};

impl JobResolver<'_> {
    pub(super) fn mode_fits(&mut self, workers: u32, train: &TrainSettings, optimizer: &DenseOptimizer) {
        if train.mode != Mode::Async {
            return;
        }
        if let DenseOptimizer::AdamW { weight_decay, .. } = optimizer
            && *weight_decay > 0.0
        {
            let help = "set optimizer.weight_decay = 0, or use kind = \"adam\", whose decay is part of the gradient";
            let message = "mode \"async\" cannot decay weights beside their gradients, as AdamW does";
            self.problem("optimizer.weight_decay", message, "must be 0", help);
        }
        let of_all = [
            ("ema", train.ema.is_some(), "the servers hold the dense weights of mode \"async\", without an average"),
            ("reset_embeddings", train.reset_embeddings, "the workers of mode \"async\" are in no epoch together"),
        ];
        for (key, _, message) in of_all.into_iter().filter(|(_, is_asked, _)| *is_asked) {
            let help = format!("remove `train.{key}`, or use mode = \"hybrid\"");
            self.problem(format!("train.{key}").as_str(), message, "not in mode \"async\"", help);
        }
        // Each worker makes its own steps, so no step is the last one of all, or the one to evaluate after.
        let asked = [("max_steps", train.max_steps.is_some()), ("evaluate_every", train.evaluate_every.is_some())];
        for (key, _) in asked.into_iter().filter(|(_, is_asked)| *is_asked && workers > 1) {
            let message = format!(
                "`train.{key}` counts the steps of a process group, but the {workers} workers of mode \"async\" have none"
            );
            let help =
                "remove it (every epoch ends with an evaluation), train with one worker, or use mode = \"hybrid\"";
            self.problem(format!("train.{key}").as_str(), message, "with one worker only", help);
        }
    }

    pub(super) fn resolve_checkpoint(&mut self, checkpoint: CheckpointSettings) -> CheckpointSettings {
        self.names_a_folder("checkpoint.folder", checkpoint.folder.as_deref());
        checkpoint
    }

    pub(super) fn names_a_folder(&mut self, key: &str, text: Option<&str>) {
        if let Some(reason) = text.and_then(no_folder) {
            let help = "give a path, or s3://bucket/prefix; AWS_ENDPOINT_URL in the environment gives the endpoint";
            self.problem(key, format!("`{key}` names no folder"), reason, help);
        }
    }

    pub(super) fn names_are_free(&mut self, train: &TrainSettings, tables: &[Table]) {
        let may_stream = match train.weights {
            WeightStore::Streamed => true,
            WeightStore::Auto => train.memory.is_some(),
            WeightStore::Resident => false,
        };
        let holds_weights = train.mode == Mode::Async || may_stream;
        let taken = tables.iter().find(|table| holds_weights && is_dense_table(&table.name));
        if let Some(Table { name, .. }) = taken {
            let message = format!("a table is named \"{name}\", as are tables of the dense network");
            self.problem("features.categorical", message, "name taken", "give the feature another `table`");
        }
    }
}

/// Why a text does not name a folder, as far as the text alone shows.
fn no_folder(text: &str) -> Option<&'static str> {
    match text.split_once("://")? {
        ("s3", rest) if rest.starts_with('/') || rest.is_empty() => Some("no bucket"),
        ("s3", rest) if rest.contains(['@', '?', '#', ':']) => Some("only a bucket and a prefix"),
        ("file", path) if !path.starts_with('/') => Some("not an absolute path"),
        ("s3" | "file", _) => None,
        _ => Some("neither s3:// nor file://"),
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{CRITEO, DELIMITED, job, problems};

    #[test]
    fn asynchronous_workers_share_no_steps() {
        let several = "[cluster]\nworkers = 2\n[train]\nmode = 'async'\n";
        let found = problems(CRITEO, &format!("{several}max_steps = 5\nevaluate_every = 5\n"));
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("`train.max_steps` counts the steps of a process group"), "{found:?}");
        assert_eq!(job(CRITEO, "[train]\nmode = 'async'\nmax_steps = 5\n").train.max_steps, Some(5));
        // Each worker skips its own batches.
        job(CRITEO, &format!("{several}non_finite = 'skip'\n"));
    }

    #[test]
    fn asynchronous_workers_make_checkpoints_too() {
        let several = "[train]\nmode = 'async'\n[cluster]\nworkers = 2\n[checkpoint]\nevery_steps = 5\n";
        let checkpoint = job(CRITEO, several).checkpoint;
        assert_eq!((checkpoint.keep, checkpoint.every_steps), (2, Some(5)));
    }

    #[test]
    fn checkpoints_go_to_a_path_or_a_bucket() {
        let with_folder = |folder: &str| format!("[checkpoint]\nfolder = '{folder}'\n");
        for good in ["checkpoints", "/mnt/disk", "file:///mnt/disk", "s3://models", "s3://models/ads/ctr"] {
            let job = job(CRITEO, &with_folder(good));
            assert_eq!(job.checkpoint.folder.as_deref(), Some(good));
            assert!(job.to_toml().contains(&format!("folder = \"{good}\"")));
        }
        assert_eq!(job(CRITEO, "").checkpoint.folder, None);
        for bad in ["s3://", "s3:///prefix", "s3://key:secret@models", "gs://models", "file://disk"] {
            assert_eq!(problems(CRITEO, &with_folder(bad)), ["`checkpoint.folder` names no folder"], "{bad}");
        }
    }

    #[test]
    fn models_go_to_a_path_or_a_bucket() {
        let with_folder = |folder: &str| format!("[output]\nmodel_folder = '{folder}'\n");
        let found = job(CRITEO, &with_folder("s3://models/ads"));
        assert_eq!(found.output.model_folder.as_deref(), Some("s3://models/ads"));
        assert!(found.to_toml().contains("model_folder = \"s3://models/ads\""));
        assert_eq!(job(CRITEO, "").output.model_folder, None);
        assert_eq!(problems(CRITEO, &with_folder("gs://models")), ["`output.model_folder` names no folder"]);
    }

    #[test]
    fn mode_async_has_no_average_and_no_common_epochs() {
        let found = problems(CRITEO, "[train]\nmode = 'async'\nema = 0.99\nreset_embeddings = true\n");
        let expected = [
            "the servers hold the dense weights of mode \"async\", without an average",
            "the workers of mode \"async\" are in no epoch together",
        ];
        assert_eq!(found, expected);
        let train = job(CRITEO, "[train]\nema = 0.99\nreset_embeddings = true\nlabel_smoothing = 0.1\n").train;
        assert_eq!((train.ema, train.reset_embeddings, train.label_smoothing), (Some(0.99), true, 0.1));
    }

    #[test]
    fn mode_async_refuses_decoupled_decay() {
        let with_optimizer = |optimizer: &str| format!("[train]\nmode = 'async'\n[optimizer]\n{optimizer}\n");
        let found = problems(CRITEO, &with_optimizer("kind = 'adamw'"));
        assert_eq!(found, ["mode \"async\" cannot decay weights beside their gradients, as AdamW does"]);
        job(CRITEO, &with_optimizer("kind = 'adamw'\nweight_decay = 0"));
        job(CRITEO, &with_optimizer("kind = 'adam'\nweight_decay = 0.01"));
    }

    #[test]
    fn the_names_of_dense_tables_are_taken_where_servers_have_the_weights() {
        let features =
            "[features]\nlabel = 'y'\ncategorical = [{ column = 'a', table = '(dense)' }]\n[tables.'(dense)']\n";
        job(DELIMITED, features);
        for train in ["mode = 'async'", "weights = 'streamed'", "memory = '1 GiB'"] {
            let found = problems(DELIMITED, &format!("{features}[train]\n{train}\n"));
            assert_eq!(found, ["a table is named \"(dense)\", as are tables of the dense network"], "{train}");
        }
    }
}
