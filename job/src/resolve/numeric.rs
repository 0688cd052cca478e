//! Numeric features: transforms that fit together.

use super::Resolver;
use super::features::Learned;
use crate::document::Path;
use crate::settings::{MinMax, Numeric, Standardise};

impl Resolver<'_> {
    /// Names, columns and transforms. `known`: the names of all columns, if they are known before a file is opened.
    pub(super) fn numeric(&mut self, features: &[Numeric], learned: Learned<'_>, known: Option<&[String]>) {
        let name = |feature: &Numeric| (feature.name().to_owned(), Some(feature.column.clone()));
        self.different_names("numeric", &features.iter().map(name).collect::<Vec<_>>());
        for (index, feature) in features.iter().enumerate() {
            let path = Path::from("features.numeric").index(index);
            self.feature_column("numeric", &path, &feature.column, learned, known);
            self.transforms_fit(&path, feature);
        }
    }

    fn transforms_fit(&mut self, path: &Path, feature: &Numeric) {
        if let Some([low, high]) = feature.clip.filter(|[low, high]| is_empty(*low, *high)) {
            let message = format!("`clip` leaves nothing between {low} and {high}");
            self.problem(path.key("clip"), message, "least, then greatest", "write the lesser value first");
        }
        if let MinMax::Given { min, max } = feature.min_max
            && is_empty(min, max)
        {
            let message = format!("`min_max` has min {min}, which is not below max {max}");
            self.problem(path.key("min_max"), message, "an empty range", "exchange the two");
        }
        if feature.min_max != MinMax::No && feature.standardise != Standardise::No {
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
    use crate::fixture::{DELIMITED, job, problems};
    use crate::settings::MinMax;

    fn text(numeric: &str) -> String {
        format!("[features]\nlabel = 'y'\ncategorical = ['a']\nnumeric = [{numeric}]\n")
    }

    #[test]
    fn a_column_is_in_several_features_by_name() {
        let features = "'n', { column = 'n', name = 'm', clip = [-1, 5], min_max = { min = 0, max = 5 } }";
        let found = job(DELIMITED, &text(features)).features.numeric;
        assert_eq!((found[0].name(), found[1].name(), found[1].clip), ("n", "m", Some([-1.0, 5.0])));
        assert_eq!(found[1].min_max, MinMax::Given { min: 0.0, max: 5.0 });
    }

    #[test]
    fn transforms_that_do_not_fit_are_refused() {
        for (numeric, message) in [
            ("'n', 'n'", "column \"n\" is a numeric feature twice"),
            ("'n', { column = 'c', name = 'n' }", "two numeric features are named \"n\""),
            ("{ column = 'n', clip = [2, 2] }", "`clip` leaves nothing between 2 and 2"),
            ("{ column = 'n', min_max = { min = 2, max = 1 } }", "`min_max` has min 2, which is not below max 1"),
            ("{ column = 'n', min_max = true, standardise = true }", "`min_max` and `standardise` exclude each other"),
        ] {
            assert_eq!(problems(DELIMITED, &text(numeric)), [message], "{numeric}");
        }
    }
}
