//! The training loop from outside: faults one by one, whole runs by chance, and the page of its states.

mod run;
mod scenarios;
mod simulated;
mod states_page;

use zagros_worker_core::{LoopConfig, TrainingPolicy};

const HYBRID: TrainingPolicy = TrainingPolicy::SynchronousGroup { in_turns: false };

/// Two epochs over files, with checkpoints and a held-out part, and no limits.
fn config(policy: TrainingPolicy) -> LoopConfig {
    LoopConfig {
        policy,
        from_memory: false,
        epochs: 2,
        max_steps: None,
        evaluate_every: None,
        early_stop: None,
        has_held_out: true,
        resets_rows: false,
        keeps_checkpoints: true,
        checkpoint_every: None,
        is_replacement: false,
    }
}
