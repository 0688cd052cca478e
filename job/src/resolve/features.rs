//! `[features]`: short forms, columns that exist, no column twice.

use std::collections::HashSet;

use super::JobResolver;
use crate::document::KeyPath;
use crate::file::{CategoricalFile, Column, DataLayout, FeaturesFile};
use crate::settings::{Numeric, NumericEmbedding, Target};
use crate::suggest;

/// Features before their tables are resolved.
pub(super) struct FeatureColumns {
    pub(super) targets: Vec<Target>,
    pub(super) weight: Option<String>,
    pub(super) numeric: Vec<Numeric>,
    pub(super) numeric_embedding: Option<NumericEmbedding>,
    pub(super) categorical: Vec<CategoricalFile>,
}

/// Columns that no feature may be.
#[derive(Clone, Copy)]
pub(super) struct LearnedColumns<'a> {
    targets: &'a [Target],
    weight: Option<&'a str>,
}

impl JobResolver<'_> {
    /// `known`: the names of all columns, if they are known before a file is opened.
    pub(super) fn resolve_features(
        &mut self,
        format: DataLayout,
        file: FeaturesFile,
        known: Option<&[String]>,
    ) -> FeatureColumns {
        let criteo = format == DataLayout::Criteo;
        let targets = self.resolve_targets(file.label, criteo, known);
        self.check_weight(file.weight.as_ref(), &targets, known);
        let numbers = || if criteo { criteo_numbers() } else { Vec::new() };
        let categories = || if criteo { criteo_categories() } else { Vec::new() };
        let numeric = listed(file.numeric).unwrap_or_else(numbers);
        let categorical = listed(file.categorical).unwrap_or_else(categories);
        let learned = LearnedColumns { targets: &targets, weight: file.weight.as_deref() };
        self.check_numeric(&numeric, learned, known);
        self.check_encodings(&numeric, &categorical, learned, known);
        self.categorical_columns(&categorical, learned, known);
        if categorical.is_empty() {
            let help = "list at least one column under `categorical`";
            self.problem("features.categorical", "no categorical feature: there is nothing to embed", "none", help);
        }
        let numeric_embedding = file.numeric_embedding;
        if numeric_embedding.is_some() && numeric.iter().all(|feature| feature.width.is_some()) {
            let help = "remove the key: only single numbers are embedded, not vectors";
            let message = "`features.numeric_embedding` has no number to embed";
            self.problem("features.numeric_embedding", message, "no numeric feature", help);
        }
        FeatureColumns { targets, weight: file.weight, numeric, numeric_embedding, categorical }
    }

    pub(super) fn feature_column(
        &mut self,
        kind: &str,
        path: &KeyPath,
        column: &str,
        learned: LearnedColumns<'_>,
        known: Option<&[String]>,
    ) {
        if learned.targets.iter().any(|target| target.column == column) {
            let message = format!("the label \"{column}\" is also a {kind} feature");
            let help = "remove it: a model that sees the label learns nothing else";
            self.problem(path.clone(), message, "this is the label", help);
        } else if learned.weight == Some(column) {
            let message = format!("the weight \"{column}\" is also a {kind} feature");
            self.problem(path.clone(), message, "this is the sample weight", "remove it, or copy the column");
        } else {
            self.column_exists(path, column, known);
        }
    }

    /// Features of a kind, in order, each with its column, if it has one, have different names.
    pub(super) fn different_names(&mut self, kind: &str, features: &[(String, Option<String>)]) {
        let mut seen = HashSet::new();
        for (index, (name, column)) in features.iter().enumerate() {
            if seen.insert(name) {
                continue;
            }
            let path = KeyPath::from("features").key(kind).index(index);
            let message = match column {
                Some(column) if column == name => format!("column \"{name}\" is a {kind} feature twice"),
                _ => format!("two {kind} features are named \"{name}\""),
            };
            self.problem(path, message, "second time", "remove one of the two, or give it another `name`");
        }
    }

    pub(super) fn column_exists(&mut self, path: &KeyPath, column: &str, known: Option<&[String]>) {
        if let Some(known) = known.filter(|known| !known.iter().any(|name| name == column)) {
            let names: Vec<&str> = known.iter().map(String::as_str).collect();
            let help = suggest::help_with_name(column, &names, "the columns are");
            self.problem(path.clone(), format!("no column is named \"{column}\""), "no such column", help);
        }
    }
}

/// The columns of a list. A bare name is short for a column in full.
fn listed<T: From<String>>(columns: Option<Vec<Column<T>>>) -> Option<Vec<T>> {
    columns.map(|columns| columns.into_iter().map(Column::full).collect())
}

fn criteo_numbers() -> Vec<Numeric> {
    (1..=13).map(|index| Numeric { log: true, ..format!("I{index}").into() }).collect()
}

fn criteo_categories() -> Vec<CategoricalFile> {
    (1..=26).map(|index| format!("C{index}").into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{CRITEO, DELIMITED, job, problems};
    use crate::settings::{PoolAt, Pooling, Standardise, Values};

    #[test]
    fn a_column_of_lists_needs_no_separator() {
        let parquet = "[data]\nformat = 'parquet'\ntrain = 'a.parquet'\nmissing = ['?']\n[model]\nkind = 'ffnn'\n";
        let features = "[features]\nlabel = 'y'\ncategorical = [{ column = 'a', pooling = 'mean' }]\n";
        let made = job(parquet, features);
        let Values::Many { separator, pooling: Pooling::Mean, .. } = &made.features.categorical[0].values else {
            panic!("{:?}", made.features.categorical[0])
        };
        assert_eq!(separator, "");
        let again =
            crate::Job::parse(&made.to_toml(), std::path::Path::new("/jobs/job.toml"), &crate::Overrides::none());
        assert_eq!(again.unwrap(), made);
        assert_eq!(problems(DELIMITED, features), ["pooling of a single value has no meaning"]);
        let header = parquet.replace("missing = ['?']", "header = true");
        assert_eq!(problems(&header, features), ["`data.header` has no meaning with format \"parquet\""]);
    }

    #[test]
    fn a_bare_name_is_short_for_a_table() {
        let short = job(DELIMITED, "[features]\nlabel = 'y'\nnumeric = ['n']\ncategorical = ['a']\n");
        let long = job(
            DELIMITED,
            "[features.label]\ncolumn = 'y'\npositive = ['1']\nnegative = ['0']\n[[features.numeric]]\ncolumn = 'n'\n\
            log = false\nstandardise = false\nmissing = 0\n[[features.categorical]]\ncolumn = 'a'\ntable = 'a'\n",
        );
        assert_eq!(short, long);
    }

    #[test]
    fn criteos_features_can_be_replaced_one_kind_at_a_time() {
        let job = job(CRITEO, "[features]\nnumeric = ['I3']\n");
        assert_eq!((job.features.numeric.len(), job.features.categorical.len()), (1, 26));
        assert!(!job.features.numeric[0].log);
    }

    #[test]
    fn transforms_are_kept() {
        let features = "numeric = [{ column = 'n', standardise = { mean = -1, deviation = 0.5 }, missing = 2 }]";
        let job = job(DELIMITED, &format!("[features]\nlabel = 'y'\ncategorical = ['a']\n{features}\n"));
        let given = Standardise::Given { mean: -1.0, deviation: 0.5 };
        let expected = Numeric { standardise: given, missing: 2.0, ..Numeric::from("n".to_owned()) };
        assert_eq!(job.features.numeric, [expected]);
    }

    #[test]
    fn single_numbers_are_embedded_and_nothing_else() {
        let embedded = |numeric: &str, embedding: &str| {
            format!(
                "[features]\nlabel = 'y'\ncategorical = ['a']\nnumeric = [{numeric}]\nnumeric_embedding = {{ {embedding} }}\n"
            )
        };
        let vector = "{ column = 'b', width = 2, separator = ' ' }";
        let numeric = format!("{vector}, {{ column = 'n', missing_indicator = true }}, 'c'");
        let made = job(DELIMITED, &embedded(&numeric, "dim = 3"));
        let features = &made.features;
        assert_eq!(features.numeric_embedding, Some(NumericEmbedding { frequencies: 16, sigma: 0.1, dim: 3 }));
        assert_eq!(
            (features.single_numbers(), features.numeric_inputs(), features.numeric_values()),
            (vec![2, 4], 5, 9)
        );
        let again =
            crate::Job::parse(&made.to_toml(), std::path::Path::new("/jobs/job.toml"), &crate::Overrides::none());
        assert_eq!(again.unwrap(), made);
        let other = job(DELIMITED, &embedded(&numeric, "dim = 4"));
        assert!(!other.changes_since(&made).iter().all(crate::KeyChange::may_go_on));
        assert_eq!(problems(DELIMITED, &embedded(vector, "")), ["`features.numeric_embedding` has no number to embed"]);
        let module = DELIMITED.replace(
            "kind = 'ffnn'",
            &format!("kind = 'torchscript'\nfile = 'net.pt'\ntrust = true\nsha256 = '{}'", "0".repeat(64)),
        );
        let found = problems(&module, &embedded("'n'", ""));
        assert!(
            found.contains(&"a TorchScript module reads numbers, and not `features.numeric_embedding`".into()),
            "{found:?}"
        );
    }

    #[test]
    fn a_column_may_be_a_number_and_a_category() {
        let job = job(DELIMITED, "[features]\nlabel = 'y'\nnumeric = ['n']\ncategorical = ['n', 'a']\n");
        assert_eq!(job.features.numeric[0].column, job.features.categorical[0].name);
    }

    #[test]
    fn pooling_is_a_sum_by_default() {
        let text = "[features]\nlabel = 'y'\ncategorical = [{ column = 'a', separator = '|' }, \
            { column = 'b', separator = '::', pooling = 'sqrtn' }, 'c']\n";
        let pool_at = PoolAt::Auto;
        let many = |separator: &str, pooling| Values::Many {
            separator: separator.to_owned(),
            pooling,
            pool_at,
            weights: None,
        };
        let expected = [many("|", Pooling::Sum), many("::", Pooling::SqrtN), Values::One];
        let job = job(DELIMITED, text);
        assert_eq!(
            job.features.categorical.iter().map(|feature| &feature.values).collect::<Vec<_>>(),
            expected.iter().collect::<Vec<_>>()
        );
    }

    #[test]
    fn an_empty_separator_splits_nothing() {
        let text = "[features]\nlabel = 'y'\ncategorical = [{ column = 'a', separator = '' }]\n";
        assert_eq!(problems(DELIMITED, text), ["the separator is empty"]);
    }

    #[test]
    fn a_criteo_column_that_does_not_exist_is_refused() {
        let found = problems(CRITEO, "[features]\ncategorical = ['C27', 'C1', 'C1']\n");
        assert_eq!(found, ["no column is named \"C27\"", "column \"C1\" is a categorical feature twice"]);
    }
}
