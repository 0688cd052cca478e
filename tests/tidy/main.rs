//! Rules of the code base that neither the compiler nor clippy knows.

mod invariants;
mod layers;
mod monitoring;
mod sources;
