//! Inputs that a job may ask for and a network cannot have.

use zagros_job::{DenseTensor, Job, Model};

use crate::{InputColumns, ModelError, ModelResult, VectorForm};

pub fn check_inputs(job: &Job) -> ModelResult {
    let (columns, numbers) = (InputColumns::new(job), job.features.numeric_inputs());
    let vectors = columns.features.iter().filter(|column| matches!(column.form, VectorForm::Pooled(_)));
    let dims: Vec<usize> = vectors.map(|column| column.dim).collect();
    let what = match &job.model {
        Model::Dlrm { .. } | Model::DeepFm { .. } | Model::Wukong { .. } if dims.is_empty() => {
            Some("the network needs a categorical feature and has none")
        }
        Model::Dlrm { .. } => {
            let alone = numbers == 0 && dims.len() == 1;
            alone.then_some("dlrm has nothing to interact: one categorical feature alone")
        }
        Model::WideDeep { .. } => {
            let alone = numbers == 0 && dims.iter().all(|dim| *dim == 1);
            alone.then_some("the deep part has no input: no numeric feature, no dim above 1")
        }
        Model::Din { .. } | Model::Bst { .. } => {
            job.model.attention_pairs().is_empty().then_some("the network has no sequence with a target")
        }
        _ => {
            let is_empty = numbers + columns.width == 0;
            is_empty.then_some("the network has no input: no numeric and no categorical feature")
        }
    };
    let has_empty_layer = || job.dense_layout().is_some_and(|all| all.tensors.iter().any(DenseTensor::is_empty));
    match what {
        Some(what) => Err(ModelError::Shape { what }),
        None if has_empty_layer() => Err(ModelError::Shape { what: "a hidden layer of the network has no units" }),
        None => Ok(()),
    }
}
