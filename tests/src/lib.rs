//! Harness, integration and tidy tests.
