//! `[model]`, `[mlp]`, `[optimizer]` and `[train]`.

use super::JobResolver;
use crate::document::KeyPath;
use crate::settings::{
    AttentionActivation, Device, Features, MlpActivation, MlpNorm, MlpSettings, Mode, Model, StreamGates, Table,
    TrainSettings,
};
use crate::suggest;

const NAMED: usize = 3;

impl JobResolver<'_> {
    pub(super) fn resolve_model(&mut self, model: Model, features: &Features, tables: &[Table]) -> Model {
        self.takes_sequences(&model, features);
        match &model {
            Model::Dlrm { .. } => {
                self.needs_one_dim("DLRM", features, tables);
                self.dlrm_needs_pairs(features);
            }
            Model::DeepFm { .. } => {
                self.needs_one_dim("DeepFM", features, tables);
                self.deepfm_needs_factors(features, tables);
            }
            Model::Wukong { .. } => self.needs_one_dim("Wukong", features, tables),
            Model::Dcnv2 { rank: Some(rank), .. } => self.rank_is_below(*rank, features, tables),
            Model::TorchScript { file, sha256, trust } => {
                self.torchscript(sha256, *trust);
                let file = self.absolute_path(&KeyPath::from("model.file"), &file.to_string_lossy());
                return Model::TorchScript { file, sha256: sha256.to_ascii_lowercase(), trust: *trust };
            }
            Model::Bst { heads, .. } => self.heads_divide(*heads, features, tables),
            Model::FinalMlp { gate, .. } => gate.iter().for_each(|gate| self.gates_read(gate, features)),
            _ => {}
        }
        let mut model = model;
        if let Model::Din { attention, .. } | Model::Bst { attention, .. } = &mut model {
            *attention = self.attention_pairs(attention, features, tables);
        }
        model
    }

    fn torchscript(&mut self, sha256: &str, trust: bool) {
        if sha256.len() != 64 || !sha256.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let help = "write the 64 hexadecimal digits that `sha256sum` prints for the file";
            self.problem("model.sha256", "model.sha256 is not a SHA-256 hash", "not 64 hexadecimal digits", help);
        }
        if !trust {
            let help = "set `trust = true` if you know who made the file";
            let message = "a TorchScript module can run code of its author when it is loaded";
            self.problem("model.kind", message, "not trusted", help);
        }
    }

    /// One vector alone has no dot product.
    fn dlrm_needs_pairs(&mut self, features: &Features) {
        if features.numeric.is_empty() && features.categorical.len() == 1 {
            let help = r#"add a feature, or use [model] kind = "ffnn""#;
            let message = "a DLRM multiplies features with each other, and there is one";
            self.problem("model.kind", message, "one feature", help);
        }
    }

    fn deepfm_needs_factors(&mut self, features: &Features, tables: &[Table]) {
        let Some(table) = tables.iter().find(|table| table.dim < 2) else { return };
        let message = format!("a DeepFM needs tables of dim 2 or more: \"{}\" has {}", table.name, table.dim);
        let help = "the first value of a row is the id's first-order weight, the others are its factors";
        self.problem(self.dim_of(table, features, tables), message, "leaves no factors", help);
    }

    /// Checks the rank: a matrix with a rank as high as its width costs twice as much as the full one.
    fn rank_is_below(&mut self, rank: usize, features: &Features, tables: &[Table]) {
        let vectors: usize = features.categorical.iter().map(|feature| tables[feature.table].dim).sum();
        let width = features.numeric_values() + vectors;
        if rank >= width {
            let message = format!("rank {rank} is not below {width}, the width of the cross layers' input");
            let help = "lower it (below half of the width it saves weights), or remove it for full rank";
            self.problem("model.rank", message, "too high", help);
        }
    }

    /// One problem, however many tables differ: the most frequent dim is taken for the wanted one.
    fn needs_one_dim(&mut self, model: &str, features: &Features, tables: &[Table]) {
        let count = |dim: usize| tables.iter().filter(|table| table.dim == dim).count();
        // Of dims that are equally frequent, that of the first table.
        let Some(common) = tables.iter().rev().max_by_key(|table| count(table.dim)).map(|table| table.dim) else {
            return;
        };
        let others: Vec<&Table> = tables.iter().filter(|table| table.dim != common).collect();
        let Some(first) = others.first() else { return };
        let mut named: Vec<String> =
            others.iter().take(NAMED).map(|table| format!("\"{}\" has {}", table.name, table.dim)).collect();
        if others.len() > NAMED {
            named.push(format!("{} more have others", others.len() - NAMED));
        }
        let (named, rest) = (named.join(", "), tables.len() - others.len());
        let verb = if rest == 1 { "the other one has" } else { "have" };
        let counted = if rest == 1 { String::new() } else { format!("{rest} tables ") };
        let message = format!("a {model} needs tables of one dim: {named}, {counted}{verb} {common}");
        let help = r#"give all tables the same `dim`, or use [model] kind = "ffnn""#;
        self.problem(self.dim_of(first, features, tables), message, "another dim", help);
    }

    fn dim_of(&self, table: &Table, features: &Features, tables: &[Table]) -> KeyPath {
        let own = KeyPath::from("tables").key(&table.name).key("dim");
        let written = |path: &KeyPath| self.context.document.find(path).is_some();
        let uses = |index: &usize| tables[features.categorical[*index].table].name == table.name;
        let of_feature = |index| KeyPath::from("features.categorical").index(index).key("dim");
        let candidates = (0..features.categorical.len()).filter(uses).map(of_feature);
        std::iter::once(own).chain(candidates).find(written).unwrap_or_else(|| KeyPath::from("embedding.dim"))
    }

    pub(super) fn penalties_fit(&mut self, train: &TrainSettings, features: &Features) {
        let known: Vec<&str> = features.categorical.iter().map(|feature| feature.name.as_str()).collect();
        for name in train.feature_l2.keys().filter(|name| !known.contains(&name.as_str())) {
            let help = suggest::help_with_name(name, &known, "there are");
            let message = format!("no categorical feature is named \"{name}\"");
            self.problem(KeyPath::from("train.feature_l2").key(name), message, "no such feature", help);
        }
    }

    pub(super) fn resolve_train(&mut self, train: TrainSettings) -> TrainSettings {
        let sync = train.mode == Mode::Sync;
        let is_given = self.is_given("train.staleness");
        if sync && is_given && train.staleness > 0 {
            let help = "set it to 0 or remove it, or use mode = \"hybrid\"";
            self.problem("train.staleness", "mode \"sync\" allows no staleness", "must be 0", help);
        }
        if sync && train.device == Device::Cuda {
            let message = "mode \"sync\" is bit-exact, but a CUDA device adds in no fixed order";
            let help = "use mode = \"hybrid\", or device = \"cpu\"";
            self.problem("train.device", message, "must be \"cpu\"", help);
        }
        let staleness = if sync && !is_given { 0 } else { train.staleness };
        let threads = if train.threads == 0 { self.context.threads.torch } else { train.threads };
        TrainSettings { staleness, threads, ..train }
    }

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

    fn gates_read(&mut self, gates: &StreamGates, features: &Features) {
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

impl JobResolver<'_> {
    /// Checks that the network has layers to which the choice applies, and the mode what norm and activation need.
    pub(super) fn mlp_fits(&mut self, mlp: MlpSettings, model: &Model, mode: Mode) {
        if matches!(model, Model::TorchScript { .. }) && mlp != MlpSettings::default() {
            let help = "remove [mlp], and choose activation and norm where the module is made";
            self.problem("mlp", "a TorchScript module has its own layers", "without effect", help);
        }
        if matches!(model, Model::SharedBottom { .. } | Model::Mmoe { .. } | Model::Ple { .. }) {
            self.towers_are_plain(mlp);
        }
        if mode == Mode::Async {
            self.keeps_no_statistics(mlp, model);
        }
    }

    fn towers_are_plain(&mut self, mlp: MlpSettings) {
        let (label, message) =
            ("not for this network", "the towers and experts of networks for several labels take no");
        if mlp.norm != MlpNorm::None {
            self.problem("mlp.norm", format!("{message} norm"), label, "remove it, or use kind = \"ffnn\"");
        }
        if mlp.activation == MlpActivation::Dice {
            let help = "use another activation, or kind = \"ffnn\"";
            self.problem("mlp.activation", format!("{message} Dice"), label, help);
        }
    }

    fn keeps_no_statistics(&mut self, mlp: MlpSettings, model: &Model) {
        let (label, message) = ("not in mode \"async\"", "mode \"async\" keeps no running statistics, which");
        if mlp.norm == MlpNorm::Batch {
            let help = "use norm = \"layer\", or mode = \"hybrid\"";
            self.problem("mlp.norm", format!("{message} batch norm needs"), label, help);
        }
        let in_attention = matches!(model, Model::Din { activation: AttentionActivation::Dice, .. });
        for (key, has_dice) in
            [("mlp.activation", mlp.activation == MlpActivation::Dice), ("model.activation", in_attention)]
        {
            if has_dice {
                let help = "use another activation, or mode = \"hybrid\"";
                self.problem(key, format!("{message} Dice needs"), label, help);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::fixture::{CRITEO, DELIMITED, assert_problems_with, assert_reloads, job, module};

    fn model(keys: &str) -> Model {
        job(CRITEO, &format!("[model]\n{keys}\n")).model
    }

    #[test]
    fn staleness_follows_the_mode() {
        let staleness = |train: &str| job(CRITEO, &format!("[train]\n{train}\n")).train.staleness;
        let given = ["", "mode = 'sync'", "staleness = 0", "mode = 'sync'\nstaleness = 0"];
        assert_eq!(given.map(staleness), [4, 0, 0, 0]);
    }

    #[test]
    fn a_dlrm_multiplies_features_with_and_without_numbers() {
        let features = |numeric: &str| format!("[features]\nlabel = 'y'\n{numeric}categorical = ['a', 'b']\n");
        let dlrm = &DELIMITED.replace("ffnn", "dlrm");
        let plain = job(dlrm, &features("")).dense_parameters();
        // One product, and the layers 256, 128 and 1.
        assert_eq!(plain, Some((1 + 1) * 256 + (256 + 1) * 128 + 129));
        assert!(job(dlrm, &features("numeric = ['n']\n")).dense_parameters() > plain);
    }

    #[test]
    fn the_default_network_is_a_dlrm_and_a_module_is_of_a_file() {
        assert_eq!(job(CRITEO, "").model, model("kind = 'dlrm'"));
        let expected = Model::TorchScript { file: PathBuf::from("/jobs/net.pt"), sha256: "ab".repeat(32), trust: true };
        assert_eq!(job(CRITEO, &module().replace("ab", "Ab")).model, expected);
    }

    /// A table's dim of another kind is one problem, however many tables have it. A rank is compared with 13 numbers and
    /// 26 vectors of 16 values.
    #[test]
    fn what_a_network_or_a_mode_cannot_use_is_refused() {
        let rows = r#"
            [train]; device = 'cuda'; precision = 'f16' => fine
            [train]; device = 'cuda'; mode = 'sync' => mode "sync" is bit-exact, but a CUDA device adds in no fixed order
            [model]; kind = 'ffnn'; hidden = 'persia' => `model.hidden` is text, expected a list, each item an integer from 1 to 1048576
            [model]; kind = 'ffnn'; hidden = [] => fine
            [model]; kind = 'ffnn'; hidden = [0] => …
            [embedding]; dim = 1; [model]; kind = 'deepfm' => a DeepFM needs tables of dim 2 or more: "C1" has 1
            [model]; kind = 'deepfm'; [tables]; C2 = { dim = 8 } => a DeepFM needs tables of one dim: "C2" has 8, 25 tables have 16
            [model]; kind = 'wukong'; [tables]; C2 = { dim = 8 } => a Wukong needs tables of one dim: "C2" has 8, 25 tables have 16
            [model]; kind = 'dcnv2'; rank = 429 => rank 429 is not below 429, the width of the cross layers' input
            [model]; kind = 'wide_deep'; [tables]; C2 = { dim = 1 } => fine
            [model]; kind = 'ffnn'; [tables]; C2 = { dim = 8 }; C7 = { dim = 4 } => fine
            [tables]; C2 = { dim = 8 }; C7 = { dim = 4 } => a DLRM needs tables of one dim: "C2" has 8, "C7" has 4, 24 tables have 16
            [tables]; C1 = { dim = 8 } => a DLRM needs tables of one dim: "C1" has 8, 25 tables have 16
            [tables]; C1 = { dim = 1 }; C2 = { dim = 2 }; C3 = { dim = 3 }; C4 = { dim = 4 }; C5 = { dim = 5 } => a DLRM needs tables of one dim: "C1" has 1, "C2" has 2, "C3" has 3, 2 more have others, 21 tables have 16
            MODULE trust = false => a TorchScript module can run code of its author when it is loaded
            MODULE               => a TorchScript module can run code of its author when it is loaded
            MODULE trust = true; [features]; numeric_embedding = {} => a TorchScript module reads numbers, and not `features.numeric_embedding`
            HASH trust = true    => model.sha256 is not a SHA-256 hash
            [train]; embedding_l2 = 0.5; feature_l2 = { C99 = 0.1, I1 = 1 } => no categorical feature is named "C99" & no categorical feature is named "I1"
            [train]; embedding_l2 = 0.5; feature_l2 = { C1 = -1 } => …
        "#;
        let untrusted = module().replace("trust = true", "");
        let text = |keys: &str| keys.replace("MODULE", &untrusted).replace("HASH", &untrusted.replace("ab", "xb"));
        assert_problems_with(CRITEO, text, rows);
    }

    #[test]
    fn a_penalty_is_of_a_feature() {
        let penalised = |l2: &str| job(CRITEO, &format!("[train]\nembedding_l2 = 0.5\nfeature_l2 = {{ {l2} }}\n"));
        let made = penalised("C1 = 0.25, C26 = 0");
        let penalties = made.train.feature_l2.iter().map(|(name, l2)| (&name[..], *l2));
        assert!(penalties.eq([("C1", 0.25), ("C26", 0.0)]));
        assert_reloads(&made);
        let changed = penalised("C1 = 0.125").changes_since(&penalised("C1 = 0.25"));
        assert_eq!((changed.len(), changed[0].to_string()), (1, "train.feature_l2.C1: 0.25 → 0.125".to_owned()));
        assert!(changed[0].may_go_on());
    }
}
