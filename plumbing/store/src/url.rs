//! The meaning of a text as a folder.

use std::path::PathBuf;

use crate::{FileName, StoreError};

/// The place of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FolderLocation {
    Disk(PathBuf),
    /// A bucket, and a prefix without slashes at its ends. An empty prefix is the whole bucket.
    Bucket {
        bucket: String,
        prefix: String,
    },
}

impl FolderLocation {
    /// Reads a path, `file:///path` or `s3://bucket/prefix`.
    ///
    /// # Errors
    /// If the text is none of these.
    pub(crate) fn parse(text: &str) -> Result<Self, StoreError> {
        let wrong = |reason| StoreError::Place { text: text.to_owned(), reason };
        match text.split_once("://") {
            None if text.is_empty() => Err(wrong("it is empty")),
            None => Ok(Self::Disk(text.into())),
            Some(("file", path)) if path.starts_with('/') => Ok(Self::Disk(path.into())),
            Some(("file", _)) => Err(wrong("a file:// folder is an absolute path, as in file:///mnt/disk")),
            Some(("s3", rest)) => {
                let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
                if bucket.is_empty() || !bucket.chars().all(is_name) {
                    return Err(wrong("the name of a bucket has only letters, digits, dots and hyphens"));
                }
                let parts: Vec<&str> = prefix.split('/').filter(|part| !part.is_empty()).collect();
                if parts.iter().any(|part| [".", ".."].contains(part)) {
                    return Err(wrong("a prefix must not contain . or .."));
                }
                Ok(Self::Bucket { bucket: bucket.to_owned(), prefix: parts.join("/") })
            }
            Some(_) => Err(wrong("only s3:// and file:// are supported")),
        }
    }

    /// The place of a file. `None` if the folder has no parent, and so none beside it.
    pub(crate) fn file(&self, file: FileName<'_>) -> Option<Self> {
        match self {
            Self::Disk(folder) => {
                let folder = match file.beside {
                    None => folder.clone(),
                    Some(beside) => folder.parent()?.join(beside),
                };
                Some(Self::Disk(folder.join(file.name)))
            }
            Self::Bucket { bucket, prefix } => {
                let parts = prefix.split('/').filter(|part| !part.is_empty());
                let mut parts: Vec<&str> = parts.collect();
                if let Some(beside) = file.beside {
                    parts.pop()?;
                    parts.push(beside);
                }
                parts.push(file.name);
                Some(Self::Bucket { bucket: bucket.clone(), prefix: parts.join("/") })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_urls_are_distinguished() {
        let bucket =
            |bucket: &str, prefix: &str| FolderLocation::Bucket { bucket: bucket.into(), prefix: prefix.into() };
        assert_eq!(FolderLocation::parse("runs/a").unwrap(), FolderLocation::Disk("runs/a".into()));
        assert_eq!(FolderLocation::parse("file:///mnt/a").unwrap(), FolderLocation::Disk("/mnt/a".into()));
        assert_eq!(FolderLocation::parse("s3://models").unwrap(), bucket("models", ""));
        assert_eq!(FolderLocation::parse("s3://models//ads/ctr/").unwrap(), bucket("models", "ads/ctr"));
    }

    #[test]
    fn a_text_that_is_not_a_folder_is_reported_with_examples() {
        for text in ["", "gs://models", "s3://", "s3:///prefix", "s3://a b/c", "s3://a/../b", "file://host/a"] {
            let reported = FolderLocation::parse(text).unwrap_err().to_string();
            assert!(reported.contains("give a path, or s3://bucket/prefix"), "{reported}");
        }
    }
}
