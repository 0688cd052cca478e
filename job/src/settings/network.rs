//! What the job says of its network: blocks over the job's features, widths by size, words. Each kind is a file of
//! `zagros_network::networks`, and a line in each match below.

use serde_json::Value as Json;
use zagros_network::layout::DenseLayout;
use zagros_network::networks::{self, GateForm, WukongForm};
use zagros_network::wiring::{Network, NetworkInputs, NumberEmbedding, SequencePair, Wiring};

use super::{AttentionPair, Categorical, ExpertLayers, Job, Model, ModelSize, PadSide};

impl Job {
    /// Weights and biases of the dense network; `None` for a user's module, which is not loaded for this.
    pub fn dense_parameters(&self) -> Option<u64> {
        Some(self.dense_layout()?.parameter_count())
    }

    /// The tensors of the dense network; `None` for a user's module.
    pub fn dense_layout(&self) -> Option<DenseLayout> {
        Some(self.network()?.layout)
    }

    /// The blocks of the dense network; `None` for a user's module.
    pub fn network(&self) -> Option<Network> {
        self.network_of(&self.model)
    }

    /// As [`Self::network`], of another network over the same features.
    pub(crate) fn network_of(&self, model: &Model) -> Option<Network> {
        let mut net = Wiring::new(self.network_inputs(model), self.mlp);
        let wiring = &mut net;
        let output = match model {
            Model::Dlrm { bottom, top, .. } => networks::dlrm(wiring, bottom, top),
            Model::Ffnn { hidden, .. } => networks::ffnn(wiring, hidden),
            Model::Dcnv2 { cross_layers, rank, structure, hidden, .. } => {
                networks::dcnv2(wiring, *cross_layers, *rank, *structure, hidden)
            }
            Model::DeepFm { hidden, .. } => networks::deepfm(wiring, hidden),
            Model::WideDeep { hidden, .. } => networks::wide_deep(wiring, hidden),
            Model::Wukong { layers, fmb, lcb, rank, fmb_hidden, bottom, top, .. } => {
                let (layers, fmb, lcb, rank) = (*layers, *fmb, *lcb, *rank);
                networks::wukong(wiring, WukongForm { layers, fmb, lcb, rank, fmb_hidden, bottom, top })
            }
            Model::FinalMlp { first, second, heads, gate, .. } => {
                let [of_first, of_second] = [0, 1].map(|stream| {
                    let gate = gate.as_ref()?;
                    let names = if stream == 0 { &gate.first } else { &gate.second };
                    Some(GateForm { hidden: &gate.hidden, places: self.input_columns(names) })
                });
                networks::finalmlp(wiring, [(first, of_first), (second, of_second)], *heads)
            }
            Model::SharedBottom { bottom, tower, .. } => networks::shared_bottom(wiring, bottom, tower),
            Model::Mmoe { experts, layers: ExpertLayers { hidden, tower, .. } } => {
                networks::mmoe(wiring, *experts, hidden, tower)
            }
            Model::Ple { levels, shared_experts, task_experts, layers: ExpertLayers { hidden, tower, .. } } => {
                networks::ple(wiring, *levels, *shared_experts, *task_experts, hidden, tower)
            }
            Model::Din { attention_hidden, activation, softmax, hidden, .. } => {
                networks::din(wiring, attention_hidden, *activation, *softmax, hidden)
            }
            Model::Bst { layers, heads, ffn, causal, hidden, .. } => {
                networks::bst(wiring, *layers, *heads, *ffn, *causal, hidden)
            }
            Model::TorchScript { .. } => return None,
        };
        Some(net.finish(output))
    }

    fn network_inputs(&self, model: &Model) -> NetworkInputs {
        let dim = |feature: &Categorical| self.tables[feature.table].dim;
        let (sequences, vectors): (Vec<_>, Vec<_>) =
            self.features.categorical.iter().partition(|feature| feature.values.sequence().is_some());
        let dims: Vec<usize> = vectors.iter().map(|feature| dim(feature)).collect();
        let pair = |pair: &AttentionPair| {
            let place = sequences.iter().position(|feature| feature.name == pair.sequence)?;
            let width = |feature: &&Categorical| Some(feature.values.sequence()?.input_width(dim(feature)));
            let width_before: usize = sequences[..place].iter().filter_map(width).sum();
            let (feature, settings) = (sequences[place], sequences[place].values.sequence()?);
            let target = vectors.iter().position(|feature| feature.name == pair.target)?;
            Some(SequencePair {
                offset: dims.iter().sum::<usize>() + width_before,
                dim: dim(feature),
                length: settings.length,
                pads_left: settings.pad == PadSide::Left,
                target: dims[..target].iter().sum(),
            })
        };
        let embedding = self.features.numeric_embedding.map(|settings| NumberEmbedding {
            embedded: self.features.single_numbers(),
            frequencies: settings.frequencies,
            dim: settings.dim,
            deviation: settings.sigma,
        });
        NetworkInputs {
            numbers: self.features.numeric_inputs(),
            embedding,
            sequences: model.attention_pairs().iter().filter_map(pair).collect(),
            dims,
            outputs: self.features.targets.iter().map(super::Target::output_count).collect(),
        }
    }

    /// The network with so many hidden layers that all follow one width, as `model.size` gives them.
    pub(crate) fn model_of_width(&self, depth: usize, width: u64, size: ModelSize) -> Model {
        let units = |width: u64| i64::try_from(width.max(1)).unwrap_or(i64::MAX);
        let layers = |count: usize| vec![units(width); count];
        let mut model = self.model.clone();
        match &mut model {
            Model::Dlrm { bottom, top, .. } => {
                (*bottom, *top) = (vec![units(width / 2), units(width / 4)], layers(depth))
            }
            Model::Ffnn { hidden, .. }
            | Model::DeepFm { hidden, .. }
            | Model::WideDeep { hidden, .. }
            | Model::Din { hidden, .. }
            | Model::Bst { hidden, .. } => *hidden = layers(depth),
            Model::Dcnv2 { rank, hidden, .. } => {
                // From half of the input's width on, a matrix of full rank has no more weights.
                let vectors: usize =
                    self.features.categorical.iter().map(|feature| self.tables[feature.table].dim).sum();
                let (input, quarter) = (self.features.numeric_values() + vectors, (width / 4).max(1));
                *rank = usize::try_from(quarter).ok().filter(|rank| 2 * rank < input);
                *hidden = layers(depth);
            }
            Model::Wukong { layers: stack, fmb, lcb, rank, fmb_hidden, bottom, top, .. } => {
                let vectors = usize::try_from(width / 16).unwrap_or(usize::MAX).clamp(2, 4096);
                (*stack, *fmb, *lcb) = (depth, vectors, vectors);
                *rank = if size.0 < 10_000_000 { 8 } else { 16 };
                (*fmb_hidden, *bottom, *top) = (layers(1), vec![units(width / 2)], layers(2));
            }
            Model::FinalMlp { first, second, .. } => (*first, *second) = (layers(depth), layers(depth)),
            Model::SharedBottom { bottom, tower, .. } => (*bottom, *tower) = (layers(depth), vec![units(width / 2)]),
            Model::Mmoe { layers: ExpertLayers { hidden, tower, .. }, .. }
            | Model::Ple { layers: ExpertLayers { hidden, tower, .. }, .. } => {
                (*hidden, *tower) = (layers(depth - 1), vec![units(width / 2)]);
            }
            Model::TorchScript { .. } => {}
        }
        model
    }
}

impl Model {
    /// Every built-in network, and what it is.
    pub const NETWORKS: [(&str, &str); 12] = [
        ("dlrm", "bottom MLP, dot products of all vectors, top MLP"),
        ("ffnn", "MLP over all features side by side"),
        ("dcnv2", "cross layers, then a deep MLP"),
        ("deepfm", "factorisation machine beside a deep MLP"),
        ("wide_deep", "linear model beside a deep MLP"),
        ("wukong", "stacked factorisation machine blocks, top MLP"),
        ("finalmlp", "two MLPs and a bilinear product of both"),
        ("shared_bottom", "a tower of each label over one MLP"),
        ("mmoe", "experts that all labels share, gates, towers"),
        ("ple", "shared and own experts of each label, towers"),
        ("din", "attention of a target to a sequence, MLP"),
        ("bst", "transformer over a sequence, MLP"),
    ];

    /// In words: its kind and its keys.
    pub fn describe(&self) -> String {
        if let Self::TorchScript { file, .. } = self {
            return format!("TorchScript module {}", file.display());
        }
        let Ok(Json::Object(keys)) = serde_json::to_value(self) else { return String::new() };
        let written = keys.iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| match value {
            Json::String(kind) if key == "kind" => kind.clone(),
            value => format!("{key} {value}"),
        });
        written.collect::<Vec<_>>().join(", ")
    }

    /// Its name, if the network has one output alone.
    pub(crate) fn with_one_output(&self) -> Option<&'static str> {
        match self {
            Self::DeepFm { .. } => Some("DeepFM"),
            Self::WideDeep { .. } => Some("Wide & Deep"),
            _ => None,
        }
    }

    /// The width that µP goes by: of the first hidden layer of the network's main MLP. `None` without hidden layers, and for a user's module.
    pub fn main_width(&self) -> Option<u64> {
        let widths = match self {
            Self::Dlrm { top, .. } | Self::Wukong { top, .. } => top,
            Self::Ffnn { hidden, .. }
            | Self::Dcnv2 { hidden, .. }
            | Self::DeepFm { hidden, .. }
            | Self::WideDeep { hidden, .. }
            | Self::Din { hidden, .. }
            | Self::Bst { hidden, .. }
            | Self::Mmoe { layers: ExpertLayers { hidden, .. }, .. }
            | Self::Ple { layers: ExpertLayers { hidden, .. }, .. } => hidden,
            Self::FinalMlp { first, .. } => first,
            Self::SharedBottom { bottom, tower, .. } => {
                if bottom.is_empty() {
                    tower
                } else {
                    bottom
                }
            }
            Self::TorchScript { .. } => return None,
        };
        widths.first().map(|width| width.unsigned_abs())
    }

    /// The keys that the recipe of a network gives, and that a job with `model.size` therefore lacks.
    pub(crate) fn width_keys(&self) -> &'static [&'static str] {
        match self {
            Self::Dlrm { .. } => &["bottom", "top"],
            Self::Ffnn { .. } | Self::DeepFm { .. } | Self::WideDeep { .. } | Self::Din { .. } | Self::Bst { .. } => {
                &["hidden"]
            }
            Self::Dcnv2 { .. } => &["hidden", "rank"],
            Self::Wukong { .. } => &["layers", "fmb", "lcb", "rank", "fmb_hidden", "bottom", "top"],
            Self::FinalMlp { .. } => &["first", "second"],
            Self::SharedBottom { .. } => &["bottom", "tower"],
            Self::Mmoe { .. } | Self::Ple { .. } => &["hidden", "tower"],
            Self::TorchScript { .. } => &[],
        }
    }

    /// Share of hidden units that a training step drops.
    pub fn dropout_share(&self) -> f64 {
        match self {
            Self::Dlrm { dropout, .. }
            | Self::Ffnn { dropout, .. }
            | Self::Dcnv2 { dropout, .. }
            | Self::DeepFm { dropout, .. }
            | Self::WideDeep { dropout, .. }
            | Self::Wukong { dropout, .. }
            | Self::FinalMlp { dropout, .. }
            | Self::SharedBottom { dropout, .. }
            | Self::Mmoe { layers: ExpertLayers { dropout, .. }, .. }
            | Self::Ple { layers: ExpertLayers { dropout, .. }, .. }
            | Self::Din { dropout, .. }
            | Self::Bst { dropout, .. } => *dropout,
            // The module has its own dropout.
            Self::TorchScript { .. } => 0.0,
        }
    }

    /// The sequences that the network reads, each with its target.
    pub fn attention_pairs(&self) -> &[AttentionPair] {
        if let Self::Din { attention, .. } | Self::Bst { attention, .. } = self { attention } else { &[] }
    }
}

impl Job {
    /// Numeric values, then vectors. A name that a numeric and a categorical feature have is both.
    pub fn input_columns(&self, names: &[String]) -> Vec<usize> {
        let mut columns = Vec::new();
        let mut end = 0;
        let numeric =
            self.features.numeric.iter().map(|feature| (feature.name(), self.features.numeric_width(feature)));
        let vectors = self.features.categorical.iter().filter(|feature| feature.values.sequence().is_none());
        let vectors = vectors.map(|feature| (feature.name.as_str(), self.tables[feature.table].dim));
        for (name, width) in numeric.chain(vectors) {
            if names.iter().any(|named| named == name) {
                columns.extend(end..end + width);
            }
            end += width;
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{CRITEO, job};

    #[test]
    fn flop_count_what_is_multiplied() {
        // 27 vectors of 16 values, 13 numbers; bottom 256, 64, 16, top 367, 256, 128, 1.
        let dlrm = job(CRITEO, "").dense_layout().unwrap();
        let weights = 13 * 256 + 256 * 64 + 64 * 16 + 367 * 256 + 256 * 128 + 128;
        assert_eq!(dlrm.step_flop(), 6 * (weights + 27 * 26 / 2 * 16));
        let ffnn = job(CRITEO, "[model]\nkind = 'ffnn'\nhidden = [8]\n").dense_layout().unwrap();
        assert_eq!(ffnn.step_flop(), 6 * (429 * 8 + 8));
    }
}

#[cfg(test)]
mod mlp_tests {
    use crate::fixture::{CRITEO, assert_problems, assert_reloads, job, module};
    use crate::settings::{MlpActivation, MlpNorm, MlpSettings, Model, StreamGates};

    #[test]
    fn layers_have_relu_and_no_norm_unless_the_job_says_otherwise() {
        assert_eq!(job(CRITEO, "").mlp, MlpSettings { activation: MlpActivation::Relu, norm: MlpNorm::None });
        let chosen = job(CRITEO, "[mlp]\nactivation = 'leaky_relu'\nnorm = 'layer'\n");
        assert_eq!(chosen.mlp, MlpSettings { activation: MlpActivation::LeakyRelu, norm: MlpNorm::Layer });
        let dice = job(CRITEO, "[mlp]\nactivation = 'dice'\nnorm = 'layer'\n");
        let [plain, normed, dice] = [job(CRITEO, ""), chosen, dice].map(|job| job.dense_parameters().unwrap());
        assert_eq!([normed - plain, dice - normed], [2 * (320 + 16 + 384), 320 + 16 + 384]);
    }

    #[test]
    fn what_has_no_layers_or_no_statistics_is_refused() {
        let rows = r#"
            [mlp]; activation = 'gello' => `mlp.activation` has no choice "gello"
            [train]; mode = 'async'; [mlp]; norm = 'batch' => mode "async" keeps no running statistics, which batch norm needs
            [train]; mode = 'async'; [mlp]; activation = 'dice' => mode "async" keeps no running statistics, which Dice needs
            [model]; kind = 'mmoe'; [mlp]; activation = 'dice' => the towers and experts of networks for several labels take no Dice
            [model]; kind = 'finalmlp'; gate = { first = ['C99'], second = ['C1', 'I1', 'c2'] } => no feature is named "C99" & no feature is named "c2"
            [model]; kind = 'finalmlp'; gate = { first = ['C1', 'C1'] } => the gate reads "C1" twice
            [model]; kind = 'finalmlp'; heads = 8; first = [12] => 8 heads do not divide the 12 values of the first stream
            [model]; kind = 'finalmlp'; heads = 8; second = [16, 9] => 8 heads do not divide the 9 values of the second stream
            [model]; kind = 'finalmlp'; first = [] => …
        "#;
        assert_problems(CRITEO, rows);
        let rows = "[mlp]; norm = 'batch' => a TorchScript module has its own layers";
        assert_problems(&format!("{CRITEO}{}", module()), rows);
    }

    fn gates(gate: &str) -> Option<StreamGates> {
        let made = job(CRITEO, &format!("[model]\nkind = 'finalmlp'\n{gate}\n"));
        if let Model::FinalMlp { gate, .. } = made.model { gate } else { panic!("{:?}", made.model) }
    }

    #[test]
    fn gates_are_learned_factors_unless_they_read_features() {
        assert_eq!(gates(""), None);
        assert_eq!(gates("gate = {}"), Some(StreamGates { hidden: vec![64], first: vec![], second: vec![] }));
        let given = gates("gate = { hidden = [], first = ['C2', 'I13'], second = ['C1'] }").unwrap();
        let made = job(CRITEO, "[embedding]\ndim = 2\n[model]\nkind = 'finalmlp'\n");
        assert_eq!(made.input_columns(&given.first), [12, 15, 16]);
        assert_eq!(made.input_columns(&given.second), [13, 14]);
        assert_eq!(made.input_columns(&[]), [0; 0]);
        assert_reloads(&job(CRITEO, "[model]\nkind = 'finalmlp'\ngate = { hidden = [], first = ['C2', 'I13'] }\n"));
    }
}
