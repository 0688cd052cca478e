//! `[mlp]`: what follows the linear layers of the network's MLPs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Job;

/// What scales the input of each stream of a FinalMLP (Mao et al. 2023, section 3.2): a factor of 0 to 2 for each value, so that the
/// streams learn from different features.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamGates {
    /// Widths of the hidden layers of a gate that reads features, in order; an output layer is appended.
    #[serde(default = "hidden")]
    #[schemars(length(max = 64), inner(range(min = 1, max = 65536)))]
    pub hidden: Vec<i64>,
    /// Names of the features that the gate of the first stream reads, such as those of the user. Default: none, the factors are learned
    /// and the same for all samples.
    #[serde(default)]
    pub first: Vec<String>,
    /// Names of the features that the gate of the second stream reads, such as those of the item. Default: none, as for `first`.
    #[serde(default)]
    pub second: Vec<String>,
}

fn hidden() -> Vec<i64> {
    vec![64]
}

impl Job {
    /// Numeric values, then vectors. A name that a numeric and a categorical feature have is both.
    #[must_use]
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
    use super::*;
    use crate::fixture::{CRITEO, assert_problems, assert_reloads, job, module};
    use crate::settings::{MlpActivation, MlpNorm, MlpSettings, Model};

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
