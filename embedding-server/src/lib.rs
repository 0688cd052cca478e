//! The parameter server process.
