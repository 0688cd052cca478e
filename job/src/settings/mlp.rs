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
    use crate::fixture::{CRITEO, job, problems};
    use crate::settings::{MlpActivation, MlpNorm, MlpSettings, Model};

    #[test]
    fn layers_have_relu_and_no_norm_unless_the_job_says_otherwise() {
        assert_eq!(job(CRITEO, "").mlp, MlpSettings { activation: MlpActivation::Relu, norm: MlpNorm::None });
        let chosen = job(CRITEO, "[mlp]\nactivation = 'leaky_relu'\nnorm = 'layer'\n");
        assert_eq!(chosen.mlp, MlpSettings { activation: MlpActivation::LeakyRelu, norm: MlpNorm::Layer });
        assert_eq!(
            chosen.dense_parameters(),
            job(CRITEO, "").dense_parameters().map(|plain| plain + 2 * (320 + 16 + 384))
        );
        let dice = job(CRITEO, "[mlp]\nactivation = 'dice'\nnorm = 'layer'\n");
        assert_eq!(dice.dense_parameters(), chosen.dense_parameters().map(|normed| normed + 320 + 16 + 384));
        let unknown = problems(CRITEO, "[mlp]\nactivation = 'gello'\n");
        assert_eq!(unknown, ["`mlp.activation` has no choice \"gello\""]);
    }

    #[test]
    fn what_has_no_layers_or_no_statistics_is_refused() {
        let module = format!(
            "[model]\nkind = 'torchscript'\nfile = 'net.pt'\nsha256 = '{}'\ntrust = true\n[mlp]\nnorm = 'batch'\n",
            "ab".repeat(32)
        );
        assert_eq!(problems(CRITEO, &module), ["a TorchScript module has its own layers"]);
        let asynchronous = "[train]\nmode = 'async'\n[mlp]\nnorm = 'batch'\n";
        assert_eq!(
            problems(CRITEO, asynchronous),
            ["mode \"async\" keeps no running statistics, which batch norm needs"]
        );
        let dice = "[train]\nmode = 'async'\n[mlp]\nactivation = 'dice'\n";
        assert_eq!(problems(CRITEO, dice), ["mode \"async\" keeps no running statistics, which Dice needs"]);
        let towers = "[model]\nkind = 'mmoe'\n[mlp]\nactivation = 'dice'\n";
        assert_eq!(problems(CRITEO, towers), ["the towers and experts of networks for several labels take no Dice"]);
    }

    fn gates(gate: &str) -> Option<StreamGates> {
        match job(CRITEO, &format!("[model]\nkind = 'finalmlp'\n{gate}\n")).model {
            Model::FinalMlp { gate, .. } => gate,
            other => panic!("{other:?}"),
        }
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
        let text = "[model]\nkind = 'finalmlp'\ngate = { hidden = [], first = ['C2', 'I13'] }\n";
        let made = job(CRITEO, text);
        let again =
            crate::Job::parse(&made.to_toml(), std::path::Path::new("/jobs/job.toml"), &crate::Overrides::none());
        assert_eq!(again.unwrap(), made);
    }

    #[test]
    fn gates_name_features_and_heads_divide_the_streams() {
        let found = |text: &str| problems(CRITEO, &format!("[model]\nkind = 'finalmlp'\n{text}\n"));
        assert_eq!(
            found("gate = { first = ['C99'], second = ['C1', 'I1', 'c2'] }"),
            ["no feature is named \"C99\"", "no feature is named \"c2\""]
        );
        assert_eq!(found("gate = { first = ['C1', 'C1'] }"), ["the gate reads \"C1\" twice"]);
        assert_eq!(found("heads = 8\nfirst = [12]"), ["8 heads do not divide the 12 values of the first stream"]);
        assert_eq!(found("heads = 8\nsecond = [16, 9]"), ["8 heads do not divide the 9 values of the second stream"]);
        assert_eq!(found("first = []").len(), 1);
    }
}
