//! What a file says about itself: its schema and where the pages of its columns are.

use super::fault::{Result, fail};
use super::thrift::{Thrift, WireType};

/// A file's footer.
#[derive(Clone, Debug, Default)]
pub(super) struct Footer {
    /// The tree of columns, parents before children.
    pub(super) schema: Vec<Node>,
    /// The row groups, in order.
    pub(super) groups: Vec<Group>,
}

/// A column or a group of columns.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) name: String,
    /// How the values of a column are stored; `None` for a group.
    pub(super) physical: Option<i64>,
    /// Bytes of a value of fixed length.
    pub(super) length: u64,
    /// 0: required, 1: optional, 2: repeated.
    pub(super) repetition: i64,
    pub(super) children: u64,
    pub(super) converted: Option<i64>,
    pub(super) scale: i64,
    pub(super) logical: Option<Logical>,
}

/// What the values of a column mean: the number of the variant, and its parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Logical {
    pub(super) variant: i16,
    pub(super) scale: i64,
    /// 1: milliseconds, 2: microseconds, 3: nanoseconds.
    pub(super) unit: i16,
    pub(super) unsigned: bool,
}

/// A row group.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    pub(super) rows: u64,
    pub(super) chunks: Vec<Chunk>,
}

/// The pages of a column in a row group.
#[derive(Clone, Debug, Default)]
pub(super) struct Chunk {
    /// Whether the pages are in another file, or encrypted.
    pub(super) elsewhere: bool,
    pub(super) physical: i64,
    pub(super) codec: i64,
    /// Values, nulls included.
    pub(super) values: u64,
    pub(super) bytes: u64,
    data_start: u64,
    dictionary_start: Option<u64>,
}

impl Chunk {
    /// Offset of its first page.
    pub(super) fn start(&self) -> u64 {
        // Some writers say 0 for no dictionary.
        self.dictionary_start.filter(|start| *start > 0).map_or(self.data_start, |start| start.min(self.data_start))
    }
}

impl Footer {
    /// Reads the structure `FileMetaData`.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        let mut footer = Self::default();
        Thrift::new(bytes).structure(|id, kind, thrift| {
            match (id, kind) {
                (2, WireType::List) => footer.schema = thrift.list(Node::read)?,
                (4, WireType::List) => footer.groups = thrift.list(Group::read)?,
                (8, _) => return fail("it is encrypted; write it without encryption"),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(footer)
    }
}

impl Node {
    fn read(thrift: &mut Thrift<'_>) -> Result<Self> {
        let mut node = Self::default();
        thrift.structure(|id, kind, thrift| {
            match (id, kind) {
                (1, WireType::Integer) => node.physical = Some(thrift.integer()?),
                (2, WireType::Integer) => node.length = thrift.size()?,
                (3, WireType::Integer) => node.repetition = thrift.integer()?,
                (4, WireType::Binary) => node.name = thrift.text()?,
                (5, WireType::Integer) => node.children = thrift.size()?,
                (6, WireType::Integer) => node.converted = Some(thrift.integer()?),
                (7, WireType::Integer) => node.scale = thrift.integer()?,
                (10, WireType::Struct) => node.logical = Logical::read(thrift)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(node)
    }
}

impl Logical {
    /// A union: the number of its only field is the variant.
    fn read(thrift: &mut Thrift<'_>) -> Result<Option<Self>> {
        let mut logical = None;
        thrift.structure(|variant, kind, thrift| {
            if kind != WireType::Struct {
                return Ok(false);
            }
            logical = Some(Self::parameters(variant, thrift)?);
            Ok(true)
        })?;
        Ok(logical)
    }

    fn parameters(variant: i16, thrift: &mut Thrift<'_>) -> Result<Self> {
        let mut logical = Self { variant, ..Self::default() };
        thrift.structure(|id, kind, thrift| {
            match (variant, id, kind) {
                // DECIMAL
                (5, 1, WireType::Integer) => logical.scale = thrift.integer()?,
                // TIME, TIMESTAMP
                (7 | 8, 2, WireType::Struct) => {
                    thrift.structure(|unit, _, _| {
                        logical.unit = unit;
                        Ok(false)
                    })?;
                }
                // INTEGER
                (10, 2, WireType::False) => logical.unsigned = true,
                (10, 2, WireType::True) => {}
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(logical)
    }
}

impl Group {
    fn read(thrift: &mut Thrift<'_>) -> Result<Self> {
        let mut group = Self::default();
        thrift.structure(|id, kind, thrift| {
            match (id, kind) {
                (1, WireType::List) => group.chunks = thrift.list(Chunk::read)?,
                (3, WireType::Integer) => group.rows = thrift.size()?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(group)
    }
}

impl Chunk {
    fn read(thrift: &mut Thrift<'_>) -> Result<Self> {
        let mut chunk = Self { elsewhere: true, ..Self::default() };
        let mut elsewhere = false;
        thrift.structure(|id, kind, thrift| {
            match (id, kind) {
                (1 | 8, _) => {
                    elsewhere = true;
                    return Ok(false);
                }
                (3, WireType::Struct) => chunk.read_metadata(thrift)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        chunk.elsewhere |= elsewhere;
        Ok(chunk)
    }

    fn read_metadata(&mut self, thrift: &mut Thrift<'_>) -> Result<()> {
        self.elsewhere = false;
        thrift.structure(|id, kind, thrift| {
            match (id, kind) {
                (1, WireType::Integer) => self.physical = thrift.integer()?,
                (4, WireType::Integer) => self.codec = thrift.integer()?,
                (5, WireType::Integer) => self.values = thrift.size()?,
                (7, WireType::Integer) => self.bytes = thrift.size()?,
                (9, WireType::Integer) => self.data_start = thrift.size()?,
                (11, WireType::Integer) => self.dictionary_start = Some(thrift.size()?),
                _ => return Ok(false),
            }
            Ok(true)
        })
    }
}
