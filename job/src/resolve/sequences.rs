//! Sequences: which networks read them, and the target of each.

use super::JobResolver;
use crate::document::KeyPath;
use crate::settings::{AttentionPair, Categorical, ColumnReading, Features, IdRange, IdSource, Model, Table, Values};
use crate::suggest;

impl JobResolver<'_> {
    pub(super) fn takes_sequences(&mut self, model: &Model, features: &Features) {
        let first = features.categorical.iter().position(is_sequence);
        match (reads_sequences(model), first) {
            (false, Some(index)) => {
                let column = &features.categorical[index].name;
                let message = format!("the network of `model.kind` reads no sequence, and \"{column}\" is one");
                let help =
                    "give the feature `pooling` in place of `sequence`, or use [model] kind = \"din\" or \"bst\"";
                let path = KeyPath::from("features.categorical").index(index).key("sequence");
                self.problem(path, message, "not read", help);
            }
            (true, None) => {
                let help =
                    "add `sequence = { length = 50 }` to a feature of several values, or use [model] kind = \"ffnn\"";
                self.problem("model.kind", "the network reads a sequence, and no feature is one", "no sequence", help);
            }
            (true, Some(_)) | (false, None) => {}
        }
    }

    /// The sequences with their targets: the given ones, or each sequence with the one other feature of its table.
    pub(super) fn attention_pairs(
        &mut self,
        given: &[AttentionPair],
        features: &Features,
        tables: &[Table],
    ) -> Vec<AttentionPair> {
        let sequences = features.categorical.iter().filter(|feature| is_sequence(feature));
        if given.is_empty() {
            let pairs: Vec<AttentionPair> =
                sequences.filter_map(|sequence| self.only_target(sequence, features, tables)).collect();
            pairs.iter().for_each(|pair| self.same_ids(pair, features));
            return pairs;
        }
        for (index, pair) in given.iter().enumerate() {
            let path = KeyPath::from("model.attention").index(index);
            self.pair_fits(&path, pair, features);
            if given[..index].contains(pair) {
                self.problem(path, "the same sequence and target twice", "second time", "remove one of the two");
            }
        }
        for sequence in sequences.filter(|feature| given.iter().all(|pair| pair.sequence != feature.name)) {
            let column = &sequence.name;
            let help = format!("add {{ sequence = \"{column}\", target = … }}, or remove the feature");
            self.problem("model.attention", format!("the sequence \"{column}\" has no target"), "not listed", help);
        }
        given.to_vec()
    }

    /// Each head reads an equal part of a vector.
    pub(super) fn heads_divide(&mut self, heads: usize, features: &Features, tables: &[Table]) {
        let dim = |feature: &Categorical| tables[feature.table].dim;
        let uneven = |feature: &&Categorical| is_sequence(feature) && !dim(feature).is_multiple_of(heads);
        if let Some(feature) = features.categorical.iter().find(uneven) {
            let message = format!("{heads} heads do not divide the dim {} of \"{}\"", dim(feature), feature.name);
            self.problem("model.heads", message, "not a divisor", "choose a divisor of the dim, or another dim");
        }
    }

    fn only_target(&mut self, sequence: &Categorical, features: &Features, tables: &[Table]) -> Option<AttentionPair> {
        let of_table = |feature: &&Categorical| !is_sequence(feature) && feature.table == sequence.table;
        let targets: Vec<&str> =
            features.categorical.iter().filter(of_table).map(|feature| feature.name.as_str()).collect();
        let column = &sequence.name;
        if let [target] = targets[..] {
            return Some(AttentionPair { sequence: column.clone(), target: target.to_owned() });
        }
        let table = &tables[sequence.table].name;
        let (message, help) = if targets.is_empty() {
            let message =
                format!("the sequence \"{column}\" has no target: no other feature reads the table \"{table}\"");
            (
                message,
                format!(
                    "give the sequence the `table` of the feature to compare it with: {{ column = \"{column}\", table = …, … }}"
                ),
            )
        } else {
            let message = format!("the sequence \"{column}\" has several targets: {}", targets.join(", "));
            (message, format!("name one: attention = [{{ sequence = \"{column}\", target = \"{}\" }}]", targets[0]))
        };
        self.problem("model.attention", message, "which target?", help);
        None
    }

    fn pair_fits(&mut self, path: &KeyPath, pair: &AttentionPair, features: &Features) {
        let sequence = self.of_kind(&path.key("sequence"), &pair.sequence, features, true);
        let target = self.of_kind(&path.key("target"), &pair.target, features, false);
        let (Some(sequence), Some(target)) = (sequence, target) else { return };
        if sequence.table != target.table {
            let message = format!("\"{}\" and its target \"{}\" read two tables", pair.sequence, pair.target);
            let help = "give both features the same `table`: values are compared with the target by their rows";
            self.problem(path.clone(), message, "two tables", help);
        } else {
            self.same_ids(pair, features);
        }
    }

    /// A category has one id in both features, so that both look up one row.
    fn same_ids(&mut self, pair: &AttentionPair, features: &Features) {
        let place = |name: &str| features.categorical.iter().position(|feature| feature.name == name);
        let (Some(sequence), Some(target)) = (place(&pair.sequence), place(&pair.target)) else { return };
        let ids = |index: usize| ids_in_words(&features.categorical[index]);
        if ids(sequence) != ids(target) {
            let message = format!(
                "the sequence \"{}\" has {}, and its target \"{}\" has {}",
                pair.sequence,
                ids(sequence),
                pair.target,
                ids(target)
            );
            let help =
                "give both features the same keys: a value of the sequence is compared with the target by its row";
            self.problem(KeyPath::from("features.categorical").index(sequence), message, "other ids", help);
        }
    }

    /// The feature of this column, if it is a sequence, or is none, as wanted.
    fn of_kind<'f>(
        &mut self,
        path: &KeyPath,
        column: &str,
        features: &'f Features,
        sequence: bool,
    ) -> Option<&'f Categorical> {
        let fits = |feature: &&Categorical| is_sequence(feature) == sequence;
        let found = features.categorical.iter().filter(fits).find(|feature| feature.name == column);
        if found.is_none() {
            let known: Vec<&str> =
                features.categorical.iter().filter(fits).map(|feature| feature.name.as_str()).collect();
            let kind = if sequence { "feature with `sequence`" } else { "feature without `sequence`" };
            let help = suggest::help_with_name(column, &known, "there are");
            self.problem(path.clone(), format!("no {kind} is named \"{column}\""), "no such feature", help);
        }
        found
    }
}

fn reads_sequences(model: &Model) -> bool {
    matches!(model, Model::Din { .. } | Model::Bst { .. })
}

/// What the ids of a feature's categories are. Measured ids of a vocabulary are no setting.
fn ids_in_words(feature: &Categorical) -> String {
    let origin = match &feature.source {
        IdSource::Column { reading: ColumnReading::Text, .. } => "",
        IdSource::Column { reading: ColumnReading::Buckets(_), .. } => " of its buckets",
        IdSource::Column { reading: ColumnReading::Date(_), .. } => " of parts of a date",
        IdSource::Cross(_) => " of a cross",
    };
    let ids = match &feature.ids {
        IdRange::All => "an id a category".to_owned(),
        IdRange::Hashed(size) => format!("hash_size = {size}"),
        IdRange::Vocabulary(of) => {
            format!("a vocabulary of min_count = {} and max_size = {}", of.min_count, of.max_size)
        }
    };
    ids + origin
}

fn is_sequence(feature: &Categorical) -> bool {
    matches!(feature.values, Values::Sequence { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{assert_problems_with, assert_reloads, job, problems};
    use crate::settings::{KeptEnd, PadSide, Sequence};

    const COLUMNS: &str = "[data]\nformat = 'delimited'\ntrain = 'a.csv'\n\
        columns = ['y', 'movie', 'history', 'user', 'last', 'seen', 'h']\n";

    fn text(features: &str, model: &str) -> String {
        format!("[features]\nlabel = 'y'\ncategorical = [{features}]\n[model]\n{model}\n")
    }

    const HISTORY: &str =
        "'movie', { column = 'history', table = 'movie', separator = '|', sequence = { length = 5 } }";

    #[test]
    fn a_sequence_keeps_its_newest_values_and_is_padded_on_the_left() {
        let read = |history: &str| {
            let made = job(COLUMNS, &text(history, "kind = 'din'"));
            assert_reloads(&made);
            made.features.categorical[1].values.clone()
        };
        let values = read(HISTORY);
        assert_eq!(values.sequence(), Some(&Sequence { length: 5, keep: KeptEnd::Last, pad: PadSide::Left }));
        assert_eq!(values.separator(), Some("|"));
        let values = read(&HISTORY.replace("length = 5", "length = 2, keep = 'first', pad = 'right'"));
        assert_eq!(values.sequence(), Some(&Sequence { length: 2, keep: KeptEnd::First, pad: PadSide::Right }));
    }

    #[test]
    fn the_only_other_feature_of_the_table_is_the_target() {
        let pairs = |model: &str| match job(COLUMNS, &text(HISTORY, model)).model {
            Model::Din { attention, .. } => attention,
            other => panic!("{other:?}"),
        };
        let expected = [AttentionPair { sequence: "history".into(), target: "movie".into() }];
        assert_eq!(pairs("kind = 'din'"), expected);
        assert_eq!(pairs("kind = 'din'\nattention = [{ sequence = 'history', target = 'movie' }]"), expected);
    }

    #[test]
    fn features_that_din_cannot_read_are_refused() {
        let alone = HISTORY.replace("table = 'movie', ", "");
        let rows = r#"
            ALONE => the sequence "history" has no target: no other feature reads the table "history"
            HISTORY, { column = 'last', table = 'movie' } => the sequence "history" has several targets: movie, last
            'movie' => the network reads a sequence, and no feature is one
            'movie', { column = 'h', table = 'movie', sequence = { length = 5 }, separator = '|', pooling = 'sum' } => `pooling` of a sequence has no meaning
            'movie', { column = 'h', table = 'movie', sequence = { length = 0 }, separator = '|' } => …
        "#;
        let features = |keys: &str| keys.replace("ALONE", &alone).replace("HISTORY", HISTORY);
        assert_problems_with(COLUMNS, |keys| text(&features(keys), "kind = 'din'"), rows);
        let found = problems(COLUMNS, &text(&HISTORY.replace("separator = '|', ", ""), "kind = 'din'"));
        assert_eq!(found[0], "a sequence needs several values in a cell");
    }

    #[test]
    fn a_pair_names_a_sequence_and_a_feature_of_the_same_table() {
        let rows = r#"
            HISTORY | { sequence = 'movie', target = 'history' } => … & no feature with `sequence` is named "movie" & no feature without `sequence` is named "history"
            HISTORY | PAIR, PAIR => the same sequence and target twice
            HISTORY, 'user' | { sequence = 'history', target = 'user' } => "history" and its target "user" read two tables
            HISTORY, { column = 'seen', table = 'movie', separator = '/', sequence = { length = 3 } } | PAIR => the sequence "seen" has no target
        "#;
        let paired = |keys: &str| {
            let (features, pairs) = keys.split_once(" | ").unwrap();
            let pairs = pairs.replace("PAIR", "{ sequence = 'history', target = 'movie' }");
            text(&features.replace("HISTORY", HISTORY), &format!("kind = 'din'\nattention = [{pairs}]"))
        };
        assert_problems_with(COLUMNS, paired, rows);
    }

    #[test]
    fn a_sequence_and_its_target_have_the_same_ids() {
        let rows = r#"
            , hash_size = 100  |                     => the sequence "history" has an id a category, and its target "movie" has hash_size = 100
            , vocabulary = {}  | , vocabulary = { min_count = 2 } => the sequence "history" has a vocabulary of min_count = 2 and max_size = 65536, and its target "movie" has a vocabulary of min_count = 10 and max_size = 65536
            , date = 'hour'    |                     => the sequence "history" has an id a category, and its target "movie" has an id a category of parts of a date
            , hash_size = 100  | , hash_size = 100   => fine
            , vocabulary = { min_count = 2 } | , vocabulary = { min_count = 2 } => fine
        "#;
        for model in ["kind = 'din'", "kind = 'bst'\nattention = [{ sequence = 'history', target = 'movie' }]"] {
            let paired = |keys: &str| {
                let (target, sequence) = keys.split_once('|').unwrap();
                let rest = "column = 'history', table = 'movie', separator = '|', sequence = { length = 5 }";
                text(&format!("{{ column = 'movie'{target} }}, {{ {rest}{sequence} }}"), model)
            };
            assert_problems_with(COLUMNS, paired, rows);
        }
    }

    #[test]
    fn heads_divide_the_dim_and_networks_read_what_they_can() {
        let heads = |keys: &str| job(COLUMNS, &text(HISTORY, &format!("kind = 'bst'\nheads = 8\n{keys}")));
        assert!(matches!(heads("").model, Model::Bst { heads: 8, layers: 1, ffn: 64, .. }));
        assert!(matches!(heads("causal = true").model, Model::Bst { causal: true, .. }));
        assert_reloads(&heads("causal = true"));
        let rows = r#"
            kind = 'bst'; heads = 3 => 3 heads do not divide the dim 16 of "history"
            kind = 'din'; activation = 'dice'; [train]; mode = 'async' => mode "async" keeps no running statistics, which Dice needs
            kind = 'ffnn'      => the network of `model.kind` reads no sequence, and "history" is one
            kind = 'dcnv2'     => the network of `model.kind` reads no sequence, and "history" is one
            kind = 'deepfm'    => the network of `model.kind` reads no sequence, and "history" is one
            kind = 'wide_deep' => the network of `model.kind` reads no sequence, and "history" is one
            kind = 'wukong'    => the network of `model.kind` reads no sequence, and "history" is one
        "#;
        assert_problems_with(COLUMNS, |model| text(HISTORY, model), rows);
    }
}
