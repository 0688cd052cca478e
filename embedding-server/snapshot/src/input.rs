//! The source of a file's bytes.

use std::io::{Read, Seek};

pub trait SnapshotInput: Read + Seek + Send {}

impl<T: Read + Seek + Send> SnapshotInput for T {}
