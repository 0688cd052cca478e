//! `[features]`: short forms, columns that exist, no column twice.

use std::collections::HashSet;

use super::JobResolver;
use crate::document::KeyPath;
use crate::file::{CategoricalFile, Column, DataLayout, FeaturesFile};
use crate::settings::{Features, Numeric};
use crate::suggest;

impl JobResolver<'_> {
    /// Features without the categorical ones, whose tables are resolved next.
    pub(super) fn resolve_features(
        &mut self,
        format: DataLayout,
        file: FeaturesFile,
    ) -> (Features, Vec<CategoricalFile>) {
        let criteo = format == DataLayout::Criteo;
        let targets = self.resolve_targets(file.label, criteo);
        self.labels = targets.iter().map(|target| target.column.clone()).collect();
        self.weight.clone_from(&file.weight);
        self.check_weight(file.weight.as_ref());
        let numbers = || if criteo { criteo_numbers() } else { Vec::new() };
        let categories = || if criteo { criteo_categories() } else { Vec::new() };
        let numeric = listed(file.numeric).unwrap_or_else(numbers);
        let categorical = listed(file.categorical).unwrap_or_else(categories);
        self.check_numeric(&numeric);
        self.check_encodings(&numeric, &categorical);
        self.categorical_columns(&categorical);
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
        let features = Features { targets, weight: file.weight, numeric, numeric_embedding, categorical: Vec::new() };
        (features, categorical)
    }

    pub(super) fn feature_column(&mut self, kind: &str, path: &KeyPath, column: &str) {
        if self.labels.iter().any(|label| label == column) {
            let message = format!("the label \"{column}\" is also a {kind} feature");
            let help = "remove it: a model that sees the label learns nothing else";
            self.problem(path.clone(), message, "this is the label", help);
        } else if self.weight.as_deref() == Some(column) {
            let message = format!("the weight \"{column}\" is also a {kind} feature");
            self.problem(path.clone(), message, "this is the sample weight", "remove it, or copy the column");
        } else {
            self.column_exists(path, column);
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

    pub(super) fn column_exists(&mut self, path: &KeyPath, column: &str) {
        if let Some(known) = self.columns.as_ref().filter(|known| !known.iter().any(|name| name == column)) {
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
    use crate::fixture::{CRITEO, DELIMITED, assert_problems, assert_problems_with, assert_reloads, job};
    use crate::settings::{NumericEmbedding, PoolAt, Pooling, Values};

    fn text(features: &str) -> String {
        format!("[features]\nlabel = 'y'\n{features}\n")
    }

    #[test]
    fn a_column_of_lists_needs_no_separator() {
        let parquet =
            |keys: &str| format!("[data]\nformat = 'parquet'\ntrain = 'a.parquet'\n{keys}\n[model]\nkind = 'ffnn'\n");
        let features = text("categorical = [{ column = 'a', pooling = 'mean' }]");
        let made = job(&parquet("missing = ['?']"), &features);
        let (separator, weights) = (String::new(), None);
        let expected = Values::Many { separator, pooling: Pooling::Mean, pool_at: PoolAt::Auto, weights };
        assert_eq!(made.features.categorical[0].values, expected);
        assert_reloads(&made);
        let rows = "header = true => `data.header` has no meaning with format \"parquet\"";
        assert_problems_with("", |keys| parquet(keys) + &features, rows);
    }

    #[test]
    fn a_bare_name_is_short_for_a_table() {
        let short = job(DELIMITED, &text("numeric = ['n']\ncategorical = ['a']"));
        let long = "[features.label]\ncolumn = 'y'\npositive = ['1']\nnegative = ['0']\n[[features.numeric]]\ncolumn = 'n'\n\
            log = false\nstandardise = false\nmissing = 0\n[[features.categorical]]\ncolumn = 'a'\ntable = 'a'\n";
        assert_eq!(short, job(DELIMITED, long));
        // One kind of Criteo's features is replaced.
        let job = job(CRITEO, "[features]\nnumeric = ['I3']\n");
        assert_eq!((job.features.numeric.len(), job.features.categorical.len()), (1, 26));
        assert!(!job.features.numeric[0].log);
    }

    #[test]
    fn single_numbers_are_embedded_and_nothing_else() {
        let embedded = |dim: u32| {
            let vector = "{ column = 'b', width = 2, separator = ' ' }";
            let numeric = format!("[{vector}, {{ column = 'n', missing_indicator = true }}, 'c']");
            let embedding = format!("numeric_embedding = {{ dim = {dim} }}");
            job(DELIMITED, &text(&format!("categorical = ['a']\nnumeric = {numeric}\n{embedding}")))
        };
        let made = embedded(3);
        let features = &made.features;
        assert_eq!(features.numeric_embedding, Some(NumericEmbedding { frequencies: 16, sigma: 0.1, dim: 3 }));
        assert_eq!(features.single_numbers(), [2, 4]);
        assert_eq!((features.numeric_inputs(), features.numeric_values()), (5, 9));
        assert_reloads(&made);
        assert!(!embedded(4).changes_since(&made).iter().all(crate::KeyChange::may_go_on));
    }

    #[test]
    fn pooling_is_a_sum_by_default() {
        let features = "categorical = [{ column = 'a', separator = '|' }, \
            { column = 'b', separator = '::', pooling = 'sqrtn' }, 'c']";
        let many = |separator: &str, pooling| {
            let separator = separator.to_owned();
            Values::Many { separator, pooling, pool_at: PoolAt::Auto, weights: None }
        };
        let expected = [many("|", Pooling::Sum), many("::", Pooling::SqrtN), Values::One];
        let job = job(DELIMITED, &text(features));
        assert!(job.features.categorical.iter().map(|feature| &feature.values).eq(&expected));
    }

    #[test]
    fn features_that_mean_nothing_are_refused() {
        let rows = r#"
            categorical = [{ column = 'a', separator = '' }]   => the separator is empty
            categorical = ['a']; numeric = [{ column = 'b', width = 2, separator = ' ' }]; numeric_embedding = {} => `features.numeric_embedding` has no number to embed
        "#;
        assert_problems_with(DELIMITED, text, rows);
        let rows = "[features]; categorical = ['C27', 'C1', 'C1'] => \
            no column is named \"C27\" & column \"C1\" is a categorical feature twice";
        assert_problems(CRITEO, rows);
    }
}
