//! What a job leaves to be measured over the training rows, and where the measured values go.
//!
//! ```text
//! job file ─► unmeasured_statistics() ─► one pass over the training rows ─► set_measured() ─► resolved job: saved with the model
//! ```

use super::categorical::{Categorical, ColumnReading, IdRange, IdSource, ValueBuckets};
use super::encoding::{EncodingTable, Vocabulary};
use super::features::Features;
use super::numeric::{ColumnMoments, ColumnRange, Numeric, Scaling};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureStatistic {
    Standardise(usize),
    MinMax(usize),
    Edges(usize),
    Vocabulary(usize),
    Encoding(usize),
}

#[derive(Clone, Debug, PartialEq)]
pub enum MeasuredValue {
    /// Of [`FeatureStatistic::Standardise`].
    Moments(ColumnMoments),
    /// Of [`FeatureStatistic::MinMax`]. Greatest values are above the least.
    Range(ColumnRange),
    /// Of [`FeatureStatistic::Edges`]: ascending.
    Edges(Vec<f64>),
    /// Of [`FeatureStatistic::Vocabulary`].
    Ids(Vec<u64>),
    /// Of [`FeatureStatistic::Encoding`].
    Encoding(EncodingTable),
}

impl Features {
    /// The most bytes that all statistics have in the message that tells them to other workers, which is one of 32 MiB.
    pub const STATISTICS_BYTES: u64 = (32 << 20) - 1024;

    /// What is still to be measured, in the order of the features.
    pub fn unmeasured_statistics(&self) -> Vec<FeatureStatistic> {
        let mut found = Vec::new();
        for (position, feature) in self.numeric.iter().enumerate() {
            found.extend((feature.standardise == Scaling::FIT).then_some(FeatureStatistic::Standardise(position)));
            found.extend((feature.min_max == Scaling::FIT).then_some(FeatureStatistic::MinMax(position)));
            let encoding = feature.encode.as_ref().is_some_and(|encoding| encoding.fitted.is_none());
            found.extend(encoding.then_some(FeatureStatistic::Encoding(position)));
        }
        for (position, feature) in self.categorical.iter().enumerate() {
            let edges = matches!(feature.buckets(), Some(ValueBuckets::Fit(_)));
            found.extend(edges.then_some(FeatureStatistic::Edges(position)));
            let ids = feature.vocabulary().is_some_and(|vocabulary| vocabulary.ids.is_none());
            found.extend(ids.then_some(FeatureStatistic::Vocabulary(position)));
        }
        found
    }

    pub fn measured_value(&self, statistic: FeatureStatistic) -> Option<MeasuredValue> {
        match statistic {
            FeatureStatistic::Standardise(feature) => match &self.numeric.get(feature)?.standardise {
                Scaling::Given(moments) => Some(MeasuredValue::Moments(moments.clone())),
                Scaling::Switch(_) => None,
            },
            FeatureStatistic::MinMax(feature) => match &self.numeric.get(feature)?.min_max {
                Scaling::Given(range) => Some(MeasuredValue::Range(range.clone())),
                Scaling::Switch(_) => None,
            },
            FeatureStatistic::Edges(feature) => match self.categorical.get(feature)?.buckets()? {
                ValueBuckets::Fit(_) => None,
                ValueBuckets::Edges(edges) | ValueBuckets::Fitted { edges, .. } => {
                    Some(MeasuredValue::Edges(edges.clone()))
                }
            },
            FeatureStatistic::Vocabulary(feature) => {
                self.categorical.get(feature)?.vocabulary()?.ids.clone().map(MeasuredValue::Ids)
            }
            FeatureStatistic::Encoding(feature) => {
                self.numeric.get(feature)?.encode.as_ref()?.fitted.clone().map(MeasuredValue::Encoding)
            }
        }
    }

    pub fn set_measured(&mut self, statistic: FeatureStatistic, value: MeasuredValue) -> bool {
        match (statistic, value) {
            (FeatureStatistic::Standardise(feature), MeasuredValue::Moments(moments)) => {
                let feature = self.scaled(feature, &moments.mean, &moments.deviation);
                feature.map(|feature| feature.standardise = Scaling::Given(moments)).is_some()
            }
            (FeatureStatistic::MinMax(feature), MeasuredValue::Range(range)) => {
                let feature = self.scaled(feature, &range.min, &range.max);
                feature.map(|feature| feature.min_max = Scaling::Given(range)).is_some()
            }
            (FeatureStatistic::Edges(feature), MeasuredValue::Edges(edges)) => {
                match self.categorical.get_mut(feature).and_then(Categorical::buckets_mut) {
                    Some(ValueBuckets::Edges(given)) => *given = edges,
                    Some(buckets @ (ValueBuckets::Fit(_) | ValueBuckets::Fitted { .. })) => {
                        *buckets = ValueBuckets::Fitted { quantiles: buckets.range_count(), edges };
                    }
                    None => return false,
                }
                true
            }
            (FeatureStatistic::Vocabulary(feature), MeasuredValue::Ids(mut ids)) => {
                ids.sort_unstable();
                let vocabulary = self.categorical.get_mut(feature).and_then(Categorical::vocabulary_mut);
                vocabulary.map(|vocabulary| vocabulary.ids = Some(ids)).is_some()
            }
            (FeatureStatistic::Encoding(feature), MeasuredValue::Encoding(table)) => {
                let encoding = self.numeric.get_mut(feature).and_then(|feature| feature.encode.as_mut());
                let encoding = encoding.filter(|encoding| table.fits_columns(encoding.own_folds() + 1));
                encoding.map(|encoding| encoding.fitted = Some(table)).is_some()
            }
            _ => false,
        }
    }

    /// A numeric feature that has as many numbers as both lists.
    fn scaled(&mut self, feature: usize, one: &[f64], other: &[f64]) -> Option<&mut Numeric> {
        self.numeric.get_mut(feature).filter(|feature| [one.len(), other.len()] == [feature.value_count(); 2])
    }

    /// Forgets all that was measured. Given means, deviations and ranges look like measured ones, and are forgotten too.
    pub(crate) fn forget_measured(&mut self) {
        for feature in &mut self.numeric {
            if feature.standardise != Scaling::NO {
                feature.standardise = Scaling::FIT;
            }
            if feature.min_max != Scaling::NO {
                feature.min_max = Scaling::FIT;
            }
            if let Some(encoding) = &mut feature.encode {
                encoding.fitted = None;
            }
        }
        for feature in &mut self.categorical {
            if let Some(buckets @ ValueBuckets::Fitted { .. }) = feature.buckets_mut() {
                *buckets = ValueBuckets::Fit(buckets.range_count());
            }
            if let Some(vocabulary) = feature.vocabulary_mut() {
                vocabulary.ids = None;
            }
        }
    }

    /// Where they were measured over the same values: the same column before standardisation, as many ranges, the same
    /// bounds of a vocabulary.
    pub fn take_measured(&mut self, from: &Self) {
        let of_crosses = |statistic: &FeatureStatistic| {
            matches!(statistic, FeatureStatistic::Vocabulary(_) | FeatureStatistic::Encoding(_))
        };
        // The categories of a cross follow from the edges of its parts.
        let (last, first): (Vec<_>, Vec<_>) = self.unmeasured_statistics().into_iter().partition(of_crosses);
        for statistic in first.into_iter().chain(last) {
            if let Some(value) = self.measured_alike(statistic, from) {
                self.set_measured(statistic, value);
            }
        }
    }

    /// The value of a statistic in another model, if it would be measured over the same values here.
    fn measured_alike(&self, statistic: FeatureStatistic, from: &Self) -> Option<MeasuredValue> {
        let numeric = |feature: usize| {
            let ours = &self.numeric[feature];
            let position = from.numeric.iter().position(|theirs| theirs.name() == ours.name())?;
            from.numeric[position].is_measured_as(ours).then_some(position)
        };
        let categorical = |feature: usize| {
            let ours = &self.categorical[feature];
            let position = from.categorical.iter().position(|theirs| theirs.name == ours.name)?;
            Some((ours, &from.categorical[position], position))
        };
        let theirs = match statistic {
            FeatureStatistic::Standardise(feature) => FeatureStatistic::Standardise(numeric(feature)?),
            FeatureStatistic::MinMax(feature) => FeatureStatistic::MinMax(numeric(feature)?),
            FeatureStatistic::Edges(feature) => {
                let (ours, theirs, position) = categorical(feature)?;
                let columns = self.column_parts(ours)[0].column == from.column_parts(theirs)[0].column;
                let ranges = |of: &Categorical| of.buckets().map(ValueBuckets::range_count);
                (columns && ranges(ours) == ranges(theirs)).then_some(FeatureStatistic::Edges(position))?
            }
            FeatureStatistic::Vocabulary(feature) => {
                let (ours, theirs, position) = categorical(feature)?;
                let bounds = |of: &Categorical| of.vocabulary().map(|of| (of.min_count, of.max_size));
                let same = self.reads_as(ours, from, theirs) && bounds(ours) == bounds(theirs);
                same.then_some(FeatureStatistic::Vocabulary(position))?
            }
            FeatureStatistic::Encoding(feature) => {
                let ours = &self.numeric[feature];
                let position = from.numeric.iter().position(|theirs| theirs.name() == ours.name())?;
                let theirs = &from.numeric[position];
                let (our, their) = (ours.encode.as_ref()?, theirs.encode.as_ref()?);
                let [one, other] = [self.encoded_category(ours, our), from.encoded_category(theirs, their)];
                (our.is_like(their) && self.reads_as(&one, from, &other))
                    .then_some(FeatureStatistic::Encoding(position))?
            }
        };
        from.measured_value(theirs)
    }
}

impl Categorical {
    pub fn buckets(&self) -> Option<&ValueBuckets> {
        match &self.source {
            IdSource::Column { reading: ColumnReading::Buckets(buckets), .. } => Some(buckets),
            _ => None,
        }
    }

    fn buckets_mut(&mut self) -> Option<&mut ValueBuckets> {
        match &mut self.source {
            IdSource::Column { reading: ColumnReading::Buckets(buckets), .. } => Some(buckets),
            _ => None,
        }
    }

    pub fn vocabulary(&self) -> Option<&Vocabulary> {
        if let IdRange::Vocabulary(vocabulary) = &self.ids { Some(vocabulary) } else { None }
    }

    fn vocabulary_mut(&mut self) -> Option<&mut Vocabulary> {
        if let IdRange::Vocabulary(vocabulary) = &mut self.ids { Some(vocabulary) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{DELIMITED, job};

    const FEATURES: &str = "[features]\nlabel = 'y'\nnumeric = [{ column = 'n', standardise = true }, 'c', { column = 'b', min_max = true }, { column = 'a', encode = { by = 'count' } }]\n\
        categorical = ['a', { column = 'n', name = 'r', buckets = 3 }, { column = 'b', vocabulary = { max_size = 9 } }]\n";

    fn moments(mean: f64, deviation: f64, count: usize) -> MeasuredValue {
        MeasuredValue::Moments(ColumnMoments { mean: vec![mean; count], deviation: vec![deviation; count] })
    }

    fn counts(ids: &[u64]) -> EncodingTable {
        let values = ids.iter().map(|id| *id as f32).collect();
        EncodingTable { mean: 1.0, deviation: 2.0, rare: vec![0.0], ids: ids.to_vec(), values }
    }

    fn measured() -> Features {
        let mut features = job(DELIMITED, FEATURES).features;
        let values = [
            (FeatureStatistic::Standardise(0), moments(1.0, 2.0, 1)),
            (FeatureStatistic::MinMax(2), MeasuredValue::Range(ColumnRange { min: vec![-1.0], max: vec![3.0] })),
            (FeatureStatistic::Encoding(3), MeasuredValue::Encoding(counts(&[3, 9]))),
            (FeatureStatistic::Edges(1), MeasuredValue::Edges(vec![0.5, 7.0])),
            (FeatureStatistic::Vocabulary(2), MeasuredValue::Ids(vec![9, 3])),
        ];
        assert!(features.unmeasured_statistics().iter().eq(values.iter().map(|(statistic, _)| statistic)));
        for (statistic, value) in values {
            assert!(features.set_measured(statistic, value), "{statistic:?}");
        }
        features
    }

    #[test]
    fn what_is_set_is_measured_and_can_be_forgotten() {
        let mut features = measured();
        assert_eq!(features.unmeasured_statistics(), []);
        assert_eq!(features.measured_value(FeatureStatistic::Vocabulary(2)), Some(MeasuredValue::Ids(vec![3, 9])));
        let of_texts = features.set_measured(FeatureStatistic::Edges(0), MeasuredValue::Edges(vec![1.0]));
        assert!(!of_texts);
        features.forget_measured();
        assert_eq!(features, job(DELIMITED, FEATURES).features);
    }

    /// A resolved job that is resumed, or that another process compares, is the same job.
    #[test]
    fn measured_values_change_neither_the_job_nor_its_fingerprint() {
        let earlier = job(DELIMITED, FEATURES);
        let mut later = earlier.clone();
        later.features = measured();
        assert_eq!(later.changes_since(&earlier), []);
        assert_eq!(later.fingerprint(), earlier.fingerprint());
        let other = job(DELIMITED, &FEATURES.replace("buckets = 3", "buckets = 4"));
        assert_ne!(other.fingerprint(), earlier.fingerprint());
    }

    #[test]
    fn a_vector_has_a_value_of_each_number() {
        let text = "[features]\nlabel = 'y'\ncategorical = ['a']\n\
            numeric = [{ column = 'n', width = 2, separator = ' ', standardise = true }]\n";
        let mut features = job(DELIMITED, text).features;
        let each = |count| moments(1.0, 2.0, count);
        let statistic = FeatureStatistic::Standardise(0);
        assert!(!features.set_measured(statistic, each(3)), "two numbers");
        assert!(features.set_measured(statistic, each(2)));
        assert_eq!((features.measured_value(statistic), features.unmeasured_statistics()), (Some(each(2)), vec![]));
    }

    /// The numbers of one encoding mean nothing in another.
    #[test]
    fn an_encoding_takes_over_the_numbers_of_its_like_only() {
        let encoded = |encode: &str| {
            let text = format!(
                "[features]\nlabel = 'y'\ncategorical = ['b']\nnumeric = [{{ column = 'a', encode = {{ {encode} }} }}]\n"
            );
            job(DELIMITED, &text).features
        };
        for (encode, taken) in [
            ("by = 'count'", true),
            ("by = 'count', max_size = 7", false),
            ("by = 'count', with = ['b']", false),
            ("by = 'target'", false),
        ] {
            let mut features = encoded(encode);
            features.take_measured(&measured());
            assert_eq!(features.unmeasured_statistics().is_empty(), taken, "{encode}");
        }
        let one_fold = MeasuredValue::Encoding(counts(&[3]));
        assert!(!encoded("by = 'target'").set_measured(FeatureStatistic::Encoding(0), one_fold));
    }

    #[test]
    fn features_of_another_model_are_found_by_name() {
        let text = "[features]\nlabel = 'y'\nnumeric = [{ column = 'c', standardise = true }, { column = 'n', standardise = true }]\n\
            categorical = [{ column = 'b', vocabulary = { max_size = 9 } }, { column = 'n', name = 'r', buckets = 3 }]\n";
        let mut features = job(DELIMITED, text).features;
        features.take_measured(&measured());
        assert_eq!(features.unmeasured_statistics(), [FeatureStatistic::Standardise(0)]);
        assert_eq!(features.measured_value(FeatureStatistic::Edges(1)), Some(MeasuredValue::Edges(vec![0.5, 7.0])));
    }

    #[test]
    fn what_would_be_measured_over_other_values_is_measured_anew() {
        let (edges, vocabulary) = (FeatureStatistic::Edges(1), FeatureStatistic::Vocabulary(2));
        for (given, now, anew) in [
            ("column = 'n', standardise", "column = 'n', log = true, standardise", FeatureStatistic::Standardise(0)),
            ("column = 'n', name = 'r'", "column = 'c', name = 'r'", edges),
            ("buckets = 3", "buckets = 4", edges),
            ("max_size = 9", "max_size = 8", vocabulary),
            ("column = 'b', vocabulary", "column = 'b', default = '0', vocabulary", vocabulary),
            ("column = 'b', vocabulary", "cross = ['r', 'a'], name = 'b', vocabulary", vocabulary),
        ] {
            let text = FEATURES.replace(given, now);
            assert_ne!(text, FEATURES);
            let mut features = job(DELIMITED, &text).features;
            features.take_measured(&measured());
            assert_eq!(features.unmeasured_statistics(), [anew], "{now}");
        }
    }
}
