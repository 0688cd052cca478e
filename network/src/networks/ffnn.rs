//! A feed-forward network over all features side by side.

use crate::wiring::{Value, Wiring, wide};

pub fn ffnn(net: &mut Wiring, hidden: &[i64]) -> Value {
    let x = net.all_inputs();
    net.logit("layers", x, &wide(hidden))
}
