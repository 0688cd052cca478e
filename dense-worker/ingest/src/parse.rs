//! From blocks to rows.

pub(crate) mod bad;
pub(crate) mod bad_budget;
pub(crate) mod bags;
pub(crate) mod block;
pub(crate) mod fields;
pub(crate) mod hold_out;
pub(crate) mod json;
pub(crate) mod label;
pub(crate) mod missing;
pub(crate) mod number;
pub(crate) mod numbers;
pub(crate) mod object;
pub(crate) mod row;
pub(crate) mod sink;
