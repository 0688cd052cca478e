//! The equations by which a gradient changes the weights and the state of a row. Each is documented at its optimiser.

use zagros_zip::ZipEq;

use super::loops::{RowLimits, update_each};

#[inline(always)]
pub(super) fn sgd(weights: &mut [f32], gradient: &[f32], shaping: RowLimits, [lr, l2]: [f32; 2]) {
    update_each(
        weights,
        [],
        gradient,
        shaping,
        #[inline(always)]
        |weight, [], gradient| (weight - lr * (gradient + l2 * weight), []),
    );
}

#[inline(always)]
pub(super) fn velocity(
    weights: &mut [f32],
    state: &mut [f32],
    gradient: &[f32],
    shaping: RowLimits,
    [lr, momentum, l2]: [f32; 3],
) {
    update_each(
        weights,
        [state],
        gradient,
        shaping,
        #[inline(always)]
        |weight, [velocity], gradient| {
            let velocity = momentum * velocity + (gradient + l2 * weight);
            (weight - lr * velocity, [velocity])
        },
    );
}

#[inline(always)]
pub(super) fn adagrad(
    weights: &mut [f32],
    state: &mut [f32],
    gradient: &[f32],
    shaping: RowLimits,
    [lr, epsilon, l2]: [f32; 3],
) {
    update_each(
        weights,
        [state],
        gradient,
        shaping,
        #[inline(always)]
        |weight, [sum], gradient| {
            let total = gradient + l2 * weight;
            let sum = sum + total * total;
            // With ε = 0 and only zero gradients this is 0 / 0. A zero gradient must move nothing.
            let step = lr * total / (sum.sqrt() + epsilon);
            (weight - if total == 0.0 { 0.0 } else { step }, [sum])
        },
    );
}

#[inline(always)]
pub(super) fn row_adagrad(
    weights: &mut [f32],
    state: &mut [f32],
    gradient: &[f32],
    shaping: RowLimits,
    [lr, epsilon, l2]: [f32; 3],
) {
    let total = |weight: f32, gradient: f32| shaping.clip_gradient(gradient) + l2 * weight;
    let squares = weights.iter().zip_eq(gradient).map(|(weight, gradient)| total(*weight, *gradient).powi(2));
    state[0] += squares.sum::<f32>() / weights.len() as f32;
    let rate = lr / (state[0].sqrt() + epsilon);
    // With ε = 0 and only zero gradients the rate is not finite.
    let rate = if rate.is_finite() { rate } else { 0.0 };
    update_each(
        weights,
        [],
        gradient,
        shaping,
        #[inline(always)]
        |weight, [], gradient| (weight - rate * (gradient + l2 * weight), []),
    );
}

#[inline(always)]
pub(super) fn adam(
    weights: &mut [f32],
    state: &mut [f32],
    gradient: &[f32],
    shaping: RowLimits,
    [lr, beta1, beta2, epsilon, l2, weight_decay]: [f32; 6],
) {
    let (moments, powers) = state.split_at_mut(2 * gradient.len());
    let powers = advance(powers, [beta1, beta2]);
    let root_correction = 1.0 / (1.0 - powers[1]).sqrt();
    // The share of a weight that remains after decay.
    let (kept, lr) = (1.0 - lr * weight_decay, lr / (1.0 - powers[0]));
    let (first, second) = moments.split_at_mut(weights.len());
    update_each(
        weights,
        [first, second],
        gradient,
        shaping,
        #[inline(always)]
        |weight, [first, second], gradient| {
            let total = gradient + l2 * weight;
            let first = beta1 * first + (1.0 - beta1) * total;
            let second = beta2 * second + (1.0 - beta2) * total * total;
            let quotient = first / (second.sqrt() * root_correction + epsilon);
            // With ε = 0 and only zero gradients this is 0 / 0.
            let quotient = if first == 0.0 { 0.0 } else { quotient };
            (kept * weight - lr * quotient, [first, second])
        },
    );
}

/// βᵗ after one more update. A power too small to change 1 − βᵗ becomes zero, because denormal numbers are slow.
#[inline(always)]
fn advance(powers: &mut [f32], betas: [f32; 2]) -> [f32; 2] {
    let next = [powers[0] * betas[0], powers[1] * betas[1]].map(|power| if power < 1e-30 { 0.0 } else { power });
    powers.copy_from_slice(&next);
    next
}

#[inline(always)]
pub(super) fn ftrl(
    weights: &mut [f32],
    state: &mut [f32],
    gradient: &[f32],
    shaping: RowLimits,
    [lr, beta, l1, l2]: [f32; 4],
) {
    let (z, n) = state.split_at_mut(weights.len());
    update_each(
        weights,
        [z, n],
        gradient,
        shaping,
        #[inline(always)]
        |weight, [z, n], gradient| {
            let sum = n + gradient * gradient;
            let sigma = (sum.sqrt() - n.sqrt()) / lr;
            let z = z + gradient - sigma * weight;
            let dense = (l1.copysign(z) - z) / ((beta + sum.sqrt()) / lr + l2);
            let new = if z.abs() <= l1 { 0.0 } else { dense };
            (if gradient == 0.0 { weight } else { new }, [z, sum])
        },
    );
}

/// FTRL with a learning rate other than that of the row's last update.
///
/// The paper defines σ = 1/η − 1/η′ with η = lr / (β+√n), where η′ is of the last update. The row does not store η′.
/// For w ≠ 0 the formula of w gives z = −w·(1/η′ + l2) − sign(w)·l1. With this z, z + g − σw = −w·(1/η + l2) −
/// sign(w)·l1 + g, which needs neither η′ nor the old z.
#[inline(always)]
pub(super) fn ftrl_anew(
    weights: &mut [f32],
    state: &mut [f32],
    gradient: &[f32],
    shaping: RowLimits,
    [lr, beta, l1, l2]: [f32; 4],
) {
    let (z, n) = state.split_at_mut(weights.len());
    update_each(
        weights,
        [z, n],
        gradient,
        shaping,
        #[inline(always)]
        |weight, [z, n], gradient| {
            let sum = n + gradient * gradient;
            let steepness = (beta + sum.sqrt()) / lr + l2;
            let now = -(weight * steepness) - l1.copysign(weight);
            let z = if weight == 0.0 { z } else { now } + gradient;
            let new = if z.abs() <= l1 { 0.0 } else { (l1.copysign(z) - z) / steepness };
            (if gradient == 0.0 { weight } else { new }, [z, sum])
        },
    );
}
