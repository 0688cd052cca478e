//! From files to blocks of whole lines.

pub(crate) mod cutter;
pub(crate) mod layout;
pub(crate) mod reader;
pub(crate) mod text;
