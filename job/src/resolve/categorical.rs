//! Categorical features: where their ids come from, and which keys fit together.

use std::num::NonZeroU64;

use super::JobResolver;
use crate::document::KeyPath;
use crate::file::CategoricalFile;
use crate::settings::{
    Categorical, ColumnReading, IdRange, IdSource, PoolAt, Pooling, ValueBuckets, Values, Vocabulary,
};
use crate::suggest;

impl JobResolver<'_> {
    pub(super) fn categorical_columns(&mut self, features: &[CategoricalFile]) {
        let names: Vec<_> = features.iter().map(|feature| (feature.feature_name(), feature.column.clone())).collect();
        self.different_names("categorical", &names);
        let parts = names_of_parts(features);
        for (index, feature) in features.iter().enumerate() {
            let path = KeyPath::from("features.categorical").index(index);
            match (&feature.column, &feature.cross) {
                (Some(column), None) => {
                    self.feature_column("categorical", &path, column);
                    if let Some(weights) = &feature.weights {
                        self.feature_column("categorical", &path.key("weights"), weights);
                    }
                }
                (None, Some(names)) => self.check_cross(&path.key("cross"), names, &parts),
                (Some(_), Some(_)) => {
                    let help = "remove `column`: a cross names what it combines";
                    self.problem(path.key("cross"), "`cross` and `column` exclude each other", "one too many", help);
                }
                (None, None) => {
                    let help = "name the column, or combine several: cross = [\"a\", \"b\"]";
                    let message = format!("missing key `{}`", path.key("column"));
                    self.problem(path, message, "needed here", help);
                }
            }
        }
    }

    /// Names of features or columns whose categories are combined. `parts`: the names of the features that may be.
    pub(super) fn check_cross(&mut self, path: &KeyPath, names: &[String], parts: &[&str]) {
        for (index, name) in names.iter().enumerate() {
            let path = path.index(index);
            if names[..index].contains(name) {
                let message = format!("the cross names \"{name}\" twice");
                self.problem(path, message, "second time", "name it once");
            } else if parts.contains(&name.as_str()) {
                // The feature's own column is checked with the feature.
            } else if let Some(known) = self.columns.as_ref().filter(|known| !known.contains(name)) {
                let names: Vec<&str> = parts.iter().copied().chain(known.iter().map(String::as_str)).collect();
                let help = suggest::help_with_name(name, &names, "features of one value and columns are");
                self.problem(path, format!("no feature or column is named \"{name}\""), "no such name", help);
            } else {
                self.feature_column("categorical", &path, name);
            }
        }
    }

    pub(super) fn resolve_categorical(
        &mut self,
        path: &KeyPath,
        feature: &CategoricalFile,
        table: usize,
    ) -> Categorical {
        let values = self.values_of_cell(path, feature);
        let source = self.source(path, feature);
        self.one_of_each_cell(path, feature, &values);
        let ids = self.ids(path, feature, &source);
        Categorical { name: feature.feature_name(), source, table, values, default: feature.default.clone(), ids }
    }

    fn source(&mut self, path: &KeyPath, feature: &CategoricalFile) -> IdSource {
        if let Some(names) = &feature.cross {
            let help = "give it to a feature of its own, and name that feature in the cross";
            let message = |key: &str| format!("`{key}` and `cross` exclude each other");
            self.refuse_keys(path, &["buckets", "date"], message, "of which of its columns?", help);
            return IdSource::Cross(names.clone());
        }
        let column = feature.column.clone().unwrap_or_default();
        let reading = match (&feature.buckets, feature.date) {
            (None, None) => ColumnReading::Text,
            (Some(buckets), None) => ColumnReading::Buckets(self.ascending(path, buckets)),
            (None, Some(part)) => ColumnReading::Date(part),
            (Some(_), Some(part)) => {
                let help = "make two features of the column, each with a `name`";
                self.problem(path.key("date"), "`buckets` and `date` exclude each other", "one too many", help);
                ColumnReading::Date(part)
            }
        };
        IdSource::Column { column, reading }
    }

    fn ascending(&mut self, path: &KeyPath, buckets: &ValueBuckets) -> ValueBuckets {
        let edges = buckets.edges();
        let is_ascending = edges.windows(2).all(|pair| pair[0] < pair[1]) && edges.iter().all(|edge| edge.is_finite());
        if !is_ascending {
            let help = "list each edge once, from the least to the greatest";
            self.problem(path.key("buckets"), "the edges of the buckets do not ascend", "in another order", help);
        }
        buckets.clone()
    }

    /// Keys that apply only where a cell is one category.
    fn one_of_each_cell(&mut self, path: &KeyPath, feature: &CategoricalFile, values: &Values) {
        if *values != Values::One {
            let message = |key: &str| format!("`{key}` of several values per cell has no meaning");
            let help = "remove `separator` and `pooling`, or the key";
            let keys = ["buckets", "date", "cross", "default"];
            self.refuse_keys(path, &keys, message, "one value per cell only", help);
        }
        if feature.default.is_some() && feature.cross.is_some() {
            let help = "a missing part of a cross is a category of its own; remove the key";
            let message = "`default` and `cross` exclude each other";
            self.problem(path.key("default"), message, "of which of its columns?", help);
        }
    }

    fn ids(&mut self, path: &KeyPath, feature: &CategoricalFile, source: &IdSource) -> IdRange {
        let few =
            matches!(source, IdSource::Column { reading: ColumnReading::Buckets(_) | ColumnReading::Date(_), .. });
        if few {
            let message = |key: &str| format!("`{key}` of buckets or parts of a date has no meaning");
            self.refuse_keys(path, &["hash_size", "vocabulary"], message, "they are few", "remove the key");
        }
        match (feature.hash_size.and_then(NonZeroU64::new), &feature.vocabulary) {
            (None, None) => IdRange::All,
            (Some(size), None) => IdRange::Hashed(size),
            (None, Some(vocabulary)) => IdRange::Vocabulary(self.vocabulary(path, vocabulary)),
            (Some(size), Some(_)) => {
                let help = "a vocabulary gives rare categories one row, a hash size gives all categories so many; keep one key";
                let message = "`vocabulary` and `hash_size` exclude each other";
                self.problem(path.key("vocabulary"), message, "one too many", help);
                IdRange::Hashed(size)
            }
        }
    }

    fn vocabulary(&mut self, path: &KeyPath, given: &Vocabulary) -> Vocabulary {
        let mut vocabulary = given.clone();
        if let Some(ids) = &mut vocabulary.ids {
            ids.sort_unstable();
            ids.dedup();
            if ids.len() > given.max_size as usize {
                let help = "remove the key: the ids are measured";
                let message = "a vocabulary has more ids than its `max_size`";
                self.problem(path.key("vocabulary").key("ids"), message, "not of a resolved job", help);
            }
        }
        vocabulary
    }

    /// How many values a cell holds. A column of lists needs no separator.
    pub(super) fn values_of_cell(&mut self, path: &KeyPath, feature: &CategoricalFile) -> Values {
        let describes_many = feature.pooling.is_some() || feature.sequence.is_some() || feature.weights.is_some();
        let is_list = self.has_lists && describes_many;
        let Some(separator) = feature.separator.clone().or(is_list.then(String::new)) else {
            let keys = [
                ("pooling", "pooling of a single value has no meaning"),
                ("weights", "weights of a single value have no meaning"),
                ("sequence", "a sequence needs several values in a cell"),
            ];
            for (key, message) in keys {
                let help = format!("give a `separator`, or remove `{key}`");
                self.refuse_keys(path, &[key], |_| message.to_owned(), "one value per cell", &help);
            }
            return Values::One;
        };
        if feature.separator.as_deref() == Some("") {
            let help = "name the text between two values, or remove the key for one value per cell";
            self.problem(path.key("separator"), "the separator is empty", "empty", help);
        }
        if let Some(sequence) = feature.sequence {
            let message = |key: &str| format!("`{key}` of a sequence has no meaning");
            self.refuse_keys(path, &["pooling", "weights"], message, "not pooled", "remove `sequence`, or the key");
            return Values::Sequence { separator, sequence };
        }
        let pooling = feature.pooling.unwrap_or(Pooling::Sum);
        // Servers add rows up unweighted.
        let pool_at = if feature.weights.is_some() { PoolAt::Worker } else { PoolAt::Auto };
        Values::Many { separator, pooling, pool_at, weights: feature.weights.clone() }
    }
}

/// Features of one value may be part of a cross.
pub(super) fn names_of_parts(features: &[CategoricalFile]) -> Vec<&str> {
    features.iter().filter(|feature| is_part(feature)).filter_map(own_name).collect()
}

fn is_part(feature: &CategoricalFile) -> bool {
    let has_many = feature.separator.is_some() || feature.pooling.is_some() || feature.weights.is_some();
    feature.cross.is_none() && !has_many && feature.sequence.is_none()
}

fn own_name(feature: &CategoricalFile) -> Option<&str> {
    feature.name.as_deref().or(feature.column.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{CRITEO, DELIMITED, assert_problems, assert_problems_with, assert_reloads, job};
    use crate::settings::DatePart;

    fn text(categorical: &str) -> String {
        format!("[features]\nlabel = 'y'\ncategorical = [{categorical}]\n")
    }

    #[test]
    fn a_column_is_in_several_features_by_name() {
        let features = "'a', { column = 'a', name = 'r', buckets = [1, 2.5] }, { column = 'a', name = 'd', date = 'weekday' }, \
            { cross = ['r', 'b'], hash_size = 7 }, { column = 'b', default = 'x', vocabulary = {} }";
        let job = job(DELIMITED, &text(features));
        let categorical = &job.features.categorical;
        let named = categorical.iter().map(|of| (of.name.as_str(), job.tables[of.table].name.as_str()));
        assert!(named.eq([("a", "a"), ("r", "r"), ("d", "d"), ("r_x_b", "r_x_b"), ("b", "b")]));
        let parts = job.features.column_parts(&categorical[3]);
        let edges = ColumnReading::Buckets(ValueBuckets::Edges(vec![1.0, 2.5]));
        let parts = parts.iter().map(|part| (part.column, part.reading.clone()));
        assert!(parts.eq([("a", edges), ("b", ColumnReading::Text)]));
        let weekday = IdSource::Column { column: "a".into(), reading: ColumnReading::Date(DatePart::Weekday) };
        assert_eq!(categorical[2].source, weekday);
        let vocabulary = IdRange::Vocabulary(Vocabulary { min_count: 10, max_size: 65_536, ids: None });
        assert_eq!((&categorical[4].ids, categorical[4].default.as_deref()), (&vocabulary, Some("x")));
        assert_reloads(&job);
    }

    #[test]
    fn values_with_weights_are_added_up_at_the_worker() {
        let weighted = |weights: &str| {
            let keys = format!("{{ column = 'a', separator = '|', weights = '{weights}', pooling = 'mean' }}");
            job(DELIMITED, &text(&keys))
        };
        let made = weighted("c");
        let feature = &made.features.categorical[0];
        let (separator, weights) = ("|".into(), Some("c".into()));
        let values = Values::Many { separator, pooling: Pooling::Mean, pool_at: PoolAt::Worker, weights };
        assert_eq!(feature.values, values);
        assert_eq!(made.features.source_columns(feature).collect::<Vec<_>>(), ["a", "c"]);
        assert_reloads(&made);
        assert!(!weighted("b").changes_since(&made).iter().all(crate::KeyChange::may_go_on));
    }

    #[test]
    fn what_a_cross_names_is_there_once() {
        let rows = r#"
            [features]; categorical = ['C1', { cross = ['C1', 'C77'] }]   => no feature or column is named "C77"
            [features]; categorical = ['C1', { cross = ['C1', 'C1'] }]    => the cross names "C1" twice
            [features]; categorical = ['C1', { cross = ['C1', 'label'] }] => the label "label" is also a categorical feature
        "#;
        assert_problems(CRITEO, rows);
        assert_eq!(job(CRITEO, "[features]\ncategorical = [{ cross = ['C1', 'I2'] }]\n").features.categorical.len(), 1);
    }

    #[test]
    fn keys_that_exclude_each_other_are_refused() {
        let table = "{ column = 'a', name = 'x' }, { column = 'a', table = 'x' }";
        assert_eq!(job(DELIMITED, &text(table)).tables.len(), 1);
        let rows = r#"
            column = 'a', name = 'b'                      => two categorical features are named "b"
            column = 'a', cross = ['b', 'c']              => `cross` and `column` exclude each other
            table = 'b'                                   => missing key `features.categorical[1].column`
            column = 'a', buckets = 5, date = 'hour'      => `buckets` and `date` exclude each other
            cross = ['b', 'c'], buckets = 5               => `buckets` and `cross` exclude each other
            cross = ['b', 'c'], default = 'x'             => `default` and `cross` exclude each other
            column = 'a', buckets = [2, 1]                => the edges of the buckets do not ascend
            column = 'a', buckets = 5, hash_size = 5      => `hash_size` of buckets or parts of a date has no meaning
            column = 'a', hash_size = 5, vocabulary = {}  => `vocabulary` and `hash_size` exclude each other
            column = 'a', separator = '|', default = 'x'  => `default` of several values per cell has no meaning
            column = 'a', separator = '|', buckets = 5    => `buckets` of several values per cell has no meaning
            column = 'a', weights = 'c'                   => weights of a single value have no meaning
            column = 'a', separator = '|', weights = 'y'  => the label "y" is also a categorical feature
            column = 'a', vocabulary = { ids = 'x' }      => `features.categorical[1].vocabulary.ids` is out of range, expected numbers of 16 hexadecimal digits
            column = 'a', vocabulary = { ids = '00000000000000010000000000000002', max_size = 1 } => a vocabulary has more ids than its `max_size`
        "#;
        assert_problems_with(DELIMITED, |feature| text(&format!("'b', {{ {feature} }}")), rows);
    }
}
