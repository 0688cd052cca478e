//! Whether a file still has the same content: a hash of samples of its bytes.
//!
//! Samples are spread evenly and include start and end, so that a rewritten file is noticed. They are few, so that a run
//! starts soon. A change of some bytes in a large file may go unnoticed: a run that goes on therefore compares the rows that it has
//! trained on with those of a file that was written since ([`crate::SplitEnd::content`]). A store gives each object a version, which
//! is hashed instead.

use std::os::unix::fs::FileExt;
use std::time::UNIX_EPOCH;

use xxhash_rust::xxh3::Xxh3;

use crate::source::{find_object, is_stdin, object_url, open_file, unreadable};
use crate::{FileInfo, IngestError};

const SAMPLES: u64 = 16;
/// The smallest and the largest sample, bytes. A file of up to a mebibyte is read whole if there are few files.
const BYTES: (u64, u64) = (4 << 10, 64 << 10);
/// The most bytes that are read of all files together, unless samples would then be smaller than the smallest.
const ALL: u64 = 256 << 20;

/// Hashes of samples of each file. They depend only on the content, the size and the number of files.
pub fn fingerprint_files(files: &[FileInfo]) -> Result<Vec<u64>, IngestError> {
    let bytes = (ALL / (SAMPLES * files.len().max(1) as u64)).clamp(BYTES.0, BYTES.1);
    files.iter().map(|file| fingerprint_file(file, bytes)).collect()
}

/// When a file was last written, in nanoseconds since 1970; `None` of objects in a store and of standard input.
pub fn changed_at(file: &FileInfo) -> Option<u64> {
    let changed = std::fs::metadata(&file.path).ok()?.modified().ok()?;
    u64::try_from(changed.duration_since(UNIX_EPOCH).ok()?.as_nanos()).ok()
}

fn fingerprint_file(file: &FileInfo, sample: u64) -> Result<u64, IngestError> {
    if let Some(url) = object_url(&file.path) {
        // The store knows when an object has changed.
        return Ok(xxhash_rust::xxh3::xxh3_64(find_object(&file.path, &url)?.version.as_bytes()));
    }
    if is_stdin(&file.path) {
        // It is read once.
        return Ok(0);
    }
    let (open, _) = open_file(&file.path)?;
    let mut hash = Xxh3::new();
    hash.update(&file.bytes.to_le_bytes());
    let mut buffer = vec![0; sample as usize];
    for (start, end) in sample_ranges(file.bytes, sample) {
        let buffer = &mut buffer[..(end - start) as usize];
        open.read_exact_at(buffer, start).map_err(|source| unreadable(&file.path, source))?;
        hash.update(buffer);
    }
    Ok(hash.digest())
}

/// Ranges of a file, the first at its start and the last at its end.
fn sample_ranges(bytes: u64, sample: u64) -> impl Iterator<Item = (u64, u64)> {
    let (count, room) = if bytes <= SAMPLES * sample { (bytes.div_ceil(sample), 0) } else { (SAMPLES, bytes - sample) };
    // u128: a product of a byte count.
    let spread = move |index: u64| (u128::from(room) * u128::from(index) / u128::from(SAMPLES - 1)) as u64;
    let start = move |index| if room == 0 { index * sample } else { spread(index) };
    (0..count).map(move |index| (start(index), (start(index) + sample).min(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    fn fingerprint_of(bytes: &[u8], sample: u64) -> u64 {
        let (_folder, path) = fixture::file(bytes);
        fingerprint_file(&FileInfo { path, bytes: bytes.len() as u64, splittable: true }, sample).unwrap()
    }

    #[test]
    fn a_small_file_is_read_whole_and_a_large_one_at_its_start_and_end() {
        assert_eq!(sample_ranges(10, 4).collect::<Vec<_>>(), [(0, 4), (4, 8), (8, 10)]);
        assert_eq!(sample_ranges(0, 4).count(), 0);
        let large: Vec<_> = sample_ranges(1 << 40, 64 << 10).collect();
        assert_eq!((large.len(), large[0], large[15]), (16, (0, 64 << 10), ((1 << 40) - (64 << 10), 1 << 40)));
        assert!(large.windows(2).all(|pair| pair[0].1 < pair[1].0));
    }

    #[test]
    fn other_content_of_the_same_size_has_another_fingerprint() {
        let text: Vec<u8> = (0..10_000_u32).flat_map(|row| format!("{row}\n").into_bytes()).collect();
        let mut other = text.clone();
        assert_eq!(fingerprint_of(&text, 4096), fingerprint_of(&other, 4096));
        other[20_000] ^= 1;
        assert_ne!(fingerprint_of(&text, 4096), fingerprint_of(&other, 4096));
        assert_ne!(fingerprint_of(&text, 64), fingerprint_of(&text[..text.len() - 1], 64));
        let reversed: Vec<u8> = text.iter().rev().copied().collect();
        assert_ne!(fingerprint_of(&text, 64), fingerprint_of(&reversed, 64));
    }

    #[test]
    fn a_file_that_is_gone_is_named() {
        let gone = FileInfo { path: "no/such/file".into(), bytes: 3, splittable: true };
        assert!(fingerprint_files(&[gone]).unwrap_err().to_string().contains("no/such/file"));
    }
}
