//! Numeric features: transforms that fit together, encoded ones, whose category is there and whose other keys fit, and statistics of the training
//! rows: those that the first of several workers measures for all fit a message.

use super::JobResolver;
use super::categorical::names_of_parts;
use crate::document::KeyPath;
use crate::file::{CategoricalFile, DataFile};
use crate::settings::{
    CategoryEncoding, ClusterSettings, ColumnMoments, ColumnRange, DataOrder, EncodeBy, FeatureStatistic, Features,
    Numeric, Scaling, TargetKind, ValueBuckets, size,
};

impl JobResolver<'_> {
    /// Names, columns and transforms.
    pub(super) fn check_numeric(&mut self, features: &[Numeric]) {
        let name = |feature: &Numeric| (feature.name().to_owned(), Some(feature.column.clone()));
        self.different_names("numeric", &features.iter().map(name).collect::<Vec<_>>());
        for (index, feature) in features.iter().enumerate() {
            let path = KeyPath::from("features.numeric").index(index);
            if feature.encode.is_none() {
                self.feature_column("numeric", &path, &feature.column);
            }
            self.vector_fits(&path, feature);
            self.transforms_fit(&path, feature);
        }
    }

    fn vector_fits(&mut self, path: &KeyPath, feature: &Numeric) {
        match (feature.width, &feature.separator) {
            (None, Some(_)) => {
                let help = "give the number of numbers in a cell as `width`, or remove the key";
                self.problem(path.key("separator"), "`separator` needs `width`", "one number per cell", help);
            }
            (Some(_), None) if !self.has_lists => {
                let help = "name the text between two numbers: separator = \" \"";
                self.problem(path.key("width"), "a text of several numbers needs a `separator`", "how divided?", help);
            }
            _ => {}
        }
        self.scaling_fits(path, feature);
    }

    /// A list is as long as the vector. One number is for all numbers.
    fn scaling_fits(&mut self, path: &KeyPath, feature: &Numeric) {
        let (key, lists) = match (&feature.standardise, &feature.min_max) {
            (Scaling::Given(ColumnMoments { mean, deviation }), _) => {
                ("standardise", [("mean", mean), ("deviation", deviation)])
            }
            (_, Scaling::Given(ColumnRange { min, max })) => ("min_max", [("min", min), ("max", max)]),
            _ => return,
        };
        let count = feature.value_count();
        for (name, list) in lists.into_iter().filter(|(_, list)| ![1, count].contains(&list.len())) {
            let message = format!("`{key}.{name}` has {} numbers, the feature has {count}", list.len());
            self.problem(path.key(key), message, "of another length", "give one number, or one for each");
        }
        if let Scaling::Given(moments) = &feature.standardise
            && !moments.deviation.iter().all(|deviation| *deviation > 0.0 && deviation.is_finite())
        {
            let help = "give the standard deviation of each number; of one that never changes, 1";
            self.problem(path.key(key), "`standardise.deviation` has a number that is not above 0", "divides", help);
        }
        if let Scaling::Given(range) = &feature.min_max
            && (0..count).map(|index| range.number_pair(index)).any(|[min, max]| is_empty(min, max))
        {
            let message = "`min_max` has a min that is not below its max";
            self.problem(path.key("min_max"), message, "an empty range", "exchange the two");
        }
    }

    fn transforms_fit(&mut self, path: &KeyPath, feature: &Numeric) {
        if let Some([low, high]) = feature.clip.filter(|[low, high]| is_empty(*low, *high)) {
            let message = format!("`clip` leaves nothing between {low} and {high}");
            self.problem(path.key("clip"), message, "least, then greatest", "write the lesser value first");
        }
        if feature.min_max != Scaling::NO && feature.standardise != Scaling::NO {
            let help = "keep one of the two, or make two features of the column, each with a `name`";
            self.problem(path.key("min_max"), "`min_max` and `standardise` exclude each other", "one too many", help);
        }
    }
}

/// Whether there is nothing between two bounds; also if one is not a number.
fn is_empty(low: f64, high: f64) -> bool {
    low.partial_cmp(&high) != Some(std::cmp::Ordering::Less)
}

impl JobResolver<'_> {
    pub(super) fn check_encodings(&mut self, features: &[Numeric], categorical: &[CategoricalFile]) {
        let parts = names_of_parts(categorical);
        for (index, feature) in features.iter().enumerate() {
            let Some(encoding) = &feature.encode else { continue };
            let path = KeyPath::from("features.numeric").index(index);
            if encoding.with.contains(&feature.column) {
                let message = format!("the cross names \"{}\" twice", feature.column);
                self.problem(path.key("encode").key("with"), message, "second time", "name it once");
            }
            self.check_cross(&path.key("column"), std::slice::from_ref(&feature.column), &parts);
            self.check_cross(&path.key("encode").key("with"), &encoding.with, &parts);
            self.encoded_alone(&path, feature);
            self.keys_of_target(&path.key("encode"), encoding);
            if encoding.fitted.as_ref().is_some_and(|table| !table.fits_columns(encoding.own_folds() + 1)) {
                let message = "the numbers of an encoding are one for each fold and one for all other rows, of each id";
                let help = "remove the key: the numbers are measured";
                self.problem(path.key("encode").key("fitted"), message, "not of a resolved job", help);
            }
        }
    }

    /// Keys of a number that have no meaning for a category.
    fn encoded_alone(&mut self, path: &KeyPath, feature: &Numeric) {
        let given = [
            ("width", feature.width.is_some()),
            ("separator", feature.separator.is_some()),
            ("clip", feature.clip.is_some()),
            ("log", feature.log),
            ("standardise", feature.standardise != Scaling::NO),
            ("min_max", feature.min_max != Scaling::NO),
            ("missing", feature.missing != 0.0),
            ("missing_indicator", feature.missing_indicator),
        ];
        for (key, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
            let help =
                "remove the key: an encoded category is standardised, and a missing value is a category of its own";
            let message = format!("`{key}` and `encode` exclude each other");
            self.problem(path.key(key), message, "of a number", help);
        }
    }

    fn keys_of_target(&mut self, path: &KeyPath, encoding: &CategoryEncoding) {
        if encoding.by == EncodeBy::Count {
            let message = |key: &str| format!("`{key}` needs `by = \"target\"`");
            self.refuse_keys(path, &["smoothing", "folds"], message, "a count has no label", "remove the key");
        }
    }

    pub(super) fn target_encodings_fit(&mut self, data: &DataFile, features: &Features) {
        let by_target =
            |feature: &Numeric| feature.encode.as_ref().is_some_and(|encoding| encoding.by == EncodeBy::Target);
        let Some(index) = features.numeric.iter().position(by_target) else { return };
        let path = KeyPath::from("features.numeric").index(index).key("encode");
        let is_classes = |target: &crate::settings::Target| matches!(target.kind, TargetKind::Classes { .. });
        if features.targets.first().is_some_and(is_classes) {
            let message = "`encode` by target needs a first label that is a click or a number";
            let help = "encode by count, or name a label of clicks or numbers first";
            self.problem(path.clone(), message, "the mean of a class says nothing", help);
        }
        if data.order == DataOrder::Time {
            let message = "`encode` by target does not fit `data.order = \"time\"`";
            let help = "a row would know the labels of later rows, and progressive measures would be too good: remove the order \
                and hold the newest rows out (data.test_from), or encode by count";
            self.problem(path, message, "measured over all training rows", help);
        }
    }
}

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
    use crate::fixture::{DELIMITED, assert_problems_with, assert_reloads, job};
    use crate::settings::{ColumnMoments, ColumnRange, Scaling};

    fn text(numeric: &str) -> String {
        format!("[features]\nlabel = 'y'\ncategorical = ['a']\nnumeric = [{numeric}]\n")
    }

    #[test]
    fn a_column_is_in_several_features_by_name() {
        let features = "'n', { column = 'n', name = 'm', clip = [-1, 5], min_max = { min = 0, max = 5 } }";
        let found = job(DELIMITED, &text(features)).features.numeric;
        assert_eq!((found[0].name(), found[1].name(), found[1].clip), ("n", "m", Some([-1.0, 5.0])));
        assert_eq!(found[1].min_max, Scaling::Given(ColumnRange { min: vec![0.0], max: vec![5.0] }));
    }

    #[test]
    fn a_vector_has_its_length_its_separator_and_a_statistic_of_each_number() {
        let vector = |rest: &str| {
            text(&format!("{{ column = 'n', width = 3, separator = ' ', missing_indicator = true, {rest} }}"))
        };
        let made = job(DELIMITED, &vector("standardise = { mean = [0, 1, 2.5], deviation = 2 }"));
        let feature = &made.features.numeric[0];
        let given = Scaling::Given(ColumnMoments { mean: vec![0.0, 1.0, 2.5], deviation: vec![2.0] });
        assert_eq!((feature.value_count(), feature.input_count(), &feature.standardise), (3, 4, &given));
        assert_eq!(made.features.numeric_inputs(), 4);
        assert_reloads(&made);
        let rows = r#"
            min_max = { min = 0, max = [1, 2] } => `min_max.max` has 2 numbers, the feature has 3
            min_max = { min = 1, max = [2, 1, 3] } => `min_max` has a min that is not below its max
            standardise = { mean = [1, 2, 3], deviation = [1, 0, 1] } => `standardise.deviation` has a number that is not above 0
        "#;
        assert_problems_with(DELIMITED, vector, rows);
        let parquet = "[data]\nformat = 'parquet'\ntrain = 'a.parquet'\n[model]\nkind = 'ffnn'\n";
        assert_eq!(job(parquet, &text("{ column = 'n', width = 3 }")).features.numeric[0].width, Some(3));
    }

    #[test]
    fn transforms_that_do_not_fit_are_refused() {
        let rows = r#"
            { column = 'n', width = 3 }            => a text of several numbers needs a `separator`
            { column = 'n', separator = ' ' }      => `separator` needs `width`
            'n', { column = 'c', name = 'n' }      => two numeric features are named "n"
            { column = 'n', clip = [2, 2] }        => `clip` leaves nothing between 2 and 2
            { column = 'n', min_max = { min = 2, max = 1 } } => `min_max` has a min that is not below its max
            { column = 'n', standardise = { mean = 1, deviation = 0 } } => `standardise.deviation` has a number that is not above 0
            { column = 'n', min_max = true, standardise = true } => `min_max` and `standardise` exclude each other
        "#;
        assert_problems_with(DELIMITED, text, rows);
    }
}

#[cfg(test)]
mod encoding_tests {
    use crate::fixture::{DELIMITED, assert_problems_with};

    #[test]
    fn several_workers_have_statistics_that_fit_a_message() {
        let text = |counts: &str| {
            let (workers, vocabularies) = counts.split_once(' ').unwrap();
            let vocabulary = |at: u32| {
                format!(", {{ column = 'b', name = 'v{at}', vocabulary = {{ min_count = 1, max_size = 262144 }} }}")
            };
            let vocabularies: String = (0..vocabularies.parse::<u32>().unwrap()).map(vocabulary).collect();
            format!(
                "[features]\nlabel = {{ column = 'y', positive = ['1'] }}\nnumeric = [{{ column = 'a', name = 'r', encode = \
                 {{ by = 'target', max_size = 262144, folds = 16 }} }}]\n\
                 categorical = ['a'{vocabularies}]\n[cluster]\nworkers = {workers}\n"
            )
        };
        // 262,144 · (8 + 4 · 17) bytes and six times 2 MiB are 31 MiB.
        let rows = "3 6 => fine\n3 7 => …the first of several workers can tell the others\n1 7 => fine";
        assert_problems_with(DELIMITED, text, rows);
    }
}
