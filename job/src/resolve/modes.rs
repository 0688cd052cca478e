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
    use crate::fixture::{CRITEO, DELIMITED, assert_problems, assert_problems_with, job};

    #[test]
    fn asynchronous_workers_share_no_steps() {
        let several = "[train]\nmode = 'async'\n[cluster]\nworkers = 2\n[checkpoint]\nevery_steps = 5\n";
        let checkpoint = job(CRITEO, several).checkpoint;
        assert_eq!((checkpoint.keep, checkpoint.every_steps), (2, Some(5)));
        assert_eq!(job(CRITEO, "[train]\nmode = 'async'\nmax_steps = 5\n").train.max_steps, Some(5));
        let train = job(CRITEO, "[train]\nema = 0.99\nreset_embeddings = true\nlabel_smoothing = 0.1\n").train;
        assert_eq!((train.ema, train.reset_embeddings, train.label_smoothing), (Some(0.99), true, 0.1));
        // Each worker skips its own batches.
        let rows = r#"
            max_steps = 5; evaluate_every = 5; [cluster]; workers = 2 => `train.max_steps` counts the steps of a process group… & …
            non_finite = 'skip'; [cluster]; workers = 2 => fine
            ema = 0.99; reset_embeddings = true => the servers hold the dense weights of mode "async", without an average & the workers of mode "async" are in no epoch together
            [optimizer]; kind = 'adamw' => mode "async" cannot decay weights beside their gradients, as AdamW does
            [optimizer]; kind = 'adamw'; weight_decay = 0 => fine
            [optimizer]; kind = 'adam'; weight_decay = 0.01 => fine
        "#;
        assert_problems_with(CRITEO, |keys| format!("[train]\nmode = 'async'\n{keys}"), rows);
    }

    #[test]
    fn checkpoints_and_models_go_to_a_path_or_a_bucket() {
        let plain = job(CRITEO, "");
        assert_eq!((plain.checkpoint.folder, plain.output.model_folder), (None, None));
        for good in ["checkpoints", "/mnt/disk", "file:///mnt/disk", "s3://models", "s3://models/ads/ctr"] {
            let job = job(CRITEO, &format!("[checkpoint]\nfolder = '{good}'\n[output]\nmodel_folder = '{good}'\n"));
            assert_eq!([&job.checkpoint.folder, &job.output.model_folder], [&Some(good.to_owned()); 2]);
            let text = job.to_toml();
            let are_written = ["folder", "model_folder"].map(|key| text.contains(&format!("\n{key} = \"{good}\"")));
            assert_eq!(are_written, [true; 2], "{text}");
        }
        let rows = r#"
            [checkpoint]; folder = 's3://'         => `checkpoint.folder` names no folder
            [checkpoint]; folder = 's3:///prefix'  => `checkpoint.folder` names no folder
            [checkpoint]; folder = 's3://key:secret@models' => `checkpoint.folder` names no folder
            [checkpoint]; folder = 'gs://models'   => `checkpoint.folder` names no folder
            [checkpoint]; folder = 'file://disk'   => `checkpoint.folder` names no folder
            [output]; model_folder = 'gs://models' => `output.model_folder` names no folder
        "#;
        assert_problems(CRITEO, rows);
    }

    #[test]
    fn the_names_of_dense_tables_are_taken_where_servers_have_the_weights() {
        let features =
            "[features]\nlabel = 'y'\ncategorical = [{ column = 'a', table = '(dense)' }]\n[tables.'(dense)']\n";
        let rows = r#"
            mode = 'hybrid'      => fine
            mode = 'async'       => a table is named "(dense)", as are tables of the dense network
            weights = 'streamed' => a table is named "(dense)", as are tables of the dense network
            memory = '1 GiB'     => a table is named "(dense)", as are tables of the dense network
        "#;
        assert_problems_with(DELIMITED, |keys| format!("{features}[train]\n{keys}"), rows);
    }
}
