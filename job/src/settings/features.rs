//! What a sample is made of, and whether the features of two jobs mean the same: rows and weights that one has learned are then of use to
//! the other.

use serde::Serialize;

use super::categorical::{Categorical, ColumnReading, IdRange, IdSource, ValueBuckets, Values};
use super::encoding::CategoryEncoding;
use super::numeric::{Numeric, NumericEmbedding, Scaling};
use super::targets::Target;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Features {
    /// What the model learns to predict: at least one target.
    pub targets: Vec<Target>,
    pub weight: Option<String>,
    pub numeric: Vec<Numeric>,
    /// The vectors that single numbers become; `None`: the network reads the numbers.
    pub numeric_embedding: Option<NumericEmbedding>,
    pub categorical: Vec<Categorical>,
}

impl Features {
    /// The target that is measured while training, and that chooses the state that is kept: the first.
    pub fn main_target(&self) -> &Target {
        &self.targets[0]
    }

    pub fn numeric_inputs(&self) -> usize {
        self.numeric.iter().map(Numeric::input_count).sum()
    }

    pub fn output_count(&self) -> usize {
        self.targets.iter().map(Target::output_count).sum()
    }

    /// The columns that the model learns, and that of sample weights.
    pub fn learned_columns(&self) -> impl Iterator<Item = &String> {
        self.targets.iter().map(|target| &target.column).chain(&self.weight)
    }

    /// The inputs that are single numbers, which a numeric embedding is for: not those of vectors, and not missing indicators.
    pub fn single_numbers(&self) -> Vec<usize> {
        let starts = self.numeric.iter().scan(0, |end, feature| {
            let start = *end;
            *end += feature.input_count();
            Some((feature, start))
        });
        starts.filter(|(feature, _): &(&Numeric, usize)| feature.width.is_none()).map(|(_, start)| start).collect()
    }

    /// Values that the network reads of a numeric feature: its inputs, with a vector in place of an embedded number.
    pub fn numeric_width(&self, feature: &Numeric) -> usize {
        let is_embedded = feature.width.is_none();
        let more = self.numeric_embedding.filter(|_| is_embedded).map_or(0, |embedding| embedding.dim - 1);
        feature.input_count() + more
    }

    pub fn numeric_values(&self) -> usize {
        self.numeric.iter().map(|feature| self.numeric_width(feature)).sum()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColumnPart<'a> {
    pub column: &'a str,
    pub reading: &'a ColumnReading,
}

impl Features {
    /// One, or those that a cross combines. A name in a cross is that of a feature of one value and one column,
    /// otherwise that of a column whose texts count.
    pub fn column_parts<'a>(&'a self, feature: &'a Categorical) -> Vec<ColumnPart<'a>> {
        match &feature.source {
            IdSource::Column { column, reading } => vec![ColumnPart { column, reading }],
            IdSource::Cross(names) => names.iter().map(|name| self.column_part(name)).collect(),
        }
    }

    /// The columns that a categorical feature reads: of its parts, and then that of its weights.
    pub fn source_columns<'a>(&'a self, feature: &'a Categorical) -> impl Iterator<Item = &'a str> {
        self.column_parts(feature).into_iter().map(|part| part.column).chain(feature.values.weight_column())
    }

    fn column_part<'a>(&'a self, name: &'a str) -> ColumnPart<'a> {
        let named = |feature: &&Categorical| feature.name == name && feature.values == Values::One;
        match self.categorical.iter().find(named).map(|feature| &feature.source) {
            Some(IdSource::Column { column, reading }) => ColumnPart { column, reading },
            _ => ColumnPart { column: name, reading: &ColumnReading::Text },
        }
    }

    pub fn number_features(&self) -> impl Iterator<Item = &Numeric> {
        self.numeric.iter().filter(|feature| feature.encode.is_none())
    }

    pub fn encoded_features(&self) -> impl Iterator<Item = (&Numeric, &CategoryEncoding)> {
        self.numeric.iter().filter_map(|feature| feature.encode.as_ref().map(|encoding| (feature, encoding)))
    }

    /// The categorical ones, and then a stand-in for each numeric one that encodes a category.
    pub fn category_features(&self) -> Vec<Categorical> {
        let encoded = self.encoded_features().map(|(feature, encoding)| self.encoded_category(feature, encoding));
        self.categorical.iter().cloned().chain(encoded).collect()
    }

    /// The same features, with a categorical one in place of each encoded one, for what counts columns as they are.
    pub fn with_plain_categories(&self) -> Self {
        let mut plain = self.clone();
        plain.categorical = self.category_features();
        for feature in &mut plain.categorical[self.categorical.len()..] {
            feature.name.push_str(" (encoded)");
        }
        plain.numeric.retain(|feature| feature.encode.is_none());
        plain
    }

    pub(super) fn encoded_category(&self, feature: &Numeric, encoding: &CategoryEncoding) -> Categorical {
        let source = if encoding.with.is_empty() {
            let part = self.column_part(&feature.column);
            IdSource::Column { column: part.column.to_owned(), reading: part.reading.clone() }
        } else {
            IdSource::Cross(std::iter::once(&feature.column).chain(&encoding.with).cloned().collect())
        };
        let (table, values, default, ids) = (0, Values::One, None, IdRange::All);
        Categorical { name: feature.name().to_owned(), source, table, values, default, ids }
    }
}

impl Numeric {
    /// Statistics that are still to be measured are equal to nothing that is measured.
    pub fn makes_inputs_of(&self, other: &Self) -> bool {
        self.unnamed() == other.unnamed()
    }

    /// Whether statistics of both are measured over the same numbers.
    pub(super) fn is_measured_as(&self, other: &Self) -> bool {
        let numbers = |of: &Self| Self {
            standardise: Scaling::NO,
            min_max: Scaling::NO,
            missing: 0.0,
            missing_indicator: false,
            ..of.unnamed()
        };
        numbers(self) == numbers(other)
    }

    fn unnamed(&self) -> Self {
        Self { name: None, separator: None, ..self.clone() }
    }
}

impl Features {
    /// Statistics that are still to be measured are equal to nothing that is measured.
    pub fn makes_ids_of(&self, feature: &Categorical, theirs: &Self, other: &Categorical) -> bool {
        let ids = match (&feature.ids, &other.ids) {
            (IdRange::Vocabulary(one), IdRange::Vocabulary(other)) => one.ids == other.ids,
            (one, other) => one == other,
        };
        ids && self.reads_as(feature, theirs, other)
    }

    /// Whether both find the same categories in a row.
    pub(super) fn reads_as(&self, feature: &Categorical, theirs: &Self, other: &Categorical) -> bool {
        let (ours, others) = (self.column_parts(feature), theirs.column_parts(other));
        let is_same = |part: usize| {
            let (one, other) = (&ours[part], &others[part]);
            one.column == other.column && one.reading.reads_as(other.reading)
        };
        feature.default == other.default && ours.len() == others.len() && (0..ours.len()).all(is_same)
    }
}

impl ColumnReading {
    fn reads_as(&self, other: &Self) -> bool {
        let is_fitted = |buckets: &ValueBuckets| !matches!(buckets, ValueBuckets::Fit(_));
        match (self, other) {
            (Self::Buckets(one), Self::Buckets(other)) if is_fitted(one) && is_fitted(other) => {
                one.edges() == other.edges()
            }
            (one, other) => one == other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{DELIMITED, assert_problems_with, assert_reloads, job};
    use crate::settings::{ColumnReading, EncodingTable};

    fn features(numeric: &str) -> String {
        format!(
            "[features]\nlabel = 'y'\nnumeric = ['n', {numeric}]\n\
             categorical = ['a', {{ column = 'n', name = 'r', buckets = [1, 2] }}, {{ column = 'b', separator = ' ' }}]\n"
        )
    }

    #[test]
    fn an_encoded_category_is_read_after_the_categorical_features() {
        let two = "{ column = 'r', encode = { by = 'count' } }, { column = 'a', name = 'ar', encode = { by = 'target', with = ['r', 'c'] } }";
        let features = job(DELIMITED, &features(two)).features;
        let read = features.category_features();
        assert_eq!((features.numeric_inputs(), features.number_features().count(), read.len()), (3, 1, 5));
        assert!(matches!(&read[3].source, IdSource::Column { reading: ColumnReading::Buckets(_), .. }));
        let columns = |of: &Categorical| features.source_columns(of).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!((read[4].name.as_str(), columns(&read[4])), ("ar", vec!["a".into(), "n".into(), "c".into()]));
        let plain = features.with_plain_categories();
        assert_eq!((plain.numeric.len(), plain.categorical[4].name.as_str()), (1, "ar (encoded)"));
    }

    #[test]
    fn a_measured_encoding_comes_back_from_the_job_file() {
        let mut made = job(DELIMITED, &features("{ column = 'a', encode = { by = 'target', folds = 2 } }"));
        let table = EncodingTable {
            mean: 0.25,
            deviation: 0.5,
            rare: vec![0.25, 0.2, 0.3],
            ids: vec![3, u64::MAX],
            values: vec![0.1, 0.2, 0.3, 0.0, -0.0, 1e-9],
        };
        made.features.numeric[1].encode.as_mut().unwrap().fitted = Some(table);
        assert_reloads(&made);
        let message = "the numbers of an encoding are one for each fold and one for all other rows, of each id";
        let digits =
            "`features.numeric[1].encode.fitted.ids` is out of range, expected numbers of 16 hexadecimal digits";
        for (key, other, message) in [
            ("ffffffffffffffff", "fffffffffffffff", digits),
            ("3dcccccd3e4ccccd", "3dcccccd", message),
            ("folds = 2", "folds = 3", message),
        ] {
            let text = made.to_toml().replacen(key, other, 1);
            assert_ne!(text, made.to_toml());
            let error = crate::Job::parse(&text, std::path::Path::new("/jobs/job.toml"), &crate::Overrides::none());
            assert_eq!(error.unwrap_err().problems()[0].message(), message, "{other}");
        }
    }

    #[test]
    fn keys_that_do_not_fit_an_encoding_are_refused() {
        let rows = r#"
            { column = 'a', encode = { by = 'target' }, log = true }   => `log` and `encode` exclude each other
            { column = 'a', encode = { by = 'target' }, missing = 1 }  => `missing` and `encode` exclude each other
            { column = 'a', encode = { by = 'count', folds = 3 } }     => `folds` needs `by = "target"`
            { column = 'q', encode = { by = 'count' } }                => no feature or column is named "q"
            { column = 'a', encode = { by = 'count', with = ['q'] } }  => no feature or column is named "q"
            { column = 'a', encode = { by = 'count', with = ['a'] } }  => the cross names "a" twice
            { column = 'y', encode = { by = 'count' } }                => the label "y" is also a categorical feature
        "#;
        assert_problems_with(DELIMITED, features, rows);
        let classes = "label = { column = 'y', kind = 'classes', classes = ['a', 'b', 'c'] }";
        let rows = "{ column = 'a', encode = { by = 'target' } } => `encode` by target needs a first label that is a click or a number";
        assert_problems_with(DELIMITED, |numeric| features(numeric).replace("label = 'y'", classes), rows);
        let rows = r#"
            { column = 'a', encode = { by = 'target' } } => `encode` by target does not fit `data.order = "time"`
            { column = 'a', encode = { by = 'count' } }  => fine
        "#;
        assert_problems_with(&DELIMITED.replace("[data]\n", "[data]\norder = 'time'\n"), features, rows);
    }
}

#[cfg(test)]
mod meaning_tests {
    use super::*;
    use crate::fixture::{DELIMITED, job};
    use crate::{FeatureStatistic, MeasuredValue};

    fn features(numeric: &str, categorical: &str) -> Features {
        let text = format!("[features]\nlabel = 'y'\nnumeric = [{numeric}]\ncategorical = [{categorical}]\n");
        job(DELIMITED, &text).features
    }

    #[test]
    fn inputs_are_equal_if_column_and_transform_are() {
        let first = |numeric: &str| features(numeric, "'a'").numeric[0].clone();
        let plain = first("'n'");
        assert!(plain.makes_inputs_of(&first("{ column = 'n', name = 'other' }")));
        for other in ["'c'", "log = true", "missing = 1.0", "clip = [0, 1]"] {
            let feature = if other == "'c'" { other.to_owned() } else { format!("{{ column = 'n', {other} }}") };
            assert!(!plain.makes_inputs_of(&first(&feature)), "{other}");
        }
        let standardised = first("{ column = 'n', standardise = true }");
        assert!(!standardised.makes_inputs_of(&first("{ column = 'n', standardise = { mean = 0, deviation = 1 } }")));
        assert!(standardised.is_measured_as(&plain));
        assert!(!standardised.is_measured_as(&first("{ column = 'n', log = true }")));
    }

    #[test]
    fn ids_are_equal_if_columns_ranges_and_sizes_are() {
        let same = |one: &str, other: &str| {
            let (one, other) = (features("'n'", one), features("'n'", other));
            one.makes_ids_of(&one.categorical[0], &other, &other.categorical[0])
        };
        assert!(same("'a'", "{ column = 'a', name = 'other' }"));
        let edges = "{ column = 'n', name = 'r', buckets = [1, 2] }";
        assert!(same(edges, "{ column = 'n', name = 'r', buckets = { quantiles = 9, edges = [1, 2] } }"));
        for (one, other) in [
            ("'a'", "'b'"),
            ("'a'", "{ column = 'a', hash_size = 9 }"),
            ("{ column = 'a', hash_size = 8 }", "{ column = 'a', hash_size = 9 }"),
            ("'a'", "{ column = 'a', default = 'none' }"),
            ("'a'", "{ column = 'a', vocabulary = { max_size = 9 } }"),
            (edges, "{ column = 'n', name = 'r', buckets = [1, 3] }"),
            (edges, "{ column = 'n', name = 'r', buckets = 3 }"),
        ] {
            assert!(!same(one, other), "{one} {other}");
        }
    }

    /// Only the edges of a part of the cross differ.
    #[test]
    fn a_cross_follows_its_parts() {
        let bucketed = |edges: &str| {
            let range = format!("{{ column = 'n', name = 'r', buckets = [{edges}] }}");
            features("'n'", &format!("{{ cross = ['r', 'a'], name = 'x' }}, {range}, 'a'"))
        };
        let (one, other) = (bucketed("1, 2"), bucketed("1, 3"));
        let same = |position: usize| one.makes_ids_of(&one.categorical[position], &other, &other.categorical[position]);
        assert_eq!([0, 1, 2].map(same), [false, false, true]);
        assert!(one.makes_ids_of(&one.categorical[0], &bucketed("1, 2"), &one.categorical[0]));
    }

    #[test]
    fn a_vocabulary_is_its_ids() {
        let with_ids = |ids: &[u64], size: u32| {
            let mut features = features("'n'", &format!("{{ column = 'a', vocabulary = {{ max_size = {size} }} }}"));
            assert!(features.set_measured(FeatureStatistic::Vocabulary(0), MeasuredValue::Ids(ids.to_vec())));
            features
        };
        let same =
            |one: &Features, other: &Features| one.makes_ids_of(&one.categorical[0], other, &other.categorical[0]);
        assert!(same(&with_ids(&[1, 2], 9), &with_ids(&[2, 1], 8)));
        assert!(!same(&with_ids(&[1, 2], 9), &with_ids(&[1], 9)));
    }
}
