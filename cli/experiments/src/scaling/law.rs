//! The laws: a floor, and power laws of size, samples or compute above it.

use serde::{Deserialize, Serialize};
use zagros_zip::ZipEq;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LawAxis {
    /// Dense parameters N.
    Size,
    Samples,
}

impl LawAxis {
    /// The place of N parameters and D samples on it.
    pub fn place(self, parameters: f64, samples: f64) -> f64 {
        match self {
            Self::Size => parameters,
            Self::Samples => samples,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LawForm {
    /// L(N, D) = E + A/N^α + B/D^β (Hoffmann et al. 2022, approach 3).
    SizeAndSamples,
    /// L(N) = E + A/N^α, of runs on equally many samples.
    Size,
    /// L(D) = E + B/D^β, of the largest size: a larger network brings nothing.
    Samples,
}

impl LawForm {
    /// All of them. Of equally good ones the first is chosen.
    pub const ALL: [Self; 3] = [Self::SizeAndSamples, Self::Size, Self::Samples];

    pub fn axes(self) -> &'static [LawAxis] {
        match self {
            Self::SizeAndSamples => &[LawAxis::Size, LawAxis::Samples],
            Self::Samples => &[LawAxis::Samples],
            Self::Size => &[LawAxis::Size],
        }
    }

    pub fn formula(self) -> &'static str {
        match self {
            Self::SizeAndSamples => "L(N, D) = E + A/N^α + B/D^β",
            Self::Samples => "L(D) = E + B/D^β",
            Self::Size => "L(N) = E + A/N^α",
        }
    }
}

/// coefficient / x^exponent
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PowerTerm {
    pub axis: LawAxis,
    /// A or B, at least 0, nats.
    pub coefficient: f64,
    pub exponent: f64,
}

impl PowerTerm {
    pub fn loss(&self, parameters: f64, samples: f64) -> f64 {
        self.coefficient * self.axis.place(parameters, samples).powf(-self.exponent)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Law {
    pub form: LawForm,
    /// E, at least 0, nats: the loss that is left with any network and any number of samples.
    pub floor: f64,
    /// The power laws above it, in the order of the form's axes.
    pub terms: Vec<PowerTerm>,
}

impl Law {
    pub(crate) fn new(form: LawForm, floor: f64, coefficients: &[f64], exponents: &[f64]) -> Self {
        let term = |((axis, coefficient), exponent): ((&LawAxis, &f64), &f64)| PowerTerm {
            axis: *axis,
            coefficient: *coefficient,
            exponent: *exponent,
        };
        Self { form, floor, terms: form.axes().iter().zip_eq(coefficients).zip_eq(exponents).map(term).collect() }
    }

    /// The loss of N dense parameters after D samples, nats.
    pub fn loss(&self, parameters: f64, samples: f64) -> f64 {
        self.floor + self.terms.iter().map(|term| term.loss(parameters, samples)).sum::<f64>()
    }

    pub fn term(&self, axis: LawAxis) -> Option<&PowerTerm> {
        self.terms.iter().find(|term| term.axis == axis)
    }

    /// Size and samples with the least loss among all with 6·N·D = `compute`. `None` unless the law is one of size and samples, and both
    /// bring something.
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
    pub fn samples_for(&self, loss: f64, parameters: f64) -> Option<f64> {
        let (size, (coefficient, exponent)) = self.both()?;
        let rest = loss - self.floor - size.0 * parameters.powf(-size.1);
        (rest > 0.0).then(|| (coefficient / rest).powf(1.0 / exponent))
    }

    /// Coefficients and exponents of size and samples, of a law of both.
    fn both(&self) -> Option<((f64, f64), (f64, f64))> {
        let find_term =
            |axis| self.term(axis).map(|term| (term.coefficient, term.exponent)).filter(|term| term.0 > 0.0);
        Some((find_term(LawAxis::Size)?, find_term(LawAxis::Samples)?))
    }
}

impl std::fmt::Display for Law {
    /// `L(N, D) = 0.4512 + 0.31/N^0.42 + 1.2/D^0.28`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let head = self.form.formula().split(" = ").next().unwrap_or("L");
        write!(f, "{head} = {:.4}", self.floor)?;
        for term in &self.terms {
            let name = match term.axis {
                LawAxis::Size => "N",
                LawAxis::Samples => "D",
            };
            write!(f, " + {:.4}/{name}^{:.3}", term.coefficient, term.exponent)?;
        }
        Ok(())
    }
}

/// The best size and number of samples for a compute budget (Hoffmann et al. 2022, equation 4).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComputeOptimum {
    pub compute: f64,
    pub parameters: f64,
    pub samples: f64,
    /// Log loss by the law, nats.
    pub loss: f64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_law_is_its_formula() {
        let law = Law::new(LawForm::SizeAndSamples, 0.4, &[2.0, 3.0], &[0.5, 1.0]);
        assert!((law.loss(100.0, 10.0) - (0.4 + 0.2 + 0.3)).abs() < 1e-12);
        assert_eq!(law.to_string(), "L(N, D) = 0.4000 + 2.0000/N^0.500 + 3.0000/D^1.000");
        assert_eq!(law.term(LawAxis::Samples).map(|term| term.exponent), Some(1.0));
        assert_eq!(Law::new(LawForm::Size, 0.4, &[2.0], &[0.5]).term(LawAxis::Samples), None);
        for form in LawForm::ALL {
            let names = form.axes().iter().filter(|axis| form.formula().contains(["/N", "/D"][**axis as usize]));
            assert_eq!(names.count(), form.axes().len(), "{form:?}");
        }
    }

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
