//! The source of a file's bytes.

use std::io::{Read, Seek};

/// A source of bytes that can be read and positioned.
pub trait SnapshotInput: Read + Seek + Send {}

impl<T: Read + Seek + Send> SnapshotInput for T {}
