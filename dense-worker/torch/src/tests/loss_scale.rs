//! Products in f16, whose loss is scaled.

use zagros_job::{NonFinitePolicy, Precision};

use super::*;

fn half(model: Model) -> Job {
    let mut job = job(2, &[3, 3], model);
    job.train.precision = Precision::F16;
    job.dense_optimizer = DenseOptimizer::Adam { lr: 0.01, weight_decay: 0.0 };
    job
}

/// f16 keeps 11 digits of 24.
#[test]
fn gradients_are_near_those_of_f32_and_not_equal() {
    for model in [dlrm(), ffnn(), Model::DeepFm { hidden: vec![6], dropout: 0.0 }] {
        let job = half(model);
        let mut exact = job.clone();
        exact.train.precision = Precision::F32;
        let samples = TestSamples::random(&job, 9);
        let step = |job: &Job| {
            let mut model = DenseModel::new(job, backend()).unwrap();
            let output = model.backward(&samples.numeric, &samples.embeddings, &samples.labels).unwrap();
            (output, model.gradients().to_vec())
        };
        let ((found, of_weights), (exact, exact_of_weights)) = (step(&job), step(&exact));
        for (found, exact) in
            [(&found.logits, &exact.logits), (&found.gradients, &exact.gradients), (&of_weights, &exact_of_weights)]
        {
            let share = relative_difference(found, exact);
            assert!(share > 1e-7 && share < 0.01, "{share}");
        }
    }
}

/// f16 alone would round these to zero: its smallest number is 6e-8.
#[test]
fn gradients_below_the_range_of_f16_are_not_lost() {
    // With the first seed with which the first sample has a gradient.
    let job = with_first_seed(&half(ffnn()), |job| {
        let (samples, mut exact) = (TestSamples::random(job, 2), job.clone());
        exact.train.precision = Precision::F32;
        let mut exact = DenseModel::new(&exact, backend()).unwrap();
        let output = exact.backward(&samples.numeric, &samples.embeddings, &[1.0; 2]).unwrap();
        output.gradients[..job.tables[0].dim].iter().all(|gradient| *gradient != 0.0)
    });
    let samples = TestSamples::random(&job, 2);
    // Each of very many samples counts little. The embeddings of all but two are zero.
    let batch = 1 << 17;
    let of_all = |values: &[f32]| [values, &vec![0.0; values.len() / 2 * (batch - 2)]].concat();
    let (numeric, embeddings) = (of_all(&samples.numeric), of_all(&samples.embeddings));
    let mut model = DenseModel::new(&job, backend()).unwrap();
    let output = model.backward(&numeric, &embeddings, &vec![1.0; batch]).unwrap();
    let first = &output.gradients[..job.tables[0].dim];
    assert!(first.iter().all(|gradient| *gradient != 0.0 && gradient.abs() < 1e-5), "{first:?}");
}

#[test]
fn a_gradient_that_overflows_costs_its_batch_until_the_scale_is_small_enough() {
    let job = half(ffnn());
    let samples = TestSamples::random(&job, 9);
    let mut model = DenseModel::new(&job, backend()).unwrap();
    let first = stored(&model);
    // So large that its gradients fit only once most of the scale is gone.
    let numeric: Vec<f32> = samples.numeric.iter().map(|value| value * 2e4).collect();
    let mut skipped = 0;
    while let Err(error) = model.step(&numeric, &samples.embeddings, &samples.labels) {
        assert!(matches!(error, ModelError::Skipped { .. }), "{error}");
        assert_eq!(stored(&model), first);
        skipped += 1;
        assert!(skipped < 17, "the scale does not fall");
    }
    assert!(skipped > 0 && stored(&model) != first);
}

#[test]
fn an_overflow_that_no_scale_prevents_ends_as_the_job_says() {
    for (wanted, ends) in [(NonFinitePolicy::Refuse, true), (NonFinitePolicy::Skip, false)] {
        let mut job = half(ffnn());
        job.train.updates.non_finite = wanted;
        let mut model = DenseModel::new(&job, backend()).unwrap();
        let mut step = || model.step(&[f32::NAN; 2], &[0.1; 6], &[1.0]).unwrap_err();
        for _ in 0..16 {
            assert!(matches!(step(), ModelError::Skipped { .. }));
        }
        assert_eq!(matches!(step(), ModelError::NotFinite { .. }), ends);
    }
}

#[test]
fn the_scale_is_restored() {
    let job = half(ffnn());
    let mut model = DenseModel::new(&job, backend()).unwrap();
    model.step(&[f32::NAN; 2], &[0.1; 6], &[1.0]).unwrap_err();
    model.step(&[0.5; 2], &[0.1; 6], &[1.0]).unwrap();
    let mut restored = DenseModel::new(&job, backend()).unwrap();
    restored.restore_optimizer(&model.optimizer_state().unwrap()).unwrap();
    let state = |model: &DenseModel| model.optimizer_state().unwrap();
    assert_eq!(state(&restored), state(&model));
    assert_ne!(state(&restored), state(&DenseModel::new(&job, backend()).unwrap()));
    // A run in another precision has no scale to take.
    let mut exact = job.clone();
    exact.train.precision = Precision::F32;
    let scale = |model: &DenseModel| {
        let state = state(model);
        let (_, metadata) = SafeTensors::read_metadata(&state).unwrap();
        let counts = metadata.metadata().as_ref().unwrap()["steps_applied"].clone();
        counts.splitn(3, ' ').nth(2).map(str::to_owned)
    };
    restored.restore_optimizer(&state(&DenseModel::new(&exact, backend()).unwrap())).unwrap();
    assert!(scale(&restored).is_some() && scale(&restored) == scale(&model));
}
