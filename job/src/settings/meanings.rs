//! Whether the features of two jobs mean the same: rows and weights that one has learned are then of use to the other.

use super::categorical::{Categorical, ColumnReading, IdRange, ValueBuckets};
use super::features::Features;
use super::numeric::{Numeric, Scaling};

impl Numeric {
    /// Statistics that are still to be measured are equal to nothing that is measured.
    #[must_use]
    pub fn makes_inputs_of(&self, other: &Self) -> bool {
        self.unnamed() == other.unnamed()
    }

    /// Whether statistics of both are measured over the same numbers.
    pub(super) fn is_measured_as(&self, other: &Self) -> bool {
        let numbers = |of: &Self| Self {
            standardise: Scaling::No,
            min_max: Scaling::No,
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
    #[must_use]
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
