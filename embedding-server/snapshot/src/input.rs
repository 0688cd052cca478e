//! What a file of rows is read through.

use std::io::{Read, Seek};

/// What a file is read through.
pub trait Input: Read + Seek + Send {}

impl<T: Read + Seek + Send> Input for T {}
