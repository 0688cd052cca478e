//! What one value of a tensor is.

/// Type of a tensor's values, as libtorch has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarType {
    /// 8 bits without sign.
    Uint8,
    /// 8 bits with sign.
    Int8,
    /// 16 bits with sign.
    Int16,
    /// 32 bits with sign.
    Int,
    /// 64 bits with sign.
    Int64,
    /// IEEE 754, 16 bits.
    Half,
    /// IEEE 754, 32 bits.
    Float,
    /// IEEE 754, 64 bits.
    Double,
    /// Two of [`Self::Half`].
    ComplexHalf,
    /// Two of [`Self::Float`].
    ComplexFloat,
    /// Two of [`Self::Double`].
    ComplexDouble,
    /// One byte, 0 or 1.
    Bool,
    /// The upper 16 bits of [`Self::Float`].
    BFloat16,
    /// Another one, by libtorch's number for it.
    Other(i32),
}

/// With libtorch's number for each, which the shim checks when it is compiled.
const NUMBERED: [(ScalarType, i32); 13] = [
    (ScalarType::Uint8, 0),
    (ScalarType::Int8, 1),
    (ScalarType::Int16, 2),
    (ScalarType::Int, 3),
    (ScalarType::Int64, 4),
    (ScalarType::Half, 5),
    (ScalarType::Float, 6),
    (ScalarType::Double, 7),
    (ScalarType::ComplexHalf, 8),
    (ScalarType::ComplexFloat, 9),
    (ScalarType::ComplexDouble, 10),
    (ScalarType::Bool, 11),
    (ScalarType::BFloat16, 15),
];

impl ScalarType {
    pub(crate) fn of_number(number: i32) -> Self {
        NUMBERED.iter().find(|(_, of)| *of == number).map_or(Self::Other(number), |(found, _)| *found)
    }

    pub(crate) fn number(self) -> i32 {
        match self {
            Self::Other(number) => number,
            known => NUMBERED.iter().find(|(of, _)| *of == known).map_or(-1, |(_, number)| *number),
        }
    }
}

/// A Rust type that is a tensor's value, byte by byte.
pub trait Element: private::Bytes {
    /// As libtorch has it.
    const TYPE: ScalarType;
}

impl Element for u8 {
    const TYPE: ScalarType = ScalarType::Uint8;
}

impl Element for i64 {
    const TYPE: ScalarType = ScalarType::Int64;
}

impl Element for f32 {
    const TYPE: ScalarType = ScalarType::Float;
}

impl Element for f64 {
    const TYPE: ScalarType = ScalarType::Double;
}

mod private {
    /// Types whose every bit pattern is a value, and which have no bytes between their values.
    pub trait Bytes: Copy + Default {}

    impl Bytes for u8 {}
    impl Bytes for i64 {}
    impl Bytes for f32 {}
    impl Bytes for f64 {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_found_by_its_number() {
        for (scalar, number) in NUMBERED {
            assert_eq!((ScalarType::of_number(number), scalar.number()), (scalar, number));
        }
        assert_eq!((ScalarType::of_number(23), ScalarType::Other(23).number()), (ScalarType::Other(23), 23));
    }
}
