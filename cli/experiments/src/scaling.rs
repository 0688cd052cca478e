//! Scaling laws of a family of runs: what a larger network, or more data, would bring.
//!
//! ```text
//!  measurements (N, D, seed, loss) ──► fit (linear part exact, grid + Newton on exponents) ──► laws
//!                                                                                               │ choice: checked on the largest size
//!        interval by bootstrap over seeds and points, plus seed noise ◄── forecast of the next size ◄┘
//! ```
//!
//! N is the number of dense parameters, D that of samples of one pass, C = 6·N·D the compute of training in FLOP (Kaplan et al. 2020), loss the
//! held-out log loss in nats. The crate reads no file, starts no process and knows no time.

mod family;
mod fit;
mod forecast;
mod law;
mod linear;
mod measurement;
mod noise;

pub use family::{Family, FamilyRequest, MemberRun, RunCost};
pub use fit::fit;
pub use forecast::{ForecastDecision, ForecastPlan, ForecastTarget, LawCandidate, LawChoice, LossForecast};
pub use law::{ComputeOptimum, Law, LawAxis, LawForm, PowerTerm};
pub use measurement::{LawCell, Measurement, Measurements};

/// What is wrong with the measurements of a family, or with a family.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScalingError {
    /// A loss, size or number of samples that is none.
    #[error(
        "the run of {parameters} parameters and {samples} samples with seed {seed} has the log loss {loss}, which no law can be fitted to; see its log"
    )]
    NotANumber { parameters: f64, samples: f64, seed: u64, loss: f64 },
    /// Too few places on the axis of a law.
    #[error("a law {law} needs {least} measurements at different places, and there are {found}")]
    TooFewPoints { law: &'static str, found: usize, least: usize },
    /// No family fits into the budget.
    #[error(
        "the smallest family, {sizes} sizes with {seeds} seeds on an eighth of the data, takes about {needed:.0} s, and the budget is {budget:.0} s: \
         give more time, smaller sizes or fewer seeds"
    )]
    BudgetTooSmall { sizes: usize, seeds: usize, needed: f64, budget: f64 },
}
