//! `[eval]`, `[train.early_stop]`, and the keys of other sections that they need.

use super::JobResolver;
use crate::document::KeyPath;
use crate::file::JobFile;
use crate::settings::{CalibrationKind, EvalMetric, EvalSettings, Target, TargetKind};

impl JobResolver<'_> {
    pub(super) fn resolve_eval(
        &mut self,
        eval: EvalSettings,
        targets: &[Target],
        known: Option<&[String]>,
    ) -> EvalSettings {
        if let Some(column) = &eval.group_by {
            let path = KeyPath::from("eval.group_by");
            if is_label(column, targets) {
                let message = format!("the label \"{column}\" cannot group samples: each group would have one class");
                self.problem(path, message, "this is the label", "name a column such as the user's id");
            } else {
                self.column_exists(&path, column, known);
            }
        }
        self.slices(&eval.slices, targets, known);
        self.clicks_are_measured(&eval, targets);
        eval
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

    fn slices(&mut self, columns: &[String], targets: &[Target], known: Option<&[String]>) {
        for (index, column) in columns.iter().enumerate() {
            let path = KeyPath::from("eval.slices");
            if is_label(column, targets) {
                let message =
                    format!("slices by the label \"{column}\" have one class each: no AUC and no calibration");
                self.problem(path, message, "this is the label", "name a column such as the country");
            } else if columns[..index].contains(column) {
                let message = format!("the column \"{column}\" is named twice");
                self.problem(path, message, "named twice", "name it once");
            } else {
                self.column_exists(&path, column, known);
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

fn is_label(column: &str, targets: &[Target]) -> bool {
    targets.iter().any(|target| target.column == column)
}

#[cfg(test)]
mod tests {
    use crate::fixture::{CRITEO, DELIMITED, job, problems};
    use crate::settings::{CalibrationKind, EarlyStop, EvalMetric, EvalSettings, ValidationPart};

    const FEATURES: &str = "[features]\nlabel = 'y'\ncategorical = ['a']\n";

    #[test]
    fn early_stopping_keeps_the_best_state() {
        let plain = job(CRITEO, "");
        assert_eq!((plain.train.early_stop, plain.output.keep_best), (None, 0));
        assert_eq!(plain.data.validation, ValidationPart::None);
        let stops = job(CRITEO, "validation_share = 0.1\n[train.early_stop]\n");
        let expected = EarlyStop { metric: EvalMetric::Auc, patience: 2, min_delta: 0.0 };
        assert_eq!((stops.train.early_stop, stops.output.keep_best), (Some(expected), 1));
        let several =
            "validation = 'v'\n[train]\nearly_stop = { metric = 'logloss', patience = 7 }\n[output]\nkeep_best = 3\n";
        let several = job(CRITEO, several);
        assert_eq!(several.output.keep_best, 3);
        assert_eq!(several.data.validation, ValidationPart::Files(vec!["/jobs/v".into()]));
        assert_eq!(several.data_files().len(), 2);
    }

    #[test]
    fn what_early_stopping_needs_is_asked_for() {
        assert_eq!(problems(CRITEO, "[train.early_stop]\n"), ["early stopping needs a validation part"]);
        let gauc = "validation_share = 0.1\n[train]\nearly_stop = { metric = 'gauc' }\n";
        assert_eq!(problems(CRITEO, gauc), ["\"gauc\" needs groups"]);
        let kept = problems(CRITEO, "[output]\nkeep_best = 1\n");
        assert_eq!(kept, ["`output.keep_best` needs `train.early_stop`, which defines the best state"]);
        assert_eq!(job(CRITEO, "[output]\nkeep_best = 0\n").output.keep_best, 0);
    }

    #[test]
    fn calibration_needs_a_validation_part() {
        let with_kind = |kind: &str| format!("validation_share = 0.1\n[eval]\ncalibration = '{kind}'\n");
        assert_eq!(job(CRITEO, "").eval.calibration, None);
        assert_eq!(job(CRITEO, &with_kind("isotonic")).eval.calibration, Some(CalibrationKind::Isotonic));
        assert_eq!(job(CRITEO, &with_kind("temperature")).eval.calibration, Some(CalibrationKind::Temperature));
        let test_only = "test_fraction = 0.1\n[eval]\ncalibration = 'isotonic'\n";
        assert_eq!(problems(CRITEO, test_only), ["calibration needs a validation part"]);
        let unknown = problems(CRITEO, &with_kind("isotonc"));
        assert!(unknown.len() == 1 && unknown[0].contains("isotonc"), "{unknown:?}");
    }

    #[test]
    fn groups_are_a_column_that_exists_and_is_not_the_label() {
        let with_column = |column: &str| format!("{FEATURES}[eval]\ngroup_by = '{column}'\n");
        let expected = EvalSettings { group_by: Some("b".to_owned()), ..EvalSettings::default() };
        assert_eq!(job(DELIMITED, &with_column("b")).eval, expected);
        assert_eq!(problems(DELIMITED, &with_column("usr")), ["no column is named \"usr\""]);
        let label = problems(DELIMITED, &with_column("y"));
        assert_eq!(label, ["the label \"y\" cannot group samples: each group would have one class"]);
    }

    #[test]
    fn slices_are_by_columns_that_exist_and_are_not_the_label() {
        let with_columns = |columns: &str| format!("{FEATURES}[eval]\nslices = [{columns}]\n");
        let expected =
            EvalSettings { slices: vec!["b".to_owned(), "a".to_owned()], slice_values: 10, ..EvalSettings::default() };
        assert_eq!(job(DELIMITED, &with_columns("'b', 'a'")).eval, expected);
        assert_eq!(problems(DELIMITED, &with_columns("'b', 'usr'")), ["no column is named \"usr\""]);
        assert_eq!(problems(DELIMITED, &with_columns("'b', 'b'")), ["the column \"b\" is named twice"]);
        let label = problems(DELIMITED, &with_columns("'y'"));
        assert_eq!(label, ["slices by the label \"y\" have one class each: no AUC and no calibration"]);
    }

    #[test]
    fn rows_are_left_to_train_on() {
        let found = problems(CRITEO, "validation_share = 0.5\ntest_fraction = 0.5\n");
        assert_eq!(found, ["`data.validation_share` and `data.test_fraction` leave no row to train on"]);
        let found = problems(CRITEO, "validation_share = 0.5\nvalidation = 'v'\n");
        assert_eq!(found, ["`data.validation` and `data.validation_share` exclude each other"]);
    }
}
