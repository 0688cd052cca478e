//! The coordinator process: control path only.
