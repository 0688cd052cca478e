//! `[model]`, `[optimizer]` and `[train]`.

use super::JobResolver;
use crate::document::KeyPath;
use crate::settings::{Device, Features, Mode, Model, StreamGates, Table, TrainSettings};
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
            Model::Din { .. }
            | Model::Ffnn { .. }
            | Model::Dcnv2 { .. }
            | Model::WideDeep { .. }
            | Model::SharedBottom { .. }
            | Model::Mmoe { .. }
            | Model::Ple { .. } => {}
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

    /// The key that sets the dim of a table.
    fn dim_of(&self, table: &Table, features: &Features, tables: &[Table]) -> KeyPath {
        let own = KeyPath::from("tables").key(&table.name).key("dim");
        let written = |path: &KeyPath| self.context.document.find(path).is_some();
        let uses = |index: &usize| tables[features.categorical[*index].table].name == table.name;
        let of_feature = |index| KeyPath::from("features.categorical").index(index).key("dim");
        let candidates = (0..features.categorical.len()).filter(uses).map(of_feature);
        std::iter::once(own).chain(candidates).find(written).unwrap_or_else(|| KeyPath::from("embedding.dim"))
    }

    /// Each penalty is of a categorical feature.
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::fixture::{CRITEO, DELIMITED, job, problems};
    use crate::settings::{CrossStructure, DenseOptimizer, DenseUpdates, NonFinitePolicy, RateSchedule};

    #[test]
    fn mode_sync_refuses_a_device() {
        assert_eq!(job(CRITEO, "").train.device, Device::Cpu);
        assert_eq!(job(CRITEO, "[train]\ndevice = 'cuda'\nprecision = 'f16'\n").train.device, Device::Cuda);
        let found = problems(CRITEO, "[train]\ndevice = 'cuda'\nmode = 'sync'\n");
        assert_eq!(found, ["mode \"sync\" is bit-exact, but a CUDA device adds in no fixed order"]);
    }

    #[test]
    fn staleness_follows_the_mode() {
        let staleness = |train: &str| job(CRITEO, &format!("[train]\n{train}\n")).train.staleness;
        assert_eq!(staleness(""), 4);
        assert_eq!(staleness("mode = 'sync'"), 0);
        assert_eq!(staleness("staleness = 0"), 0);
        assert_eq!(staleness("mode = 'sync'\nstaleness = 0"), 0);
        let found = problems(CRITEO, "[train]\nmode = 'sync'\nstaleness = 1\n");
        assert_eq!(found, ["mode \"sync\" allows no staleness"]);
    }

    #[test]
    fn threads_are_planned_unless_given() {
        let planned = crate::threads::Machine::this().plan_threads();
        let automatic = job(CRITEO, "");
        assert_eq!((automatic.data.threads, automatic.train.threads), (planned.parse, planned.torch));
        let given = job(CRITEO, "threads = 5\n[train]\nthreads = 6\n");
        assert_eq!((given.data.threads, given.train.threads), (5, 6));
    }

    #[test]
    fn the_default_network_is_a_dlrm() {
        assert_eq!(job(CRITEO, "").model, job(CRITEO, "[model]\nkind = 'dlrm'\n").model);
        assert!(
            matches!(job(CRITEO, "[model]\nkind = 'ffnn'\nhidden = []\n").model, Model::Ffnn { hidden, .. } if hidden.is_empty())
        );
    }

    #[test]
    fn the_preset_has_the_papers_widths() {
        let hidden = |model: &str| match job(CRITEO, &format!("[model]\nkind = 'ffnn'\n{model}\n")).model {
            Model::Ffnn { hidden, .. } => hidden,
            other => panic!("{other:?}"),
        };
        assert_eq!(hidden("hidden = 'persia'"), [4096, 2048, 1024, 512, 256]);
        assert_eq!(hidden("hidden = [7]"), [7]);
        assert_eq!(hidden(""), [256, 128]);
        let found = problems(CRITEO, "[model]\nkind = 'ffnn'\nhidden = 'persya'\n");
        assert_eq!(found, ["`model.hidden` has no choice \"persya\""]);
        assert_eq!(problems(CRITEO, "[model]\nkind = 'ffnn'\nhidden = [0]\n").len(), 1);
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
    fn each_kind_of_network_has_its_keys() {
        let model = |text: &str| job(CRITEO, &format!("[model]\n{text}\n")).model;
        let (hidden, dropout) = (vec![256, 128], 0.0);
        let stacked = CrossStructure::Stacked;
        let full = Model::Dcnv2 { cross_layers: 3, rank: None, structure: stacked, hidden: hidden.clone(), dropout };
        assert_eq!(model("kind = 'dcnv2'"), full);
        let text = "kind = 'dcnv2'\ncross_layers = 2\nrank = 428\nstructure = 'parallel'\nhidden = []\ndropout = 0.5";
        let structure = CrossStructure::Parallel;
        let low = Model::Dcnv2 { cross_layers: 2, rank: Some(428), structure, hidden: vec![], dropout: 0.5 };
        assert_eq!(model(text), low);
        assert_eq!(model("kind = 'deepfm'"), Model::DeepFm { hidden: hidden.clone(), dropout });
        assert_eq!(model("kind = 'wide_deep'"), Model::WideDeep { hidden: hidden.clone(), dropout });
        let (fmb_hidden, bottom) = (vec![256], vec![256, 64]);
        let wukong = Model::Wukong { layers: 3, fmb: 8, lcb: 8, rank: 8, fmb_hidden, bottom, top: hidden, dropout };
        assert_eq!(model("kind = 'wukong'"), wukong);
    }

    #[test]
    fn tables_that_a_network_cannot_use_are_refused() {
        let one = problems(CRITEO, "[embedding]\ndim = 1\n[model]\nkind = 'deepfm'\n");
        assert_eq!(one, ["a DeepFM needs tables of dim 2 or more: \"C1\" has 1"]);
        let differ = problems(CRITEO, "[model]\nkind = 'deepfm'\n[tables]\nC2 = { dim = 8 }\n");
        assert_eq!(differ, ["a DeepFM needs tables of one dim: \"C2\" has 8, 25 tables have 16"]);
        let differ = problems(CRITEO, "[model]\nkind = 'wukong'\n[tables]\nC2 = { dim = 8 }\n");
        assert_eq!(differ, ["a Wukong needs tables of one dim: \"C2\" has 8, 25 tables have 16"]);
        // 13 numbers and 26 vectors of 16 values.
        let rank = problems(CRITEO, "[model]\nkind = 'dcnv2'\nrank = 429\n");
        assert_eq!(rank, ["rank 429 is not below 429, the width of the cross layers' input"]);
        assert_eq!(job(CRITEO, "[model]\nkind = 'wide_deep'\n[tables]\nC2 = { dim = 1 }\n").tables[1].dim, 1);
    }

    #[test]
    fn a_module_needs_trust_and_a_hash() {
        let text = |sha256: &str, rest: &str| {
            format!("[model]\nkind = 'torchscript'\nfile = 'net.pt'\nsha256 = '{sha256}'\n{rest}\n")
        };
        let file = PathBuf::from("/jobs/net.pt");
        let expected = Model::TorchScript { file, sha256: "ab".repeat(32), trust: true };
        assert_eq!(job(CRITEO, &text(&"Ab".repeat(32), "trust = true")).model, expected);
        let untrusted = ["a TorchScript module can run code of its author when it is loaded"];
        assert_eq!(problems(CRITEO, &text(&"ab".repeat(32), "")), untrusted);
        assert_eq!(problems(CRITEO, &text(&"ab".repeat(32), "trust = false")), untrusted);
        let no_hash = ["model.sha256 is not a SHA-256 hash"];
        assert_eq!(problems(CRITEO, &text(&"xy".repeat(32), "trust = true")), no_hash);
    }

    #[test]
    fn a_penalty_is_of_a_feature() {
        let text = |l2: &str| format!("[train]\nembedding_l2 = 0.5\nfeature_l2 = {{ {l2} }}\n");
        let made = job(CRITEO, &text("C1 = 0.25, C26 = 0"));
        assert_eq!(
            made.train.feature_l2.iter().map(|(name, l2)| (&name[..], *l2)).collect::<Vec<_>>(),
            [("C1", 0.25), ("C26", 0.0)]
        );
        let again =
            crate::Job::parse(&made.to_toml(), std::path::Path::new("/jobs/job.toml"), &crate::Overrides::none());
        assert_eq!(again.unwrap(), made);
        assert_eq!(
            problems(CRITEO, &text("C99 = 0.1, I1 = 1")),
            ["no categorical feature is named \"C99\"", "no categorical feature is named \"I1\""]
        );
        assert_eq!(problems(CRITEO, &text("C1 = -1")).len(), 1);
        let changed = job(CRITEO, &text("C1 = 0.125")).changes_since(&job(CRITEO, &text("C1 = 0.25")));
        assert_eq!(changed.iter().map(ToString::to_string).collect::<Vec<_>>(), ["train.feature_l2.C1: 0.25 → 0.125"]);
        assert!(changed[0].may_go_on());
    }

    #[test]
    fn updates_of_the_dense_network_are_free_unless_bounded() {
        assert_eq!(job(CRITEO, "").train.updates, DenseUpdates::default());
        let text = "[train]\nclip_value = 5\nclip_norm = 1.5\nnon_finite = 'skip'\n\
                    schedule = { kind = 'cosine', warmup = 10, decay = 90, floor = 0.5 }\n";
        let schedule = RateSchedule::Cosine { warmup: 10.into(), decay: 90.into(), floor: 0.5 };
        let (clip_value, clip_norm, non_finite) = (Some(5.0), Some(1.5), NonFinitePolicy::Skip);
        assert_eq!(job(CRITEO, text).train.updates, DenseUpdates { schedule, clip_value, clip_norm, non_finite });
    }

    #[test]
    fn each_dense_optimiser_has_its_keys() {
        let optimizer = |text: &str| job(CRITEO, &format!("[optimizer]\n{text}\n")).dense_optimizer;
        assert_eq!(optimizer("kind = 'adamw'"), DenseOptimizer::AdamW { lr: 0.001, weight_decay: 0.01 });
        let adagrad = DenseOptimizer::Adagrad { lr: 0.5, epsilon: 1e-10, initial_accumulator: 0.0, weight_decay: 0.0 };
        assert_eq!(optimizer("kind = 'adagrad'\nlr = 0.5"), adagrad);
        assert_eq!(optimizer("kind = 'sgd'"), DenseOptimizer::Sgd { lr: 0.1, momentum: 0.0, weight_decay: 0.0 });
    }

    #[test]
    fn tables_of_another_dim_are_one_problem() {
        let needs = |dims: &str| [format!("a DLRM needs tables of one dim: {dims}")];
        let text = "[tables]\nC2 = { dim = 8 }\nC7 = { dim = 4 }\n";
        assert_eq!(problems(CRITEO, text), needs("\"C2\" has 8, \"C7\" has 4, 24 tables have 16"));
        // The first table is the one that differs.
        let first = "[tables]\nC1 = { dim = 8 }\n";
        assert_eq!(problems(CRITEO, first), needs("\"C1\" has 8, 25 tables have 16"));
        let many =
            "[tables]\nC1 = { dim = 1 }\nC2 = { dim = 2 }\nC3 = { dim = 3 }\nC4 = { dim = 4 }\nC5 = { dim = 5 }\n";
        let named = "\"C1\" has 1, \"C2\" has 2, \"C3\" has 3, 2 more have others, 21 tables have 16";
        assert_eq!(problems(CRITEO, many), needs(named));
        let two = "[features]\ncategorical = ['C1', { column = 'C2', dim = 8 }]\n";
        assert_eq!(problems(CRITEO, two), needs("\"C2\" has 8, the other one has 16"));
        assert_eq!(job(CRITEO, &format!("{text}[model]\nkind = 'ffnn'\n")).tables[6].dim, 4);
    }
}
