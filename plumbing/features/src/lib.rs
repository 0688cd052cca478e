//! Holds no code: its manifest names features of dependencies.
