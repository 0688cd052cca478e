//! Networks whose weights have a mirror, on the processor: everything that a device does except its arithmetic.

use std::sync::Arc;

use zagros_job::StreamGates;
use zagros_model::{AutogradLibrary, AutogradNetwork, Backend, LayerWindow, TargetLosses};

use super::*;
use crate::device::DevicePlacement;
use crate::network::TorchNetwork;

/// Networks with dropout.
fn networks() -> [Model; 5] {
    let (dropout, structure) = (0.5, CrossStructure::Stacked);
    let (fmb_hidden, bottom, top) = (vec![4], vec![4], vec![5]);
    let gate = Some(StreamGates { hidden: vec![3], first: vec!["C1".into()], second: vec![] });
    [
        Model::DeepFm { hidden: vec![6], dropout },
        Model::WideDeep { hidden: vec![6], dropout },
        Model::Dcnv2 { cross_layers: 2, rank: None, structure, hidden: vec![5], dropout },
        Model::Wukong { layers: 1, fmb: 2, lcb: 1, rank: 2, fmb_hidden, bottom, top, dropout },
        Model::FinalMlp { first: vec![6], second: vec![4], heads: 2, gate, dropout },
    ]
}

/// Networks of which all code but libtorch sees the mirror.
#[derive(Debug)]
struct MirroredLibrary;

impl AutogradLibrary for MirroredLibrary {
    fn make_network(
        &self,
        job: &Job,
        losses: &TargetLosses,
        window: Option<&Arc<LayerWindow>>,
    ) -> Result<Box<dyn AutogradNetwork>, ModelError> {
        let place = DevicePlacement { device: Device::Cpu, mirrored: true };
        Ok(Box::new(TorchNetwork::new(job, losses, window, place)?))
    }
}

fn at_library(job: &Job, library: &'static dyn AutogradLibrary) -> DenseModel {
    DenseModel::new(job, Backend { kernels: &[], autograd: Some(library) }).unwrap()
}

fn mirrored(job: &Job) -> DenseModel {
    at_library(job, &MirroredLibrary)
}

#[test]
fn a_mirrored_network_makes_the_same_steps_bit_for_bit() {
    for model in networks() {
        let mut job = job(2, &[3, 3], model);
        job.dense_optimizer = DenseOptimizer::Adam { lr: 0.01, weight_decay: 0.0 };
        let samples = TestSamples::random(&job, 9);
        let (mut plain, mut mirrored) = (at_library(&job, &TorchLibrary), mirrored(&job));
        for _ in 0..3 {
            assert_eq!(samples.step(&mut mirrored), samples.step(&mut plain), "{:?}", job.model);
            assert_eq!(mirrored.gradients(), plain.gradients());
        }
        assert_eq!(samples.predict(&mirrored), samples.predict(&plain));
        assert_eq!(mirrored.to_safetensors().unwrap(), plain.to_safetensors().unwrap());
    }
}

#[test]
fn weights_given_to_a_mirrored_network_reach_the_device() {
    let job = job(2, &[3, 3], dlrm());
    let samples = TestSamples::random(&job, 9);
    let (mut first, mut second) = (mirrored(&job), mirrored(&job));
    (0..3).for_each(|_| drop(samples.step(&mut first)));
    assert_ne!(samples.predict(&first), samples.predict(&second));
    second.load_safetensors(&first.to_safetensors().unwrap()).unwrap();
    assert_eq!(samples.predict(&first), samples.predict(&second));
    // As an asynchronous worker takes its weights, and as a worker without samples joins a step.
    let mut weights = vec![0.0; first.weight_count()];
    samples.step(&mut first);
    first.copy_weights(&mut weights).unwrap();
    second.set_weights(&weights).unwrap();
    assert_eq!(samples.predict(&first), samples.predict(&second));
    second.clear_gradients().unwrap();
    assert!(second.gradients().iter().all(|gradient| *gradient == 0.0));
    second.replace_gradients(0, first.gradients()).unwrap();
    second.apply_gradients().unwrap();
    assert_ne!(samples.predict(&first), samples.predict(&second));
}

#[test]
fn a_missing_device_is_refused_with_what_to_do() {
    let mut job = job(2, &[3, 3], dlrm());
    job.train.device = zagros_job::Device::Cuda;
    match DenseModel::new(&job, backend()) {
        // This machine has a device.
        Ok(mut model) => assert!(TestSamples::random(&job, 9).step(&mut model).loss.is_finite()),
        Err(error) => {
            let text = error.to_string();
            assert!(matches!(error, ModelError::Device { .. }), "{text}");
            assert!(text.starts_with("train.device = \"cuda\": "), "{text}");
            assert!(text.ends_with("or train with train.device = \"cpu\""), "{text}");
        }
    }
}
