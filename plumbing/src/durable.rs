//! The one way to write a durable file: temporary name → fsync → rename → fsync of the folder.
//!
//! A reader finds the old content or the new content, never a part (invariant CK-1).

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Bytes that are written to a file together. More would make no write faster, and count in a process with little memory.
const BUFFER: usize = 64 << 10;

/// Writes `content` to `path`. After an error, `path` is unchanged.
///
/// An error does not name the path: the caller adds it ([`add_path`]).
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    write_with(path, |file| file.write_all(content))
}

/// As [`write`], with content that `fill` streams.
pub fn write_with(path: &Path, fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
    let temporary = temporary_name(path);
    let written = fill_and_sync(&temporary, fill).and_then(|()| rename(&temporary, path));
    written.inspect_err(|_| {
        // The first error matters. A temporary file that stays does no harm.
        let _ = fs::remove_file(&temporary);
    })
}

/// Gives a file that is written and synced its name, in the same folder. A file of that name is replaced.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_folder(to)
}

pub fn add_path(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()))
}

/// As [`write_with`], for content that may turn out to be missing. An inner error leaves `path` unchanged as well.
pub fn write_unless<T, E>(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<Result<T, E>>,
) -> io::Result<Result<T, E>> {
    let mut outcome = None;
    let written = write_with(path, |file| match outcome.insert(fill(file)?) {
        Ok(_) => Ok(()),
        Err(_) => Err(io::Error::other("there is nothing to write")),
    });
    match (outcome, written) {
        (Some(Err(error)), _) => Ok(Err(error)),
        (Some(Ok(done)), Ok(())) => Ok(Ok(done)),
        (_, Err(error)) => Err(error),
        (None, Ok(())) => Err(io::Error::other(format!("{} was not filled", path.display()))),
    }
}

fn fill_and_sync(path: &Path, fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(BUFFER, File::create_new(path)?);
    fill(&mut file)?;
    file.flush()?;
    file.get_ref().sync_all()
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// Each writer has a temporary name of its own. Two writers of one file, in one process or on two machines with a
/// shared disk, must not write to one temporary file.
fn temporary_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{:016x}.tmp", rand::random::<u64>()));
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_litter() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("manifest.json");
        write(&path, b"old").unwrap();
        let failed = write_with(&path, |file| {
            file.write_all(b"half of the ne")?;
            Err(io::Error::other("disk full"))
        });
        let reported = failed.map_err(add_path(&path)).unwrap_err().to_string();
        assert!(reported.contains("manifest.json: disk full"), "{reported}");
        assert_eq!(reported.matches("manifest.json").count(), 1, "{reported}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn missing_content_leaves_the_file_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        let done = write_unless(&path, |file| file.write_all(b"all of it").map(|()| Ok::<_, &str>(9)));
        assert_eq!(done.unwrap(), Ok(9));
        let none = write_unless(&path, |file| file.write_all(b"a part").map(|()| Err::<u8, _>("damaged")));
        assert_eq!(none.unwrap(), Err("damaged"));
        let full = write_unless(&path, |_| Err::<Result<u8, &str>, _>(io::Error::other("disk full")));
        assert_eq!(full.unwrap_err().to_string(), "disk full");
        assert_eq!(fs::read(&path).unwrap(), b"all of it");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    /// Invariant CK-1, with a second writer that starts before the first one is done.
    #[test]
    fn writers_of_the_same_file_do_not_mix() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        let (first, second) = ([1_u8; 100], [2_u8; 10]);
        write_with(&path, |file| {
            file.write_all(&first[..50])?;
            file.flush()?;
            write(&path, &second)?;
            assert_eq!(fs::read(&path).unwrap(), second);
            file.write_all(&first[50..])
        })
        .unwrap();
        assert_eq!(fs::read(&path).unwrap(), first);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
