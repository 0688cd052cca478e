//! The first bytes of files, which say what they are.

pub(crate) const PARQUET: &[u8; 4] = b"PAR1";
pub(crate) const ARROW: &[u8; 6] = b"ARROW1";
/// The first bytes of every Arrow stream, and of each of its messages.
pub(crate) const ARROW_STREAM: [u8; 4] = [0xff; 4];

/// What a file of columns is that starts like this, and what to do with it.
pub(crate) fn other_format(start: &[u8]) -> Option<&'static str> {
    if start.starts_with(PARQUET) {
        Some("it is a Parquet file; set data.format = \"parquet\"")
    } else if start.starts_with(ARROW) {
        Some("it is an Arrow file; set data.format = \"arrow\"")
    } else {
        None
    }
}
