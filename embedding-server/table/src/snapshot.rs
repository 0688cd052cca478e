//! All rows of one instant, while they change.

pub(crate) mod capture;
pub(crate) mod cut;
pub(crate) mod entry;
pub(crate) mod stripe_rows;
