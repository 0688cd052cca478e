//! Numeric features: transforms that fit together.

use super::Resolver;
use crate::document::Path;
use crate::settings::{MinMax, Numeric, Standardise};

impl Resolver<'_> {
    /// Names, columns and transforms. `known`: the names of all columns, if they are known before a file is opened.
    pub(super) fn numeric(&mut self, features: &[Numeric], label: &str, known: Option<&[String]>) {
        let name = |feature: &Numeric| (feature.name().to_owned(), Some(feature.column.clone()));
        self.different_names("numeric", &features.iter().map(name).collect::<Vec<_>>());
        for (index, feature) in features.iter().enumerate() {
            let path = Path::from("features.numeric").index(index);
            self.feature_column("numeric", &path, &feature.column, label, known);
            self.transforms_fit(&path, feature);
        }
    }

    fn transforms_fit(&mut self, path: &Path, feature: &Numeric) {
        if let Some([low, high]) = feature.clip.filter(|[low, high]| !(low < high)) {
            let message = format!("`clip` leaves nothing between {low} and {high}");
            self.problem(path.key("clip"), message, "least, then greatest", "write the lesser value first");
        }
        if let MinMax::Given { min, max } = feature.min_max
            && !(min < max)
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
