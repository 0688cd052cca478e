//! The columns of a file by their names.
//!
//! A column inside a group is named by its path: `user.id`. The two levels that a list adds have no part in the name: the
//! column `tags` is a list of texts, and `items.price` is the prices of a list of items.

use super::fault::{Result, fail};
use super::footer::Node;
use super::kind::{Kind, Physical};

/// Groups inside groups.
const MOST_DEPTH: usize = 32;

/// A column that has values.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub(super) name: String,
    /// How its values are stored and what they mean, if that is known.
    pub(super) values: Result<(Physical, Kind)>,
    pub(super) levels: Levels,
}

/// How deep a column is: the largest definition level and the largest repetition level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Levels {
    pub(super) definition: u32,
    pub(super) repetition: u32,
}

/// The columns of a schema, in the order of the chunks of a row group.
pub(super) fn leaves(schema: &[Node]) -> Result<Vec<Leaf>> {
    let [root, rest @ ..] = schema else { return fail("it has no schema") };
    let mut walk = Walk { nodes: rest, leaves: Vec::new() };
    for _ in 0..root.children {
        walk.node(&Parent::default(), 0)?;
    }
    Ok(walk.leaves)
}

struct Walk<'a> {
    nodes: &'a [Node],
    leaves: Vec<Leaf>,
}

/// What a node inherits.
#[derive(Clone, Debug, Default)]
struct Parent {
    path: Vec<String>,
    levels: Levels,
    /// Levels below that are not named.
    unnamed: Unnamed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Unnamed {
    #[default]
    None,
    /// The repeated node of a list, and its only child.
    ListAndElement,
    /// The repeated node of a map.
    Entries,
    Element,
}

impl Walk<'_> {
    fn node(&mut self, parent: &Parent, depth: usize) -> Result<()> {
        let [node, rest @ ..] = self.nodes else { return fail("its schema ends early") };
        self.nodes = rest;
        if depth > MOST_DEPTH {
            return fail(format!("it has groups inside groups, more than {MOST_DEPTH}"));
        }
        let here = parent.child(node);
        let Some(physical) = node.physical else {
            for _ in 0..node.children {
                self.node(&here, depth + 1)?;
            }
            return Ok(());
        };
        let values =
            Physical::new(physical, node.length).and_then(|physical| Ok((physical, Kind::new(node, physical)?)));
        self.leaves.push(Leaf { name: here.path.join("."), values, levels: here.levels });
        Ok(())
    }
}

impl Parent {
    fn child(&self, node: &Node) -> Self {
        let (mut path, mut levels) = (self.path.clone(), self.levels);
        levels.definition += u32::from(node.repetition != 0);
        levels.repetition += u32::from(node.repetition == 2);
        let is_repeated = node.repetition == 2;
        let variant = node.logical.map(|logical| logical.variant);
        let unnamed = match (self.unnamed, node.physical) {
            (Unnamed::ListAndElement, None) if is_repeated && node.children == 1 => Unnamed::Element,
            (Unnamed::ListAndElement | Unnamed::Entries, _) if is_repeated => Unnamed::None,
            (unnamed, _) => {
                if unnamed != Unnamed::Element {
                    path.push(node.name.clone());
                }
                match (variant, node.converted) {
                    (Some(3), _) | (None, Some(3)) => Unnamed::ListAndElement,
                    (Some(2), _) | (None, Some(1 | 2)) => Unnamed::Entries,
                    _ => Unnamed::None,
                }
            }
        };
        Self { path, levels, unnamed }
    }
}
