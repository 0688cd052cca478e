//! The network of a job: one of the kinds, its first weights and its forward. The plainest of them is here too.

use tch::Tensor;
use tch::nn::VarStore;
use zagros_job::{ExpertLayers, Job, Model};

use super::bst::{Bst, BstForm};
use super::dcnv2::{Dcnv2, Dcnv2Form};
use super::deepfm::DeepFm;
use super::din::{Din, DinForm};
use super::dlrm::Dlrm;
use super::finalmlp::{FinalMlp, FinalMlpForm, GatesForm};
use super::tasks::{SharedForm, TasksNetwork};
use super::torchscript::TorchScript;
use super::wide_deep::WideDeep;
use super::wukong::{Wukong, WukongForm};
use crate::model::layers::{
    LayerCalls, LentBuffers, MadeBeside, Mlp, ModuleBuffers, NumericEmbeddings, ValuesPlace, WeightBuilder,
    parse_widths,
};
use crate::model::{InputShape, ModelError};

#[derive(Debug)]
pub(crate) enum DenseNetwork {
    Dlrm(Dlrm),
    Ffnn(Ffnn),
    Dcnv2(Dcnv2),
    DeepFm(DeepFm),
    WideDeep(WideDeep),
    Wukong(Wukong),
    FinalMlp(Box<FinalMlp>),
    Tasks(TasksNetwork),
    Din(Din),
    Bst(Bst),
    TorchScript(TorchScript),
}

/// A network before its first step.
pub(crate) struct BuiltNetwork {
    /// What numbers become before the network reads them.
    pub(crate) numbers: Option<NumericEmbeddings>,
    pub(crate) network: DenseNetwork,
    pub(crate) buffers: ModuleBuffers,
    pub(crate) lent: LentBuffers,
    /// By layer: the variables whose values are elsewhere.
    pub(crate) streamed: Vec<Vec<Tensor>>,
}

impl DenseNetwork {
    /// With first weights by the job's seed, and its buffers.
    pub(crate) fn build(job: &Job, variables: &VarStore, held: ValuesPlace) -> Result<BuiltNetwork, ModelError> {
        let shape = &InputShape { numeric: job.features.numeric_values(), ..InputShape::new(job) };
        let outputs = job.features.output_count();
        let mut made = WeightBuilder::new(job, variables.root(), held);
        let weights = &mut made;
        let numbers = NumericEmbeddings::from_features(&job.features, weights)?;
        let each: Vec<usize> = job.features.targets.iter().map(zagros_job::Target::output_count).collect();
        let network = match &job.model {
            Model::Dlrm { bottom, top, .. } => Self::Dlrm(Dlrm::new(shape, bottom, top, weights)?),
            Model::Ffnn { hidden, .. } => Self::Ffnn(Ffnn::new(shape, hidden, weights)?),
            Model::Dcnv2 { cross_layers, rank, structure, hidden, .. } => {
                let form = Dcnv2Form { cross_layers: *cross_layers, rank: *rank, structure: *structure, hidden };
                Self::Dcnv2(Dcnv2::new(shape, form, weights)?)
            }
            Model::DeepFm { hidden, .. } => Self::DeepFm(DeepFm::new(shape, hidden, weights)?),
            Model::WideDeep { hidden, .. } => Self::WideDeep(WideDeep::new(shape, hidden, weights)?),
            Model::Wukong { layers, fmb, lcb, rank, fmb_hidden, bottom, top, .. } => {
                let (layers, fmb, lcb, rank) = (*layers, *fmb, *lcb, *rank);
                Self::Wukong(Wukong::new(
                    shape,
                    WukongForm { layers, fmb, lcb, rank, fmb_hidden, bottom, top },
                    weights,
                )?)
            }
            Model::FinalMlp { first, second, heads, gate, .. } => {
                let gates = gate.as_ref().map(|gate| GatesForm {
                    hidden: &gate.hidden,
                    first: job.input_columns(&gate.first),
                    second: job.input_columns(&gate.second),
                });
                let form = FinalMlpForm { first, second, heads: *heads, gates };
                Self::FinalMlp(Box::new(FinalMlp::new(shape, form, weights)?))
            }
            Model::SharedBottom { bottom, tower, .. } => {
                Self::Tasks(TasksNetwork::new(shape, SharedForm::Bottom { hidden: bottom }, tower, &each, weights)?)
            }
            Model::Mmoe { experts, layers: ExpertLayers { hidden, tower, .. } } => {
                let form = SharedForm::Mmoe { experts: *experts, hidden };
                Self::Tasks(TasksNetwork::new(shape, form, tower, &each, weights)?)
            }
            Model::Ple { levels, shared_experts, task_experts, layers: ExpertLayers { hidden, tower, .. } } => {
                let (levels, shared_experts, task_experts) = (*levels, *shared_experts, *task_experts);
                let form = SharedForm::Ple { levels, shared_experts, task_experts, hidden };
                Self::Tasks(TasksNetwork::new(shape, form, tower, &each, weights)?)
            }
            Model::Din { attention_hidden, activation, softmax, hidden, .. } => {
                let (activation, softmax) = (*activation, *softmax);
                Self::Din(Din::new(shape, DinForm { attention_hidden, activation, softmax, hidden }, weights)?)
            }
            Model::Bst { layers, heads, ffn, causal, hidden, .. } => {
                let form = BstForm { layers: *layers, heads: *heads, ffn: *ffn, causal: *causal, hidden };
                Self::Bst(Bst::new(shape, form, weights)?)
            }
            Model::TorchScript { file, sha256, .. } => {
                let (module, buffers) = TorchScript::load(file, sha256, job.train.seed, (variables, outputs))?;
                let (network, lent) = (Self::TorchScript(module), LentBuffers::default());
                return Ok(BuiltNetwork { numbers: None, network, buffers, lent, streamed: Vec::new() });
            }
        };
        let MadeBeside { buffers, lent, streamed } = made.finish();
        Ok(BuiltNetwork { numbers, network, buffers: ModuleBuffers::new(buffers), lent, streamed })
    }

    /// `[batch, outputs]` of `[batch, inputs]` of numbers, which become vectors first where there are `numbers`, and of `[batch, ΣD]`.
    pub(crate) fn forward_after<'n>(
        &'n self,
        numbers: Option<&'n NumericEmbeddings>,
        numeric: &Tensor,
        embeddings: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> Result<Tensor, ModelError> {
        match numbers {
            Some(numbers) => self.forward(&numbers.forward(numeric, calls)?, embeddings, calls),
            None => self.forward(numeric, embeddings, calls),
        }
    }

    /// `[batch, outputs]`.
    fn forward<'n>(
        &'n self,
        numeric: &Tensor,
        embeddings: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> Result<Tensor, ModelError> {
        match self {
            Self::Dlrm(dlrm) => dlrm.forward(numeric, embeddings, calls),
            Self::Ffnn(ffnn) => ffnn.forward(numeric, embeddings, calls),
            Self::Dcnv2(dcnv2) => dcnv2.forward(numeric, embeddings, calls),
            Self::DeepFm(deepfm) => deepfm.forward(numeric, embeddings, calls),
            Self::WideDeep(wide_deep) => wide_deep.forward(numeric, embeddings, calls),
            Self::Wukong(wukong) => wukong.forward(numeric, embeddings, calls),
            Self::FinalMlp(finalmlp) => finalmlp.forward(numeric, embeddings, calls),
            Self::Tasks(tasks) => tasks.forward(numeric, embeddings, calls),
            Self::Din(din) => din.forward(numeric, embeddings, calls),
            Self::Bst(bst) => bst.forward(numeric, embeddings, calls),
            Self::TorchScript(module) => module.forward(numeric, embeddings, calls.is_training()),
        }
    }
}

/// A feed-forward network over all features side by side.
#[derive(Debug)]
pub(crate) struct Ffnn {
    pub(crate) layers: Mlp,
}

impl Ffnn {
    pub(crate) fn new(shape: &InputShape, hidden: &[i64], weights: &mut WeightBuilder) -> Result<Self, ModelError> {
        let inputs = shape.numeric + shape.width();
        if inputs == 0 {
            return Err(ModelError::Shape { what: "the network has no input: no numeric and no categorical feature" });
        }
        Ok(Self { layers: Mlp::logit("layers", inputs, &parse_widths(hidden)?, weights)? })
    }

    /// `[batch, numeric]` and `[batch, ΣD]` to `[batch, 1]`.
    pub(crate) fn forward<'n>(
        &'n self,
        numeric: &Tensor,
        embeddings: &Tensor,
        calls: &mut LayerCalls<'n>,
    ) -> Result<Tensor, ModelError> {
        self.layers.forward(&Tensor::f_cat(&[numeric, embeddings], 1)?, calls)
    }
}
