//! Rules of the code base that neither the compiler nor clippy knows.

mod circles;
mod counts;
mod denials;
mod dependencies;
mod layers;
mod monitoring;
mod names;
mod promises;
mod sources;
mod syntax;
mod vocabulary;
