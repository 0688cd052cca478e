//! Measures a model from labels and logits: `cargo run --example score`.

use zagros_eval::{ClickScores, LengthsDiffer};

fn main() -> Result<(), LengthsDiffer> {
    // Two batches; a logit above 0 predicts a click with a probability above one half.
    let mut scores = ClickScores::new();
    scores.extend(&[1.0, 0.0, 0.0], &[2.0, -1.0, -3.0])?;
    scores.extend(&[1.0, 0.0], &[-0.5, 0.5])?;
    let measures = scores.compute_measures();
    println!("samples      {}", measures.samples);
    println!("AUC          {:?}", measures.auc);
    println!("logloss      {:?}", measures.logloss);
    println!("calibration  {:?}", measures.calibration);
    Ok(())
}
