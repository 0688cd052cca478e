//! The trainer process: reads, looks up, steps, pushes.
