//! `[mlp]`: what fits the network, and the mode.

use super::JobResolver;
use crate::settings::{AttentionActivation, MlpActivation, MlpNorm, MlpSettings, Mode, Model};

impl JobResolver<'_> {
    /// Checks that the network has layers to which the choice applies, and the mode what norm and activation need.
    pub(super) fn resolve_mlp(&mut self, mlp: MlpSettings, model: &Model, mode: Mode) -> MlpSettings {
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
        mlp
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
