//! Which ids get a row. An id without a row is answered with zeros. Its gradients are counted and dropped.
//!
//! ```text
//! id without a row ─► StripeFilter (one in each stripe, under the stripe's lock)
//!                       └► AdmissionFilter: always │ exact counts │ count-min sketch │ share of ids
//!                            admitted: a row is made      refused: zeros
//! ```

mod filter;
pub(crate) mod policy;
mod sketch;
pub(crate) mod stripe_filter;
pub(crate) mod transfer;
