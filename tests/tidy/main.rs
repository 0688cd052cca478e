//! Rules of the code base that neither the compiler nor clippy knows.

mod circles;
mod compose;
mod denials;
mod dependencies;
mod invariants;
mod layers;
mod lengths;
mod logs;
mod monitoring;
mod names;
mod promises;
mod proof;
mod sources;
mod syntax;
mod vocabulary;
