//! `[eval]`, `[train.early_stop]` and the keys of other sections that they need; keys that a mode of training allows.

use super::JobResolver;
use crate::document::KeyPath;
use crate::file::JobFile;
use crate::settings::{
    CalibrationKind, DenseOptimizer, EvalMetric, EvalSettings, Mode, Table, Target, TargetKind, TrainSettings,
    WeightStore, is_dense_table,
};

impl JobResolver<'_> {
    pub(super) fn measures_fit(&mut self, eval: &EvalSettings, targets: &[Target]) {
        if let Some(column) = &eval.group_by {
            let path = KeyPath::from("eval.group_by");
            if self.labels.contains(column) {
                let message = format!("the label \"{column}\" cannot group samples: each group would have one class");
                self.problem(path, message, "this is the label", "name a column such as the user's id");
            } else {
                self.column_exists(&path, column);
            }
        }
        self.slices(&eval.slices);
        self.clicks_are_measured(eval, targets);
    }

    /// Groups and slices have measures of clicks.
    fn clicks_are_measured(&mut self, eval: &EvalSettings, targets: &[Target]) {
        self.calibration_has_labels(eval.calibration, targets);
        let Some(main) = targets.first().filter(|target| !target.is_click()) else { return };
        let keys = [("eval.group_by", eval.group_by.is_some()), ("eval.slices", !eval.slices.is_empty())];
        for (key, _) in keys.into_iter().filter(|(_, is_given)| *is_given) {
            let message = format!("\"{}\" is no click, and `{key}` measures clicks", main.name);
            self.problem(key, message, "the first label is no click", "remove it, or list a label of clicks first");
        }
    }

    /// Probabilities are calibrated: those of clicks and of classes.
    fn calibration_has_labels(&mut self, calibration: Option<CalibrationKind>, targets: &[Target]) {
        let Some(kind) = calibration else { return };
        let is_number = |target: &Target| matches!(target.kind, TargetKind::Regression { .. });
        if let Some(main) = targets.first().filter(|_| targets.iter().all(is_number)) {
            let message = format!(
                "\"{}\" is a number, and calibration is of probabilities, which a regression does not predict",
                main.name
            );
            self.problem("eval.calibration", message, "no label of clicks or classes", "remove it");
        } else if kind == CalibrationKind::Isotonic && !targets.is_empty() && !targets.iter().any(Target::is_click) {
            let message = "isotonic calibration is of one probability, that of a click, and classes have several";
            self.problem("eval.calibration", message, "no label of clicks", "use eval.calibration = \"temperature\"");
        }
    }

    fn slices(&mut self, columns: &[String]) {
        for (index, column) in columns.iter().enumerate() {
            let path = KeyPath::from("eval.slices");
            if self.labels.contains(column) {
                let message =
                    format!("slices by the label \"{column}\" have one class each: no AUC and no calibration");
                self.problem(path, message, "this is the label", "name a column such as the country");
            } else if columns[..index].contains(column) {
                let message = format!("the column \"{column}\" is named twice");
                self.problem(path, message, "named twice", "name it once");
            } else {
                self.column_exists(&path, column);
            }
        }
    }

    pub(super) fn calibration_fits(&mut self, file: &JobFile) {
        if file.eval.calibration.is_some() && !file.data.has_validation() {
            let help = "hold rows out: data.validation = \"file\" or data.validation_share = 0.1; a function that was fitted to the test \
                        part would look better on it than it is";
            self.problem("eval.calibration", "calibration needs a validation part", "no validation part", help);
        }
    }

    pub(super) fn early_stop_fits(&mut self, file: &JobFile) {
        let Some(early_stop) = file.train.early_stop else {
            if file.output.keep_best > 0 {
                let message = "`output.keep_best` needs `train.early_stop`, which defines the best state";
                let help = "add it, for example: train.early_stop = { metric = \"auc\", patience = 2 }";
                self.problem("output.keep_best", message, "no `train.early_stop`", help);
            }
            return;
        };
        if !file.data.has_validation() {
            let help = "hold rows out: data.validation = \"file\", data.validation_share = 0.1 or data.validation_from; a test part \
                        that chose the state would look better than it is";
            self.problem("train.early_stop", "early stopping needs a validation part", "no validation part", help);
        }
        if early_stop.metric == EvalMetric::Gauc && file.eval.group_by.is_none() {
            let help = "name the column: eval.group_by = \"user_id\"";
            self.problem("train.early_stop.metric", "\"gauc\" needs groups", "no `eval.group_by`", help);
        }
    }
}

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
    use crate::settings::{CalibrationKind, EarlyStop, EvalMetric, EvalSettings, HeldOutRows};

    fn measured(keys: &str) -> String {
        format!("[features]\nlabel = 'y'\ncategorical = ['a']\n[eval]\n{keys}\n")
    }

    #[test]
    fn early_stopping_keeps_the_best_state() {
        let plain = job(CRITEO, "[output]\nkeep_best = 0\n");
        assert_eq!((plain.train.early_stop, plain.output.keep_best), (None, 0));
        let parts = (plain.data.test, plain.data.validation, plain.eval.calibration);
        assert_eq!(parts, (HeldOutRows::None, HeldOutRows::None, None));
        let stops = job(CRITEO, "validation_share = 0.1\n[train.early_stop]\n");
        let expected = EarlyStop { metric: EvalMetric::Auc, patience: 2, min_delta: 0.0 };
        assert_eq!((stops.train.early_stop, stops.output.keep_best), (Some(expected), 1));
        let several =
            "validation = 'v'\n[train]\nearly_stop = { metric = 'logloss', patience = 7 }\n[output]\nkeep_best = 3\n";
        let several = job(CRITEO, several);
        assert_eq!((several.output.keep_best, several.data_files().len()), (3, 2));
        assert_eq!(several.data.validation, HeldOutRows::Files(vec!["/jobs/v".into()]));
        let calibration = |kind: &str| {
            job(CRITEO, &format!("validation_share = 0.1\n[eval]\ncalibration = '{kind}'\n")).eval.calibration
        };
        assert_eq!(calibration("isotonic"), Some(CalibrationKind::Isotonic));
        assert_eq!(calibration("temperature"), Some(CalibrationKind::Temperature));
    }

    #[test]
    fn what_a_measure_needs_is_asked_for() {
        let rows = r#"
            [train.early_stop] => early stopping needs a validation part
            validation_share = 0.1; [train]; early_stop = { metric = 'gauc' } => "gauc" needs groups
            [output]; keep_best = 1 => `output.keep_best` needs `train.early_stop`, which defines the best state
            test_fraction = 0.1; [eval]; calibration = 'isotonic' => calibration needs a validation part
            validation_share = 0.1; [eval]; calibration = 'isotonc' => …isotonc
            validation_share = 0.5; test_fraction = 0.5 => `data.validation_share` and `data.test_fraction` leave no row to train on
            validation_share = 0.5; validation = 'v' => `data.validation` and `data.validation_share` exclude each other
        "#;
        assert_problems(CRITEO, rows);
    }

    #[test]
    fn groups_and_slices_are_columns_that_exist_and_are_not_the_label() {
        let expected = EvalSettings { group_by: Some("b".to_owned()), ..EvalSettings::default() };
        assert_eq!(job(DELIMITED, &measured("group_by = 'b'")).eval, expected);
        let slices = vec!["b".to_owned(), "a".to_owned()];
        let expected = EvalSettings { slices, slice_values: 10, ..EvalSettings::default() };
        assert_eq!(job(DELIMITED, &measured("slices = ['b', 'a']")).eval, expected);
        let rows = r#"
            group_by = 'usr'      => no column is named "usr"
            group_by = 'y'        => the label "y" cannot group samples: each group would have one class
            slices = ['b', 'usr'] => no column is named "usr"
            slices = ['b', 'b']   => the column "b" is named twice
            slices = ['y']        => slices by the label "y" have one class each: no AUC and no calibration
        "#;
        assert_problems_with(DELIMITED, measured, rows);
    }
}

#[cfg(test)]
mod mode_tests {
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
