//! Encoded numeric features: the category is there, and the other keys fit.

use super::JobResolver;
use super::categorical::names_of_parts;
use super::features::LearnedColumns;
use crate::document::KeyPath;
use crate::file::{CategoricalFile, DataFile};
use crate::settings::{CategoryEncoding, DataOrder, EncodeBy, Features, MinMax, Numeric, Standardise, TargetKind};

impl JobResolver<'_> {
    /// `known`: the names of all columns, if they are known before a file is opened.
    pub(super) fn check_encodings(
        &mut self,
        features: &[Numeric],
        categorical: &[CategoricalFile],
        learned: LearnedColumns<'_>,
        known: Option<&[String]>,
    ) {
        let parts = names_of_parts(categorical);
        for (index, feature) in features.iter().enumerate() {
            let Some(encoding) = &feature.encode else { continue };
            let path = KeyPath::from("features.numeric").index(index);
            if encoding.with.contains(&feature.column) {
                let message = format!("the cross names \"{}\" twice", feature.column);
                self.problem(path.key("encode").key("with"), message, "second time", "name it once");
            }
            self.check_cross(&path.key("column"), std::slice::from_ref(&feature.column), &parts, learned, known);
            self.check_cross(&path.key("encode").key("with"), &encoding.with, &parts, learned, known);
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
            ("standardise", feature.standardise != Standardise::No),
            ("min_max", feature.min_max != MinMax::No),
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
        let given = [("smoothing", encoding.smoothing.is_some()), ("folds", encoding.folds.is_some())];
        for (key, _) in given.into_iter().filter(|(_, is_given)| *is_given && encoding.by == EncodeBy::Count) {
            let message = format!("`{key}` needs `by = \"target\"`");
            self.problem(path.key(key), message, "a count has no label", "remove the key");
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
