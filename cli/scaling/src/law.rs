//! The laws: a floor, and power laws of size, samples or compute above it.

use serde::{Deserialize, Serialize};
use zagros_zip::ZipEq;

use crate::measurement::training_flop;

/// What a power law is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LawAxis {
    /// Dense parameters N.
    Size,
    Samples,
    /// Compute C = 6·N·D, FLOP.
    Compute,
}

impl LawAxis {
    /// The place of N parameters and D samples on it.
    #[must_use]
    pub fn place(self, parameters: f64, samples: f64) -> f64 {
        match self {
            Self::Size => parameters,
            Self::Samples => samples,
            Self::Compute => training_flop(parameters, samples),
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
    /// L(C) = E + A/C^α, of the runs that no run of as little compute beats.
    Compute,
    /// L(D) = E + B/D^β, of the largest size: a larger network brings nothing.
    Samples,
}

impl LawForm {
    /// All of them. Of equally good ones the first is chosen.
    pub const ALL: [Self; 4] = [Self::SizeAndSamples, Self::Size, Self::Compute, Self::Samples];

    #[must_use]
    pub fn axes(self) -> &'static [LawAxis] {
        match self {
            Self::SizeAndSamples => &[LawAxis::Size, LawAxis::Samples],
            Self::Compute => &[LawAxis::Compute],
            Self::Samples => &[LawAxis::Samples],
            Self::Size => &[LawAxis::Size],
        }
    }

    #[must_use]
    pub fn formula(self) -> &'static str {
        match self {
            Self::SizeAndSamples => "L(N, D) = E + A/N^α + B/D^β",
            Self::Compute => "L(C) = E + A/C^α",
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
    #[must_use]
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
    #[must_use]
    pub fn loss(&self, parameters: f64, samples: f64) -> f64 {
        self.floor + self.terms.iter().map(|term| term.loss(parameters, samples)).sum::<f64>()
    }

    #[must_use]
    pub fn term(&self, axis: LawAxis) -> Option<&PowerTerm> {
        self.terms.iter().find(|term| term.axis == axis)
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
                LawAxis::Compute => "C",
            };
            write!(f, " + {:.4}/{name}^{:.3}", term.coefficient, term.exponent)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_law_is_its_formula() {
        let law = Law::new(LawForm::SizeAndSamples, 0.4, &[2.0, 3.0], &[0.5, 1.0]);
        assert!((law.loss(100.0, 10.0) - (0.4 + 0.2 + 0.3)).abs() < 1e-12);
        assert_eq!(law.to_string(), "L(N, D) = 0.4000 + 2.0000/N^0.500 + 3.0000/D^1.000");
        assert_eq!(law.term(LawAxis::Samples).map(|term| term.exponent), Some(1.0));
        assert_eq!(law.term(LawAxis::Compute), None);
        let compute = Law::new(LawForm::Compute, 0.4, &[6.0], &[1.0]);
        assert!((compute.loss(10.0, 10.0) - 0.41).abs() < 1e-12);
        for form in LawForm::ALL {
            let names = form.axes().iter().filter(|axis| form.formula().contains(["/N", "/D", "/C"][**axis as usize]));
            assert_eq!(names.count(), form.axes().len(), "{form:?}");
        }
    }

    #[test]
    fn a_law_is_written_and_read() {
        let law = Law::new(LawForm::Samples, 0.4, &[2.0], &[0.5]);
        let text = serde_json::to_string(&law).unwrap();
        assert!(text.contains("\"samples\"") && text.contains("\"floor\":0.4"), "{text}");
        assert_eq!(serde_json::from_str::<Law>(&text).unwrap(), law);
    }
}
