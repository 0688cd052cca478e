//! Rules of the code base that neither the compiler nor clippy knows.

mod circles;
mod compose;
mod counts;
mod denials;
mod dependencies;
mod layers;
mod messages;
mod monitoring;
mod names;
mod promises;
mod sources;
mod syntax;
mod vocabulary;
