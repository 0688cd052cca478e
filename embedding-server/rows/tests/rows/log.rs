//! The log as a whole: what was flushed is read again, whatever the end of the process or the disk does to it.

mod failures;
mod support;
mod tails;
