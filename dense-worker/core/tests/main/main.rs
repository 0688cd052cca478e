//! The training loop from outside: faults one by one, whole runs by chance, and the page of its states.

mod run;
mod scenarios;
mod simulation;
mod states_page;
