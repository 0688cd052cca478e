//! Small files that are written whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::LogError;

/// Writes a small file so that it has all of the content or is unchanged: temporary file, sync, rename, sync of the folder
/// (invariant CK-1).
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = File::create(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Writes JSON. The last line is its checksum, in 8 hexadecimal digits.
pub(crate) fn write_json(path: &Path, mut json: Vec<u8>) -> Result<(), LogError> {
    let checksum = crc32c::crc32c(&json);
    json.extend(format!("\n{checksum:08x}\n").bytes());
    write_whole(path, &json).map_err(LogError::io("write", path))
}

/// The value in a file of [`write_json`]. Files of earlier releases have no checksum.
pub(crate) fn parse_json<T: DeserializeOwned>(path: &Path, text: &[u8]) -> Result<T, LogError> {
    let (json, checksum) = split_checksum(text);
    if checksum.is_some_and(|checksum| checksum != crc32c::crc32c(json)) {
        return Err(LogError::damaged(path, 0, "it has another checksum"));
    }
    serde_json::from_slice(json).map_err(|error| LogError::damaged(path, 0, error.to_string()))
}

/// JSON without the line of its checksum, if it has one.
pub(crate) fn split_checksum(text: &[u8]) -> (&[u8], Option<u32>) {
    let line = |digits: &[u8]| u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
    let split = text.split_last_chunk::<10>().and_then(|(json, end)| match end {
        [b'\n', digits @ .., b'\n'] => Some((json, Some(line(digits)?))),
        _ => None,
    });
    split.unwrap_or((text, None))
}
