//! FinalMLP: heads that divide its streams, and gates that read features.

use super::JobResolver;
use crate::document::KeyPath;
use crate::settings::{Features, Model, StreamGates};
use crate::suggest;

impl JobResolver<'_> {
    /// Each head reads an equal part of the output of a stream.
    pub(super) fn streams_split(&mut self, model: &Model) {
        let Model::FinalMlp { first, second, heads, .. } = model else { return };
        for (stream, widths) in [("first", first), ("second", second)] {
            let width = widths.last().map_or(0, |width| width.unsigned_abs());
            if !width.is_multiple_of(*heads as u64) {
                let message = format!("{heads} heads do not divide the {width} values of the {stream} stream");
                let help = "choose a divisor of the last width of both streams, or another width";
                self.problem("model.heads", message, "not a divisor", help);
            }
        }
    }

    pub(super) fn gates_read(&mut self, gates: &StreamGates, features: &Features) {
        let numeric = features.numeric.iter().map(|feature| feature.name());
        let known: Vec<&str> =
            numeric.chain(features.categorical.iter().map(|feature| feature.name.as_str())).collect();
        for (stream, names) in [("first", &gates.first), ("second", &gates.second)] {
            for (index, name) in names.iter().enumerate() {
                let path = KeyPath::from("model.gate").key(stream).index(index);
                if !known.contains(&name.as_str()) {
                    let help = suggest::help_with_name(name, &known, "there are");
                    self.problem(path, format!("no feature is named \"{name}\""), "no such feature", help);
                } else if names[..index].contains(name) {
                    let message = format!("the gate reads \"{name}\" twice");
                    self.problem(path, message, "second time", "remove one of the two");
                }
            }
        }
    }
}
