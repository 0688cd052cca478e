//! The name of a file as a save states it: a file of its own folder, or of a folder beside it.
//!
//! ```text
//! resume-20/   rows.zrows                     "rows.zrows"                of this folder
//! resume-30/                                  "../resume-20/rows.zrows"   of the folder beside
//! ```
//!
//! No other paths are names. So a name leads to files below the parent of the folder, and nowhere else.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileName<'a> {
    /// The folder beside, if it is not the folder itself.
    pub beside: Option<&'a str>,
    /// The name inside of its folder.
    pub name: &'a str,
}

impl<'a> FileName<'a> {
    /// Reads a name. `None` if it is a path of another form.
    #[must_use]
    pub fn parse(text: &'a str) -> Option<Self> {
        let (beside, name) = match text.strip_prefix("../") {
            None => (None, text),
            Some(rest) => rest.split_once('/').map(|(folder, name)| (Some(folder), name))?,
        };
        (is_plain(name) && beside.is_none_or(is_plain)).then_some(Self { beside, name })
    }

    /// The name of the same file for a folder beside its `own` one.
    #[must_use]
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
