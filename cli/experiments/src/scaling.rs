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
