//! `features.label` and `features.weight`: what is learned, and how much each sample counts.

use super::JobResolver;
use crate::document::KeyPath;
use crate::file::{LabelFile, LabelForms};
use crate::settings::{
    EarlyStop, EvalMetric, LabelKind, LossName, Model, RegressionLoss, Target, TargetKind, TrainSettings, word,
};
use crate::suggest;

impl JobResolver<'_> {
    pub(super) fn resolve_targets(&mut self, labels: Option<LabelForms>, criteo: bool) -> Vec<Target> {
        let path = KeyPath::from("features.label");
        let labels = match labels {
            Some(LabelForms::Name(column)) => vec![(path, column.into())],
            Some(LabelForms::One(label)) => vec![(path, *label)],
            Some(LabelForms::Many(labels)) => {
                labels.into_iter().enumerate().map(|(index, label)| (path.index(index), label.full())).collect()
            }
            None if criteo => vec![(path, "label".to_owned().into())],
            None => {
                let help = r#"name the column to learn: label = "clicked""#;
                self.problem("features", "missing key `features.label`", "needed here", help);
                return vec![Target::from("")];
            }
        };
        let mut targets: Vec<Target> = Vec::with_capacity(labels.len());
        for (path, label) in labels {
            if criteo && label.column != "label" {
                let message = format!("the label of Criteo's layout is \"label\", not \"{}\"", label.column);
                self.problem(path.clone(), message, "another column", "remove the key");
            }
            self.column_exists(&path, &label.column);
            let target = self.target(&path, label, &targets);
            if targets.iter().any(|other| other.name == target.name) {
                let message = format!("two labels are named \"{}\"", target.name);
                self.problem(path, message, "second time", "give one of the two another `name`");
            }
            targets.push(target);
        }
        targets
    }

    fn target(&mut self, path: &KeyPath, label: LabelFile, earlier: &[Target]) -> Target {
        self.keys_fit_kind(path, &label);
        let LabelFile { column, name, kind, positive, negative, classes, loss, delta, weight, missing, given } = label;
        let kind = match kind {
            LabelKind::Click => {
                let texts = |given: Option<Vec<String>>, usual: &str| given.unwrap_or_else(|| vec![usual.to_owned()]);
                let (positive, negative) = (texts(positive, "1"), texts(negative, "0"));
                self.distinct(&path.key("negative"), &positive, &negative);
                let given = given.and_then(|name| self.given(&path.key("given"), &name, earlier));
                TargetKind::Click { positive, negative, given }
            }
            LabelKind::Regression => TargetKind::Regression {
                loss: match loss.unwrap_or(LossName::Mse) {
                    LossName::Mse => RegressionLoss::Mse,
                    LossName::Huber => RegressionLoss::Huber { delta: delta.unwrap_or(1.0) },
                    LossName::Poisson => RegressionLoss::Poisson,
                },
            },
            LabelKind::Classes => {
                let classes = classes.unwrap_or_else(|| {
                    let help = r#"list them: classes = ["low", "middle", "high"]"#;
                    self.problem(path.clone(), "a label of kind \"classes\" needs its classes", "no `classes`", help);
                    Vec::new()
                });
                for (index, class) in
                    classes.iter().enumerate().filter(|(index, class)| classes[..*index].contains(class))
                {
                    let message = format!("the class \"{class}\" is listed twice");
                    self.problem(path.key("classes").index(index), message, "second time", "list it once");
                }
                TargetKind::Classes { classes }
            }
        };
        Target { name: name.unwrap_or_else(|| column.clone()), column, kind, weight, missing }
    }

    fn keys_fit_kind(&mut self, path: &KeyPath, label: &LabelFile) {
        let kinds: [(LabelKind, &[&str]); 3] = [
            (LabelKind::Click, &["positive", "negative", "given"]),
            (LabelKind::Classes, &["classes"]),
            (LabelKind::Regression, &["loss", "delta"]),
        ];
        for (kind, keys) in kinds.into_iter().filter(|(kind, _)| *kind != label.kind) {
            let (kind, own) = (word(&kind), word(&label.kind));
            let message = |key: &str| format!("`{key}` has no meaning for a label of kind \"{own}\"");
            let help = format!("remove it, or set kind = \"{kind}\"");
            self.refuse_keys(path, keys, message, "of another kind", &help);
        }
        if label.delta.is_some() && label.kind == LabelKind::Regression && label.loss != Some(LossName::Huber) {
            let help = "remove it, or set loss = \"huber\"";
            self.problem(path.key("delta"), "`delta` belongs to the loss \"huber\"", "another loss", help);
        }
    }

    fn distinct(&mut self, path: &KeyPath, positive: &[String], negative: &[String]) {
        for (index, text) in negative.iter().enumerate().filter(|(_, text)| positive.contains(text)) {
            let message = format!("label text \"{text}\" is both positive and negative");
            self.problem(path.index(index), message, "also in `positive`", "list each text once");
        }
    }

    /// The index of the label that `given` names.
    fn given(&mut self, path: &KeyPath, name: &str, earlier: &[Target]) -> Option<usize> {
        let found = earlier.iter().position(|target| target.name == name);
        let Some(index) = found else {
            let names: Vec<&str> = earlier.iter().map(|target| target.name.as_str()).collect();
            let help = suggest::help_with_name(name, &names, "the labels before it are");
            self.problem(path.clone(), format!("no label before it is named \"{name}\""), "no such label", help);
            return None;
        };
        if !matches!(earlier[index].kind, TargetKind::Click { given: None, .. }) {
            let message = format!("\"{name}\" is no plain click, so nothing can be given it");
            let help = "name a label of kind \"click\" that has no `given` itself";
            self.problem(path.clone(), message, "not a plain click", help);
            return None;
        }
        Some(index)
    }

    pub(super) fn check_weight(&mut self, weight: Option<&String>) {
        let Some(column) = weight else { return };
        let path = KeyPath::from("features.weight");
        if self.labels.contains(column) {
            let help = "name the column that says how much a sample counts, or remove the key";
            let message = format!("the label \"{column}\" cannot also weigh the samples");
            return self.problem(path, message, "this is a label", help);
        }
        self.column_exists(&path, column);
    }

    pub(super) fn outputs_fit(&mut self, model: &Model, targets: &[Target]) {
        let outputs: usize = targets.iter().map(Target::output_count).sum();
        if let (2.., Some(name)) = (outputs, model.with_one_output()) {
            let message = format!("{name} has one output, and the labels need {outputs}");
            let help = "use another [model] kind, such as \"mmoe\" or \"ffnn\"";
            self.problem("model.kind", message, "one output", help);
        }
    }

    pub(super) fn set_stop_metric(&mut self, train: TrainSettings, targets: &[Target]) -> TrainSettings {
        self.smoothing_fits(&train, targets);
        let (Some(early_stop), Some(main)) = (train.early_stop, targets.first()) else { return train };
        let own: &[EvalMetric] = match main.kind {
            TargetKind::Click { .. } => &[EvalMetric::Auc, EvalMetric::Logloss, EvalMetric::Gauc],
            TargetKind::Regression { loss: RegressionLoss::Poisson } => {
                &[EvalMetric::Deviance, EvalMetric::Mse, EvalMetric::Mae]
            }
            TargetKind::Regression { .. } => &[EvalMetric::Mse, EvalMetric::Mae],
            TargetKind::Classes { .. } => &[EvalMetric::Logloss, EvalMetric::Accuracy, EvalMetric::Auc],
        };
        let path = KeyPath::from("train.early_stop.metric");
        let is_given = self.context.document.find(&path).is_some();
        if is_given && !own.contains(&early_stop.metric) {
            let names: Vec<String> = own.iter().map(|metric| format!("\"{metric}\"")).collect();
            let message = format!("\"{}\" is no measure of the label \"{}\"", early_stop.metric, main.name);
            self.problem(path, message, "of another kind of label", format!("use {}", names.join(" or ")));
        }
        let metric = if is_given { early_stop.metric } else { own[0] };
        TrainSettings { early_stop: Some(EarlyStop { metric, ..early_stop }), ..train }
    }
}

impl JobResolver<'_> {
    /// Only the labels of clicks are between 0 and 1.
    fn smoothing_fits(&mut self, train: &TrainSettings, targets: &[Target]) {
        let other = targets.iter().find(|target| !matches!(target.kind, TargetKind::Click { .. }));
        if let Some(other) = other.filter(|_| train.label_smoothing > 0.0) {
            let message = format!("the label \"{}\" is no click, and only those of clicks are smoothed", other.name);
            self.problem("train.label_smoothing", message, "not for this label", "remove the key");
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{DELIMITED, assert_problems_with, assert_reloads, job};
    use crate::settings::{EvalMetric, MissingLabel, RegressionLoss, Target, TargetKind};

    fn validated() -> String {
        DELIMITED.replace("[model]", "validation_share = 0.1\n[model]")
    }

    fn features(label: &str) -> String {
        format!("[features]\nlabel = {label}\ncategorical = ['a']\n")
    }

    /// The targets, which must be the same after the job was written and read again.
    fn targets(label: &str) -> Vec<Target> {
        let made = job(DELIMITED, &features(label));
        assert_reloads(&made);
        made.features.targets
    }

    #[test]
    fn a_name_is_short_for_a_click_of_one_and_zero() {
        let expected = targets("{ column = 'y', positive = ['1'], negative = ['0'], kind = 'click', weight = 1 }");
        assert_eq!(targets("'y'"), expected);
        assert_eq!(targets("['y']"), expected);
    }

    #[test]
    fn each_kind_has_its_keys() {
        let huber = targets("{ column = 'y', kind = 'regression', loss = 'huber', delta = 2, missing = 'skip' }");
        assert_eq!(huber[0].kind, TargetKind::Regression { loss: RegressionLoss::Huber { delta: 2.0 } });
        assert_eq!((huber[0].missing, huber[0].output_count()), (MissingLabel::Skip, 1));
        let classes = targets("{ column = 'y', name = 'level', kind = 'classes', classes = ['a', 'b', 'c'] }");
        assert_eq!((classes[0].name.as_str(), classes[0].output_count()), ("level", 3));
        let two = targets("['y', { column = 'n', given = 'y', weight = 0.5 }]");
        assert!(matches!(two[1].kind, TargetKind::Click { given: Some(0), .. }), "{two:?}");
        let rows = r#"
            { column = 'y', kind = 'regression', positive = ['1'] } => `positive` has no meaning for a label of kind "regression"
            { column = 'y', kind = 'regression', delta = 2 } => `delta` belongs to the loss "huber"
            { column = 'y', kind = 'classes' } => a label of kind "classes" needs its classes
            { column = 'y', kind = 'classes', classes = ['a', 'a'] } => the class "a" is listed twice
            ['y', 'y'] => two labels are named "y"
            ['y', { column = 'n', given = 'z' }] => no label before it is named "z"
            ['y', { column = 'n', given = 'y' }, { column = 'b', given = 'n' }] => "n" is no plain click, so nothing can be given it
        "#;
        assert_problems_with(DELIMITED, features, rows);
    }

    #[test]
    fn a_label_or_a_weight_is_no_feature() {
        let with_rest = |rest: &str| format!("[features]\nlabel = ['y', 'n']\n{rest}\n");
        let weighted = job(DELIMITED, &with_rest("weight = 'b'\ncategorical = ['a']"));
        assert_eq!(weighted.features.weight.as_deref(), Some("b"));
        let rows = r#"
            categorical = ['a', 'n']               => the label "n" is also a categorical feature
            weight = 'n'; categorical = ['a']      => the label "n" cannot also weigh the samples
            weight = 'b'; categorical = ['a', 'b'] => the weight "b" is also a categorical feature
            weight = 'u'; categorical = ['a']      => no column is named "u"
        "#;
        assert_problems_with(DELIMITED, with_rest, rows);
    }

    #[test]
    fn early_stopping_measures_the_first_label() {
        let validated = validated();
        let metric = |label: &str, metric: &str| {
            let text = format!("{}[train.early_stop]\n{metric}", features(label));
            job(&validated, &text).train.early_stop.unwrap().metric
        };
        let counts = "{ column = 'y', kind = 'regression', loss = 'poisson' }";
        assert_eq!(metric("'y'", ""), EvalMetric::Auc);
        assert_eq!(metric(counts, ""), EvalMetric::Deviance);
        assert_eq!(metric(counts, "metric = 'mae'\n"), EvalMetric::Mae);
        assert_eq!(metric("{ column = 'y', kind = 'classes', classes = ['a', 'b'] }", ""), EvalMetric::Logloss);
    }

    #[test]
    fn measures_and_networks_fit_the_labels() {
        let rows = r#"
            NUMBER | [eval]; group_by = 'b' => "y" is no click, and `eval.group_by` measures clicks
            NUMBER | [eval]; slices = ['b'] => "y" is no click, and `eval.slices` measures clicks
            NUMBER | [train.early_stop]; metric = 'auc' => "auc" is no measure of the label "y"
            NUMBER | [eval]; calibration = 'temperature' => "y" is a number, and calibration is of probabilities, which a regression does not predict
            CLASSES | [eval]; calibration = 'isotonic' => isotonic calibration is of one probability, that of a click, and classes have several
            CLASSES | [eval]; calibration = 'temperature' => fine
            ['b', CLASSES] | [eval]; calibration = 'isotonic' => fine
            [NUMBER, 'b'] | [eval]; calibration = 'isotonic' => fine
            [NUMBER, CLASSES] | [eval]; calibration = 'temperature' => fine
        "#;
        let text = |keys: &str| {
            let (label, rest) = keys.split_once(" | ").unwrap();
            let label = label.replace("NUMBER", "{ column = 'y', kind = 'regression' }");
            features(&label.replace("CLASSES", "{ column = 'n', kind = 'classes', classes = ['1', '2'] }")) + rest
        };
        assert_problems_with(&validated(), text, rows);
        let rows = "['y', 'n'] => DeepFM has one output, and the labels need 2";
        assert_problems_with(&DELIMITED.replace("ffnn", "deepfm"), features, rows);
    }
}
