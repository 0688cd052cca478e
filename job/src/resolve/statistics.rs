//! Statistics of the training rows: those that the first of several workers measures for all fit a message.

use super::JobResolver;
use crate::document::KeyPath;
use crate::settings::{ClusterSettings, FeatureStatistic, Features, ValueBuckets, size};

/// Bytes of a statistic besides its values: its own numbers, and lengths.
const BESIDES: u64 = 64;

impl Features {
    /// The most bytes of the message that tells a statistic to other workers.
    fn statistic_bytes(&self, statistic: FeatureStatistic) -> u64 {
        let values = match statistic {
            FeatureStatistic::Standardise(feature) | FeatureStatistic::MinMax(feature) => {
                16 * self.numeric[feature].value_count() as u64
            }
            FeatureStatistic::Edges(feature) => {
                8 * self.categorical[feature].buckets().map_or(0, ValueBuckets::range_count) as u64
            }
            FeatureStatistic::Vocabulary(feature) => {
                8 * self.categorical[feature].vocabulary().map_or(0, |vocabulary| u64::from(vocabulary.max_size))
            }
            FeatureStatistic::Encoding(feature) => self.numeric[feature].encode.as_ref().map_or(0, |encoding| {
                let numbers = 4 * (encoding.own_folds() as u64 + 1);
                u64::from(encoding.max_size) * (8 + numbers) + numbers
            }),
        };
        BESIDES + values
    }
}

impl JobResolver<'_> {
    pub(super) fn statistics_fit(&mut self, features: &Features, cluster: &ClusterSettings) {
        let statistics = features.unmeasured_statistics();
        let bytes = |statistic: &FeatureStatistic| features.statistic_bytes(*statistic);
        let all: u64 = statistics.iter().map(bytes).sum();
        let Some(largest) = statistics.iter().copied().max_by_key(bytes) else { return };
        if !cluster.has_groups() || all <= Features::STATISTICS_BYTES {
            return;
        }
        let features_of = |kind: &str, index: usize| KeyPath::from("features").key(kind).index(index);
        let (place, lower) = match largest {
            FeatureStatistic::Encoding(index) => (features_of("numeric", index).key("encode"), "`max_size` or `folds`"),
            FeatureStatistic::Standardise(index) | FeatureStatistic::MinMax(index) => {
                (features_of("numeric", index), "`width`")
            }
            FeatureStatistic::Vocabulary(index) => (features_of("categorical", index).key("vocabulary"), "`max_size`"),
            FeatureStatistic::Edges(index) => (features_of("categorical", index), "`buckets`"),
        };
        let (all, most) = (size::write(all), size::write(Features::STATISTICS_BYTES));
        let message = format!(
            "the statistics of the features can have {all}, and the first of several workers can tell the others {most}"
        );
        let help = format!("lower {lower} here and in other features, or train with one worker");
        self.problem(place, message, "the largest of them", help);
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{DELIMITED, job, problems};

    fn features(numeric: &str, categorical: &str, workers: u32) -> String {
        format!(
            "[features]\nlabel = {{ column = 'y', positive = ['1'] }}\nnumeric = [{numeric}]\ncategorical = [{categorical}]\n\
             [cluster]\nworkers = {workers}\n"
        )
    }

    const ENCODING: &str = "{ column = 'a', name = 'r', encode = { by = 'target', max_size = 262144, folds = 16 } }";

    #[test]
    fn several_workers_have_statistics_that_fit_a_message() {
        let vocabulary = |name: &str| {
            format!("{{ column = 'b', name = '{name}', vocabulary = {{ min_count = 1, max_size = 262144 }} }}")
        };
        let six = ["v0", "v1", "v2", "v3", "v4", "v5"].map(vocabulary).join(", ");
        // 262,144 · (8 + 4 · 17) bytes and six times 2 MiB are 31 MiB.
        job(DELIMITED, &features(ENCODING, &six, 3));
        let seven = format!("{six}, {}", vocabulary("v6"));
        let found = problems(DELIMITED, &features(ENCODING, &seven, 3));
        assert!(found.len() == 1 && found[0].contains("the first of several workers can tell the others"), "{found:?}");
        job(DELIMITED, &features(ENCODING, &seven, 1));
    }
}
