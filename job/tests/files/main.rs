//! The job file through the public functions: shipped examples, messages, and the reference page.

mod examples;
mod messages;
mod reference;
