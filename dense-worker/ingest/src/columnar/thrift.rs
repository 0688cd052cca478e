//! Thrift's compact protocol, as far as Parquet uses it: footers and the headers of pages.
//!
//! A structure is read field by field. A field that nobody asks for is skipped. A list never claims more elements than it
//! has bytes.

use super::fault::{Fault, Result, fail};

/// Structures inside structures.
const MOST_DEPTH: u32 = 24;

/// A cursor over a structure.
#[derive(Clone, Debug)]
pub(super) struct Thrift<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireType {
    True,
    False,
    Byte,
    Integer,
    Double,
    Binary,
    List,
    Map,
    Struct,
}

impl WireType {
    fn new(nibble: u8) -> Result<Self> {
        Ok(match nibble {
            1 => Self::True,
            2 => Self::False,
            3 => Self::Byte,
            4..=6 => Self::Integer,
            7 => Self::Double,
            8 => Self::Binary,
            9 | 10 => Self::List,
            11 => Self::Map,
            12 => Self::Struct,
            _ => return fail(format!("a field of the unknown type {nibble}")),
        })
    }
}

/// The bytes end inside a structure.
pub(super) fn ends_early() -> Fault {
    Fault::new("the structure ends early")
}

impl<'a> Thrift<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn byte(&mut self) -> Result<u8> {
        let byte = *self.bytes.get(self.at).ok_or_else(ends_early)?;
        self.at += 1;
        Ok(byte)
    }

    fn unsigned(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        fail("a number of more than 64 bits")
    }

    /// A number of a field of type [`WireType::Integer`].
    pub(super) fn integer(&mut self) -> Result<i64> {
        let value = self.unsigned()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// A number that is a size or a count.
    pub(super) fn size(&mut self) -> Result<u64> {
        let value = self.integer()?;
        u64::try_from(value).or_else(|_| fail(format!("the size {value}")))
    }

    /// A text or bytes.
    pub(super) fn binary(&mut self) -> Result<&'a [u8]> {
        let length = usize::try_from(self.unsigned()?).unwrap_or(usize::MAX);
        if length > self.left() {
            return Err(ends_early());
        }
        let bytes = &self.bytes[self.at..self.at + length];
        self.at += length;
        Ok(bytes)
    }

    /// Bytes as text. Other bytes are replaced: a name is only shown and compared.
    pub(super) fn text(&mut self) -> Result<String> {
        Ok(String::from_utf8_lossy(self.binary()?).into_owned())
    }

    /// The elements of a list of structures, each read by `read`.
    pub(super) fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let (count, _) = self.list_start()?;
        (0..count).map(|_| read(self)).collect()
    }

    fn list_start(&mut self) -> Result<(usize, WireType)> {
        let start = self.byte()?;
        let count = match start >> 4 {
            15 => usize::try_from(self.unsigned()?).unwrap_or(usize::MAX),
            few => usize::from(few),
        };
        if count > self.left() {
            return Err(ends_early());
        }
        Ok((count, WireType::new(start & 15)?))
    }

    /// Reads a structure. `field` reads the value of a field and returns true, or leaves it and returns false.
    pub(super) fn structure(&mut self, mut field: impl FnMut(i16, WireType, &mut Self) -> Result<bool>) -> Result<()> {
        let mut id = 0_i16;
        while let Some(kind) = self.field_start(&mut id)? {
            let before = self.at;
            if !field(id, kind, self)? {
                self.at = before;
                self.skip(kind, 0)?;
            }
        }
        Ok(())
    }

    fn field_start(&mut self, id: &mut i16) -> Result<Option<WireType>> {
        let start = self.byte()?;
        if start == 0 {
            return Ok(None);
        }
        *id = match start >> 4 {
            0 => i16::try_from(self.integer()?).or_else(|_| fail("a field's number"))?,
            step => id.saturating_add(i16::from(step)),
        };
        WireType::new(start & 15).map(Some)
    }

    fn skip(&mut self, kind: WireType, depth: u32) -> Result<()> {
        if depth > MOST_DEPTH {
            return fail("structures inside structures without end");
        }
        match kind {
            WireType::True | WireType::False => {}
            WireType::Byte => drop(self.byte()?),
            WireType::Integer => drop(self.unsigned()?),
            WireType::Binary => drop(self.binary()?),
            WireType::Double => {
                if self.left() < 8 {
                    return Err(ends_early());
                }
                self.at += 8;
            }
            WireType::List => {
                let (count, of) = self.list_start()?;
                (0..count).try_for_each(|_| self.skip_element(of, depth + 1))?;
            }
            WireType::Map => self.skip_map(depth)?,
            WireType::Struct => {
                let mut id = 0;
                while let Some(kind) = self.field_start(&mut id)? {
                    self.skip(kind, depth + 1)?;
                }
            }
        }
        Ok(())
    }

    fn skip_map(&mut self, depth: u32) -> Result<()> {
        let count = self.unsigned()?;
        if count == 0 {
            return Ok(());
        }
        let kinds = self.byte()?;
        let (key, value) = (WireType::new(kinds >> 4)?, WireType::new(kinds & 15)?);
        if count > self.left() as u64 {
            return Err(ends_early());
        }
        (0..count).try_for_each(|_| {
            self.skip_element(key, depth + 1)?;
            self.skip_element(value, depth + 1)
        })
    }

    /// Truth values are bytes in a list, and nothing in a structure.
    fn skip_element(&mut self, kind: WireType, depth: u32) -> Result<()> {
        match kind {
            WireType::True | WireType::False => self.byte().map(drop),
            other => self.skip(other, depth),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Fields 1 (i32 −3), 2 (text), 4 (list of two i32), 5 (true) and the end.
    const BYTES: &[u8] = &[0x15, 0x05, 0x18, 2, b'a', b'b', 0x29, 0x25, 2, 4, 0x11, 0];

    #[test]
    fn wanted_fields_are_read_and_others_skipped() {
        let (mut number, mut truth) = (None, None);
        let mut thrift = Thrift::new(BYTES);
        thrift
            .structure(|id, kind, thrift| {
                match id {
                    1 => number = Some(thrift.integer()?),
                    5 => truth = Some(kind == WireType::True),
                    _ => return Ok(false),
                }
                Ok(true)
            })
            .unwrap();
        assert_eq!((number, truth, thrift.position()), (Some(-3), Some(true), BYTES.len()));
    }

    #[test]
    fn a_structure_that_ends_early_is_refused_at_every_byte() {
        for length in 0..BYTES.len() {
            assert_eq!(Thrift::new(&BYTES[..length]).structure(|_, _, _| Ok(false)), Err(ends_early()), "{length}");
        }
    }

    #[test]
    fn a_list_claims_no_more_than_its_bytes() {
        let bytes = [0x19, 0xf5, 0xff, 0xff, 0xff, 0xff, 0x0f, 1, 0];
        let read = Thrift::new(&bytes).structure(|_, _, thrift| thrift.list(Thrift::integer).map(|_| true));
        assert_eq!(read, Err(ends_early()));
    }

    #[test]
    fn endless_nesting_is_refused() {
        let bytes = [0x1c].repeat(100_000);
        assert!(Thrift::new(&bytes).structure(|_, _, _| Ok(false)).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_structure_or_refused(bytes: Vec<u8>) {
            let mut thrift = Thrift::new(&bytes);
            let _ = thrift.structure(|_, _, _| Ok(false));
            prop_assert!(thrift.position() <= bytes.len());
        }
    }
}
