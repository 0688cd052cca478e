//! The best size and number of samples for a compute budget (Hoffmann et al. 2022, equation 4), and lines of equal loss.

use serde::{Deserialize, Serialize};

use crate::law::{Law, LawAxis, LawForm};

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComputeOptimum {
    pub compute: f64,
    pub parameters: f64,
    pub samples: f64,
    /// Log loss by the law, nats.
    pub loss: f64,
}

impl Law {
    /// Size and samples with the least loss among all with 6·N·D = `compute`. `None` unless the law is one of size and samples, and both
    /// bring something.
    #[must_use]
    pub fn optimum(&self, compute: f64) -> Option<ComputeOptimum> {
        let (size, samples) = self.both()?;
        let sum = size.1 + samples.1;
        // The derivative of A/N^α + B/D^β along N·D = const is zero.
        let balance = (size.1 * size.0 / (samples.1 * samples.0)).powf(1.0 / sum);
        let parameters = balance * (compute / 6.0).powf(samples.1 / sum);
        let samples = compute / 6.0 / parameters;
        Some(ComputeOptimum { compute, parameters, samples, loss: self.loss(parameters, samples) })
    }

    /// The samples after which N parameters have a loss. `None` if they never have.
    #[must_use]
    pub fn samples_for(&self, loss: f64, parameters: f64) -> Option<f64> {
        let (size, (coefficient, exponent)) = self.both()?;
        let rest = loss - self.floor - size.0 * parameters.powf(-size.1);
        (rest > 0.0).then(|| (coefficient / rest).powf(1.0 / exponent))
    }

    /// Coefficients and exponents of size and samples, of a law of both.
    fn both(&self) -> Option<((f64, f64), (f64, f64))> {
        let find_term =
            |axis| self.term(axis).map(|term| (term.coefficient, term.exponent)).filter(|term| term.0 > 0.0);
        if self.form == LawForm::SizeAndSamples {
            Some((find_term(LawAxis::Size)?, find_term(LawAxis::Samples)?))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn laws_of_one_axis_have_no_optimum() {
        let law = Law::new(LawForm::Size, 0.4, &[2.0], &[0.5]);
        assert_eq!((law.optimum(1e12), law.samples_for(0.5, 1e6)), (None, None));
        let flat = Law::new(LawForm::SizeAndSamples, 0.4, &[0.0, 3.0], &[0.5, 0.4]);
        assert_eq!(flat.optimum(1e12), None);
    }

    proptest! {
        /// Another size with the same compute is not better, and the line of equal loss goes through the optimum.
        #[test]
        fn the_optimum_is_one(
            alpha in 0.1_f64..1.0, beta in 0.1_f64..1.0, a in 0.1_f64..100.0, b in 0.1_f64..100.0, compute in 1e9_f64..1e18, factor in 0.2_f64..5.0,
        ) {
            let law = Law::new(LawForm::SizeAndSamples, 0.4, &[a, b], &[alpha, beta]);
            let best = law.optimum(compute).unwrap();
            prop_assert!((6.0 * best.parameters * best.samples / compute - 1.0).abs() < 1e-9);
            prop_assert!(law.loss(best.parameters * factor, best.samples / factor) >= best.loss - 1e-12);
            let samples = law.samples_for(best.loss, best.parameters).unwrap();
            prop_assert!((samples / best.samples - 1.0).abs() < 1e-6);
            prop_assert_eq!(law.samples_for(0.3, 1e6), None);
        }
    }
}
