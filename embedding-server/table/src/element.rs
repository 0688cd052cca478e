//! How a weight is stored. Arithmetic and optimiser state are f32 throughout.

/// Type of a stored weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Element {
    /// IEEE 754 single precision.
    #[default]
    F32,
    /// IEEE 754 half precision: 11 bits of significand, largest value 65504.
    F16,
    /// bfloat16: the range of f32, 8 bits of significand.
    Bf16,
}

impl Element {
    /// Bytes of a weight.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Words of 32 bits that hold `dim` weights; an odd narrow one leaves half a word unused.
    #[must_use]
    pub fn words(self, dim: usize) -> usize {
        (dim * self.bytes()).div_ceil(size_of::<u32>())
    }

    /// Name in files and settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_weights_share_words() {
        assert_eq!([Element::F32, Element::F16, Element::Bf16].map(|element| element.words(5)), [5, 3, 3]);
        assert_eq!(Element::Bf16.words(16), 8);
    }
}
