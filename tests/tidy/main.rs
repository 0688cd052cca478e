//! Rules of the code base that neither the compiler nor clippy knows.

mod compose;
mod dependencies;
mod invariants;
mod layers;
mod lengths;
mod logs;
mod monitoring;
mod sources;
