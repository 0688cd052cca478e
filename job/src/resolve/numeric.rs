//! Numeric features: transforms that fit together.

use super::JobResolver;
use crate::document::KeyPath;
use crate::settings::{ColumnMoments, ColumnRange, Numeric, Scaling};

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
        if feature.min_max != Scaling::No && feature.standardise != Scaling::No {
            let help = "keep one of the two, or make two features of the column, each with a `name`";
            self.problem(path.key("min_max"), "`min_max` and `standardise` exclude each other", "one too many", help);
        }
    }
}

/// Whether there is nothing between two bounds; also if one is not a number.
fn is_empty(low: f64, high: f64) -> bool {
    low.partial_cmp(&high) != Some(std::cmp::Ordering::Less)
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
