//! From files to blocks of whole lines.

pub(crate) mod compression;
pub(crate) mod layout;
pub(crate) mod line_blocks;
pub(crate) mod names;
pub(crate) mod reader;
pub(crate) mod records;
pub(crate) mod text;
