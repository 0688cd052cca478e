//! The meaning of a text as a folder, or as an object.
//!
//! The name of a file as a save states it: a file of its own folder, or of a folder beside it.
//!
//! ```text
//! resume-20/   rows.zrows                     "rows.zrows"                of this folder
//! resume-30/                                  "../resume-20/rows.zrows"   of the folder beside
//! ```
//!
//! No other paths are names. So a name leads to files below the parent of the folder, and nowhere else.

use std::fmt;
use std::path::PathBuf;

use object_store::path::Path as Key;

use crate::StoreError;
use crate::stores::StoreKind;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FolderLocation {
    Disk(PathBuf),
    /// A bucket, and a prefix without slashes at its ends. An empty prefix is the whole bucket.
    Bucket {
        bucket: String,
        prefix: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectUrl {
    /// The store: `s3://bucket`, `gs://bucket`, `az://container`, or `https://host` with the query of the URL, if it has one.
    pub root: String,
    pub key: String,
}

impl ObjectUrl {
    /// Divides the URL of an object or a prefix; `None` for any other text, such as a path.
    pub fn parse(url: &str) -> Option<Self> {
        let (kind, rest) = StoreKind::split_url(url)?;
        let scheme = &url[..url.len() - rest.len()];
        if kind != StoreKind::Http {
            let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
            return Some(Self { root: format!("{scheme}{bucket}"), key: key.to_owned() });
        }
        let (rest, query) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let query = query.split('#').next().unwrap_or_default();
        // A server is asked for the decoded path, encoded again.
        let key = Key::from_url_path(path).map_or_else(|_| path.to_owned(), |key| key.to_string());
        Some(Self { root: format!("{scheme}{host}{query}"), key })
    }
}

/// A text with URLs in it, without what may be secret of them: user and password, and the query of `http` and `https`, which may
/// hold a signature. In other URLs a `?` stands for any letter.
pub fn hide_secrets(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("://") {
        let (before, url) = rest.split_at(start + 3);
        let (url, after) = url.split_at(url.find(['"', '\'', ',', ' ', '\n', '>']).unwrap_or(url.len()));
        let (host, path) = url.split_at(url.find(['/', '?', '#']).unwrap_or(url.len()));
        shown.push_str(before);
        shown.push_str(host.rsplit_once('@').map_or(host, |(_, host)| host));
        let is_http = before.ends_with("http://") || before.ends_with("https://");
        match path.find('?').filter(|_| is_http) {
            Some(query) => shown.extend([&path[..query], "?…"]),
            None => shown.push_str(path),
        }
        rest = after;
    }
    shown + rest
}

impl FolderLocation {
    /// Reads a path, `file:///path` or `s3://bucket/prefix`.
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
    pub(crate) fn file_location(&self, file: FileName<'_>) -> Option<Self> {
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileName<'a> {
    /// The folder beside, if it is not the folder itself.
    pub beside: Option<&'a str>,
    /// The name inside of its folder.
    pub name: &'a str,
}

impl<'a> FileName<'a> {
    /// Reads a name. `None` if it is a path of another form.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (beside, name) = match text.strip_prefix("../") {
            None => (None, text),
            Some(rest) => rest.split_once('/').map(|(folder, name)| (Some(folder), name))?,
        };
        (is_plain(name) && beside.is_none_or(is_plain)).then_some(Self { beside, name })
    }

    /// The name of the same file for a folder beside its `own` one.
    pub fn from_beside(self, own: &'a str) -> String {
        Self { beside: Some(self.beside.unwrap_or(own)), name: self.name }.to_string()
    }
}

/// Whether a text is one name, and neither a path nor an entry that each folder has.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0'])
}

impl fmt::Display for FileName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.beside {
            None => f.write_str(self.name),
            Some(folder) => write!(f, "../{folder}/{}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_secret_of_a_url_is_not_shown() {
        for (text, shown) in [
            ("[\"https://me:word@host/a.csv?sig=x&y=/z\", \"b.csv\"]", "[\"https://host/a.csv?…\", \"b.csv\"]"),
            ("https://host?token=1", "https://host?…"),
            ("'s3://key:secret@bucket/day-??.csv' and s3://bucket/a@b", "'s3://bucket/day-??.csv' and s3://bucket/a@b"),
            ("no URL: a@b?c", "no URL: a@b?c"),
        ] {
            assert_eq!(hide_secrets(text), shown);
        }
    }

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
    fn urls_are_divided_into_store_and_key() {
        let parsed = |url: &str| ObjectUrl::parse(url).map(|ObjectUrl { root, key }| (root, key));
        let is = |root: &str, key: &str| Some((root.to_owned(), key.to_owned()));
        assert_eq!(parsed("s3://logs/a/b.csv"), is("s3://logs", "a/b.csv"));
        assert_eq!(parsed("gs://logs"), is("gs://logs", ""));
        assert_eq!(parsed("az://logs/day/*"), is("az://logs", "day/*"));
        assert_eq!(parsed("https://a.b:8080/c%20d/e.csv?sig=1/2"), is("https://a.b:8080?sig=1/2", "c d/e.csv"));
        assert_eq!(parsed("/data/s3/x"), None);
        assert_eq!(parsed("ftp://a/b"), None);
    }

    #[test]
    fn a_text_that_is_not_a_folder_is_reported_with_examples() {
        for text in ["", "gs://models", "s3://", "s3:///prefix", "s3://a b/c", "s3://a/../b", "file://host/a"] {
            let reported = FolderLocation::parse(text).unwrap_err().to_string();
            assert!(reported.contains("give a path, or s3://bucket/prefix"), "{reported}");
        }
    }

    #[test]
    fn a_name_is_of_the_folder_or_of_one_beside_it() {
        let own = FileName::parse("rows.zrows").unwrap();
        assert_eq!((own.beside, own.name), (None, "rows.zrows"));
        let neighbour = FileName::parse("../resume-9/rows.zrows").unwrap();
        assert_eq!((neighbour.beside, neighbour.name), (Some("resume-9"), "rows.zrows"));
        assert_eq!(own.from_beside("resume-9"), neighbour.to_string());
        assert_eq!(neighbour.from_beside("resume-10"), "../resume-9/rows.zrows");
        let others = "|.|..|/|../|../..|../../a|../a|../a/|..//a|a/b|./a|/a|../a/b/c|../../a/b|../a/..|..\\a|a\0";
        for other in others.split('|') {
            assert_eq!(FileName::parse(other), None, "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn a_name_is_read_as_it_is_written(text in "[./a\\\\]{0,9}") {
            if let Some(name) = FileName::parse(&text) {
                prop_assert_eq!(name.to_string(), text);
            }
        }
    }
}
