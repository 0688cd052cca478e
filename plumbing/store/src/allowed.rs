//! The folders that other processes may ask a role to write and read. All other folders are refused.

use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::url::FolderLocation;
use crate::{FileName, StoreError};

/// A list of folders and prefixes. Everything inside of one of them is allowed.
#[derive(Debug)]
pub struct AllowedFolders(Vec<AllowedFolder>);

#[derive(Debug)]
struct AllowedFolder {
    /// The setting that names the folder, for messages.
    key: String,
    root: String,
    location: FolderLocation,
}

#[derive(Debug, thiserror::Error)]
#[error("{folder:?} is outside of the allowed folders, which are: {}", allowed.join(", "))]
pub struct FolderNotAllowed {
    pub folder: String,
    /// The allowed folders, each with the setting that names it.
    pub allowed: Vec<String>,
}

impl AllowedFolders {
    /// The list of these folders. Each has the setting that names it, and is a path, `file:///path` or
    /// `s3://bucket/prefix`.
    pub fn new(roots: impl IntoIterator<Item = (String, String)>) -> Result<Self, StoreError> {
        let located = roots.into_iter().map(|(key, root)| {
            let location = FolderLocation::parse(&root)?;
            Ok(AllowedFolder { key, root, location })
        });
        Ok(Self(located.collect::<Result<_, _>>()?))
    }

    /// Refuses a folder outside of all allowed folders. Paths are compared after links are resolved on the disk. Paths
    /// with `..` are refused. No request to a store is made, and no credentials are read.
    pub fn check_folder(&self, folder: &str) -> Result<(), FolderNotAllowed> {
        self.check_location(FolderLocation::parse(folder).ok(), folder)
    }

    /// As [`Self::check_folder`], for a file of `folder` or of a folder beside it. Links are resolved.
    pub fn check_file(&self, folder: &str, file: FileName<'_>) -> Result<(), FolderNotAllowed> {
        let location = FolderLocation::parse(folder).ok().and_then(|folder| folder.file_location(file));
        self.check_location(location, &format!("{folder}/{file}"))
    }

    fn check_location(&self, asked: Option<FolderLocation>, folder: &str) -> Result<(), FolderNotAllowed> {
        let is_inside =
            |asked: &FolderLocation| self.0.iter().any(|root| is_within(asked, &root.location).unwrap_or(false));
        if asked.as_ref().is_some_and(is_inside) {
            return Ok(());
        }
        let allowed = self.0.iter().map(|one| format!("{} ({})", one.root, one.key)).collect();
        Err(FolderNotAllowed { folder: folder.to_owned(), allowed })
    }
}

fn is_within(folder: &FolderLocation, root: &FolderLocation) -> io::Result<bool> {
    match (folder, root) {
        (FolderLocation::Disk(folder), FolderLocation::Disk(root)) => Ok(real(folder)?.starts_with(real(root)?)),
        (FolderLocation::Bucket { bucket, prefix }, FolderLocation::Bucket { bucket: whole, prefix: root }) => {
            let below = prefix.strip_prefix(root.as_str());
            let is_below = |below: &str| below.is_empty() || root.is_empty() || below.starts_with('/');
            Ok(bucket == whole && below.is_some_and(is_below))
        }
        _ => Ok(false),
    }
}

/// The path after all links that exist are resolved.
fn real(path: &Path) -> io::Result<PathBuf> {
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut path = std::path::absolute(path)?;
    let mut missing: Vec<OsString> = Vec::new();
    // A link without a target exists, but cannot be resolved. So the path is refused.
    while path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        let Some(name) = path.file_name().map(Into::into) else { break };
        missing.push(name);
        path.pop();
    }
    let there = path.canonicalize()?;
    Ok(missing.iter().rev().fold(there, |path, name| path.join(name)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn allowed(roots: impl IntoIterator<Item = String>) -> AllowedFolders {
        let named = roots.into_iter().enumerate().map(|(number, root)| (format!("key.{number}"), root));
        AllowedFolders::new(named).unwrap()
    }

    #[test]
    fn folders_inside_an_allowed_folder_are_allowed_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let text = |below: &str| folder.path().join(below).display().to_string();
        // A folder that does not exist yet.
        let roots = allowed([text("runs"), text("models")]);
        for inside in ["runs", "runs/a/checkpoints/resume-9", "models/a"] {
            assert!(roots.check_folder(&text(inside)).is_ok(), "{inside}");
            assert!(roots.check_folder(&format!("file://{}", text(inside))).is_ok(), "{inside}");
        }
        for outside in ["", "runs2", "other", "runs/../other", "runs/a/../../other"] {
            assert!(roots.check_folder(&text(outside)).is_err(), "{outside}");
        }
        for outside in ["", "/", "/etc", "relative", "s3://runs/a", "gs://a"] {
            assert!(roots.check_folder(outside).is_err(), "{outside}");
        }
        let refused = roots.check_folder("/etc").unwrap_err().to_string();
        let named = format!("{} (key.0), {} (key.1)", text("runs"), text("models"));
        assert_eq!(refused, format!("\"/etc\" is outside of the allowed folders, which are: {named}"));
    }

    #[test]
    fn a_link_counts_as_its_target() {
        let folder = tempfile::tempdir().unwrap();
        let path = |below: &str| folder.path().join(below);
        ["disk/runs", "other"].iter().for_each(|below| std::fs::create_dir_all(path(below)).unwrap());
        symlink(path("disk/runs"), path("runs")).unwrap();
        symlink(path("other"), path("disk/runs/escape")).unwrap();
        symlink(path("nowhere"), path("disk/runs/dangling")).unwrap();
        let roots = allowed([path("runs").display().to_string()]);
        let check = |below: &str| roots.check_folder(&path(below).display().to_string()).is_ok();
        assert!(check("runs/a") && check("disk/runs/a"), "a root that is a link counts as its target");
        assert!(!check("runs/escape/a") && !check("runs/dangling/a") && !check("disk/a"));
    }

    #[test]
    fn a_file_beside_a_folder_is_inside_where_its_own_folder_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = |below: &str| folder.path().join(below).display().to_string();
        ["runs/a", "runs/b", "other"].iter().for_each(|below| std::fs::create_dir_all(path(below)).unwrap());
        symlink(path("other"), path("runs/link")).unwrap();
        let roots = allowed([path("runs"), "s3://models/ads".to_owned()]);
        let check = |folder: &str, name: &str| roots.check_file(folder, FileName::parse(name).unwrap()).is_ok();
        assert!(check(&path("runs/a"), "rows") && check(&path("runs/a"), "../b/rows"));
        assert!(check("s3://models/ads/a", "../b/rows"));
        for outside in ["runs", "runs/", "runs/."] {
            assert!(!check(&path(outside), "../other/rows"), "{outside}");
        }
        assert!(!check(&path("runs/a"), "../link/rows") && !check("s3://models/ads", "../other/rows"));
        assert!(!check("s3://models", "../other/rows") && !check("/", "../etc/passwd"));
    }

    #[test]
    fn a_prefix_ends_where_a_name_does() {
        let roots = allowed(["s3://models/ads".to_owned(), "s3://whole".to_owned()]);
        for inside in ["s3://models/ads", "s3://models/ads/run-1", "s3://whole/anything"] {
            assert!(roots.check_folder(inside).is_ok(), "{inside}");
        }
        let outside = "s3://models s3://models/adserver s3://models/ads/../x s3://wholesale/a /models/ads";
        for outside in outside.split(' ') {
            assert!(roots.check_folder(outside).is_err(), "{outside}");
        }
    }
}
