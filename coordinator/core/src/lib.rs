//! The coordinator as a pure state machine: event in, actions out, time is an argument.
