//! Optimisers, schedules and clipping against the papers' formulas in f64, over several steps.

use zagros_fakes::jobs::assert_refused;
use zagros_job::{NonFinitePolicy, RateSchedule};
use zagros_zip::ZipEq;

use super::*;

const STEPS: usize = 7;

const WEIGHTS: [f32; 8] = [0.5, -1.0, 2.0, 0.25, -0.75, 1.5, -0.5, 1.0];

/// Gradients of all eight weights; the sixth step's are large.
fn gradient(step: usize) -> [f64; 8] {
    std::array::from_fn(|i| {
        let value = ((step * 8 + i) as f64 * 0.7).sin() * if step == 5 { 40.0 } else { 1.0 };
        // Rounded to f32, so that the reference starts from the same numbers.
        f64::from(value as f32)
    })
}

fn given(step: usize) -> [f32; 8] {
    gradient(step).map(|gradient| gradient as f32)
}

/// Runs an optimiser beside `reference(weights, gradients, step)`, which updates all weights in f64.
fn check(optimizer: DenseOptimizer, updates: DenseUpdates, mut reference: impl FnMut(&mut [f64], &[f64; 8], usize)) {
    let mut weights = WEIGHTS;
    let mut updater = WeightUpdater::new(&optimizer, updates, whole(8));
    let mut expected = weights.map(f64::from);
    for step in 0..STEPS {
        let old_weights = weights;
        updater.apply(step as u64, &mut weights, &mut given(step)).unwrap();
        reference(&mut expected, &gradient(step), step);
        for (index, (found, expected)) in weights.map(f64::from).into_iter().zip_eq(&expected).enumerate() {
            let near = (found - expected).abs() < 3e-6 * (1.0 + expected.abs());
            assert!(near, "{optimizer:?} step {step} weight {index}: {found}, reference {expected}");
        }
        assert_ne!(old_weights, weights, "step {step} moves something");
    }
}

/// Adam and AdamW: Kingma & Ba 2015, algorithm 1; Loshchilov & Hutter 2019, algorithm 2.
fn adam(lr: f64, l2: f64, decoupled: f64) -> impl FnMut(&mut [f64], &[f64; 8], usize) {
    let (mut mean, mut square) = ([0.0_f64; 8], [0.0_f64; 8]);
    move |weights, gradients, step| {
        let t = step as i32 + 1;
        for i in 0..8 {
            let g = gradients[i] + l2 * weights[i];
            mean[i] = 0.9 * mean[i] + 0.1 * g;
            square[i] = 0.999 * square[i] + 0.001 * g * g;
            let (m, v) = (mean[i] / (1.0 - 0.9_f64.powi(t)), square[i] / (1.0 - 0.999_f64.powi(t)));
            weights[i] -= lr * (m / (v.sqrt() + 1e-8) + decoupled * weights[i]);
        }
    }
}

fn sgd(lr: impl Fn(usize) -> f64, clip: impl Fn(&[f64; 8]) -> [f64; 8]) -> impl FnMut(&mut [f64], &[f64; 8], usize) {
    move |weights, gradients, step| {
        let clipped = clip(gradients);
        for i in 0..8 {
            weights[i] -= lr(step) * clipped[i];
        }
    }
}

fn whole(weights: usize) -> Vec<RateRange> {
    vec![RateRange { weights: 0..weights, factor: 1.0 }]
}

fn updater(optimizer: DenseOptimizer) -> WeightUpdater {
    WeightUpdater::new(&optimizer, DenseUpdates::default(), whole(8))
}

fn plain_sgd(lr: f64) -> DenseOptimizer {
    DenseOptimizer::Sgd { lr, momentum: 0.0, weight_decay: 0.0 }
}

#[test]
fn adam_and_adamw_follow_their_papers() {
    let check = |optimizer, reference| check(optimizer, DenseUpdates::default(), reference);
    check(DenseOptimizer::Adam { lr: 0.01, weight_decay: 0.0 }, adam(0.01, 0.0, 0.0));
    check(DenseOptimizer::Adam { lr: 0.01, weight_decay: 0.1 }, adam(0.01, 0.1, 0.0));
    // It decays separately from the gradient.
    check(DenseOptimizer::AdamW { lr: 0.01, weight_decay: 0.1 }, adam(0.01, 0.0, 0.1));
}

#[test]
fn sgd_has_momentum() {
    let mut velocity = [0.0; 8];
    let optimizer = DenseOptimizer::Sgd { lr: 0.05, momentum: 0.9, weight_decay: 0.01 };
    check(optimizer, DenseUpdates::default(), move |weights, gradients, _| {
        for i in 0..8 {
            velocity[i] = 0.9 * velocity[i] + gradients[i] + 0.01 * weights[i];
            weights[i] -= 0.05 * velocity[i];
        }
    });
}

/// At a rate of 0.1, which the schedule scales.
fn check_adagrad(
    (epsilon, initial_accumulator, weight_decay): (f64, f64, f64),
    schedule: RateSchedule,
    scale: fn(usize) -> f64,
) {
    let mut squares = [initial_accumulator; 8];
    let optimizer = DenseOptimizer::Adagrad { lr: 0.1, epsilon, initial_accumulator, weight_decay };
    check(optimizer, DenseUpdates { schedule, ..DenseUpdates::default() }, move |weights, gradients, step| {
        for i in 0..8 {
            let g = gradients[i] + weight_decay * weights[i];
            squares[i] += g * g;
            weights[i] -= 0.1 * scale(step) * g / (f64::sqrt(squares[i]) + epsilon);
        }
    });
}

#[test]
fn adagrad_follows_its_paper() {
    for settings in [(1e-10, 0.0, 0.0), (0.5, 0.25, 0.1)] {
        check_adagrad(settings, DenseUpdates::default().schedule, |_| 1.0);
    }
}

fn check_schedule(schedule: RateSchedule, rate: impl Fn(usize) -> f64) {
    check(plain_sgd(0.05), DenseUpdates { schedule, ..DenseUpdates::default() }, sgd(rate, |g| *g));
}

#[test]
fn schedules_scale_the_rate_of_each_step() {
    let warmup_then_fall = |step: usize, left: fn(f64) -> f64| match step {
        0 => 0.5,
        1 => 1.0,
        _ => 0.2 + 0.8 * left((step as f64 - 2.0).min(4.0) / 4.0),
    };
    let (warmup, decay, floor) = (2, 4, 0.2);
    let linear = move |step| 0.05 * warmup_then_fall(step, |done| 1.0 - done);
    check_schedule(RateSchedule::Linear { warmup: warmup.into(), decay: decay.into(), floor }, linear);
    let half_wave = |done: f64| f64::midpoint(1.0, (std::f64::consts::PI * done).cos());
    let cosine = move |step| 0.05 * warmup_then_fall(step, half_wave);
    check_schedule(RateSchedule::Cosine { warmup: warmup.into(), decay: decay.into(), floor }, cosine);
    let halves = |step: usize| 0.05 * 0.5_f64.powi(step as i32 / 3);
    check_schedule(RateSchedule::Step { warmup: 0.into(), every: 3.into(), factor: 0.5 }, halves);
}

#[test]
fn adagrad_follows_the_schedule_too() {
    let schedule = RateSchedule::Step { warmup: 0.into(), every: 2.into(), factor: 0.5 };
    check_adagrad((1e-10, 0.0, 0.0), schedule, |step| 0.5_f64.powi(step as i32 / 2));
}

#[test]
fn values_are_clipped_before_their_norm() {
    let by_value = DenseUpdates { clip_value: Some(0.75), ..DenseUpdates::default() };
    check(plain_sgd(0.05), by_value, sgd(|_| 0.05, |g| g.map(|g| g.clamp(-0.75, 0.75))));
    let by_norm = DenseUpdates { clip_norm: Some(1.5), ..DenseUpdates::default() };
    let scaled = |gradients: [f64; 8]| {
        let norm = gradients.iter().map(|g| g * g).sum::<f64>().sqrt();
        gradients.map(|g| g * (1.5 / norm).min(1.0))
    };
    check(plain_sgd(0.05), by_norm, sgd(|_| 0.05, move |g| scaled(*g)));
    let both = DenseUpdates { clip_value: Some(0.75), ..by_norm };
    check(plain_sgd(0.05), both, sgd(|_| 0.05, move |g| scaled(g.map(|g| g.clamp(-0.75, 0.75)))));
}

#[test]
fn a_norm_beyond_f32_is_refused_and_changes_nothing() {
    let updates = DenseUpdates { clip_norm: Some(1.0), non_finite: NonFinitePolicy::Refuse, ..DenseUpdates::default() };
    let mut updater = WeightUpdater::new(&plain_sgd(0.1), updates, whole(8));
    let mut weights = WEIGHTS;
    let refused = updater.apply(0, &mut weights, &mut [3e38; 8]).unwrap_err();
    assert!(refused.to_string().starts_with("the norm of the dense network's gradients is not finite"), "{refused}");
    assert_eq!((weights, updater.state.applied), (WEIGHTS, 0));
    updater.apply(0, &mut weights, &mut given(0)).unwrap();
}

fn each_optimizer() -> [DenseOptimizer; 4] {
    [
        DenseOptimizer::Sgd { lr: 0.05, momentum: 0.9, weight_decay: 0.01 },
        DenseOptimizer::Adam { lr: 0.01, weight_decay: 0.1 },
        DenseOptimizer::AdamW { lr: 0.01, weight_decay: 0.1 },
        DenseOptimizer::Adagrad { lr: 0.1, epsilon: 1e-10, initial_accumulator: 0.1, weight_decay: 0.0 },
    ]
}

/// The first three weights learn at half the rate and the others at twice the rate, each part as if it were alone with this rate.
#[test]
fn each_range_has_its_rate() {
    let scaled = |optimizer: DenseOptimizer, factor: f64| match optimizer {
        DenseOptimizer::Sgd { lr, momentum, weight_decay } => {
            DenseOptimizer::Sgd { lr: lr * factor, momentum, weight_decay }
        }
        DenseOptimizer::Adam { lr, weight_decay } => DenseOptimizer::Adam { lr: lr * factor, weight_decay },
        // The pull to zero has no factor.
        DenseOptimizer::AdamW { lr, weight_decay } => {
            DenseOptimizer::AdamW { lr: lr * factor, weight_decay: weight_decay / factor }
        }
        DenseOptimizer::Adagrad { lr, epsilon, initial_accumulator, weight_decay } => {
            DenseOptimizer::Adagrad { lr: lr * factor, epsilon, initial_accumulator, weight_decay }
        }
    };
    for optimizer in each_optimizer() {
        let rates = vec![RateRange { weights: 0..3, factor: 0.5 }, RateRange { weights: 3..8, factor: 2.0 }];
        let mut both = WeightUpdater::new(&optimizer, DenseUpdates::default(), rates);
        let (mut slow, mut fast) = (updater(scaled(optimizer, 0.5)), updater(scaled(optimizer, 2.0)));
        let (mut found, mut slowly, mut quickly) = (WEIGHTS, WEIGHTS, WEIGHTS);
        for step in 0..STEPS {
            both.apply(step as u64, &mut found, &mut given(step)).unwrap();
            slow.apply(step as u64, &mut slowly, &mut given(step)).unwrap();
            fast.apply(step as u64, &mut quickly, &mut given(step)).unwrap();
        }
        for (found, expected) in found.iter().zip_eq(slowly[..3].iter().chain(&quickly[3..]).collect::<Vec<_>>()) {
            assert!((found - expected).abs() < 1e-6, "{optimizer:?}: {found}, {expected}");
        }
    }
}

#[test]
fn an_optimiser_continues_from_a_restored_state() {
    for optimizer in each_optimizer() {
        let [mut whole, mut first, mut second] = [optimizer; 3].map(updater);
        let (mut through, mut with_a_break) = (WEIGHTS, WEIGHTS);
        for step in 0..STEPS {
            whole.apply(step as u64, &mut through, &mut given(step)).unwrap();
            if step == 3 {
                second.restore(first.state.clone()).unwrap();
            }
            let updater = if step < 3 { &mut first } else { &mut second };
            updater.apply(step as u64, &mut with_a_break, &mut given(step)).unwrap();
            assert_eq!(through, with_a_break, "{optimizer:?} step {step}");
        }
    }
}

#[test]
fn the_state_of_another_optimiser_is_refused() {
    let [sgd, adam, _, adagrad] = each_optimizer().map(updater);
    let mut plain = updater(plain_sgd(0.1));
    assert_refused(plain.restore(adagrad.state.clone()), &["the optimiser's state is squares 8, not nothing"]);
    assert!(plain.restore(sgd.state.clone()).is_err());
    let mut short = WeightUpdater::new(&each_optimizer()[1], DenseUpdates::default(), whole(7));
    assert_refused(short.restore(adam.state.clone()), &["first_moment 8, second_moment 8, not first_moment 7"]);
}
