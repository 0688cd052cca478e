//! How categories are written.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A way to write values whose texts are categories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WrittenForm {
    /// `7`.
    Whole,
    /// `7.0`.
    PointZero,
    /// `0.25`, without a zero at the end.
    Fraction,
    /// `12.50`.
    Padded,
    /// 0 and 1 alone.
    ZeroOne,
    /// `true`, `false`.
    Lower,
    /// `True`, `False`, as Python writes them.
    Capital,
    /// `TRUE`, `FALSE`.
    Upper,
    /// `2026-11-23`.
    Date,
    /// `2026-11-23 18:45:00`.
    DateBlankTime,
    /// `2026-11-23T18:45:00`.
    DateTTime,
    /// Any other text.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WrittenKind {
    Number,
    Truth,
    Time,
    Text,
}

impl WrittenForm {
    #[must_use]
    pub fn kind(self) -> WrittenKind {
        match self {
            Self::Whole | Self::PointZero | Self::Fraction | Self::Padded => WrittenKind::Number,
            Self::ZeroOne | Self::Lower | Self::Capital | Self::Upper => WrittenKind::Truth,
            Self::Date | Self::DateBlankTime | Self::DateTTime => WrittenKind::Time,
            Self::Other => WrittenKind::Text,
        }
    }
}

impl fmt::Display for WrittenForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Whole => "whole numbers, such as 7",
            Self::PointZero => "whole numbers with a point, such as 7.0",
            Self::Fraction => "numbers such as 0.25",
            Self::Padded => "numbers with zeros at their end, such as 12.50",
            Self::ZeroOne => "0 and 1",
            Self::Lower => "true and false",
            Self::Capital => "True and False",
            Self::Upper => "TRUE and FALSE",
            Self::Date => "dates, such as 2026-11-23",
            Self::DateBlankTime => "dates with times, such as 2026-11-23 18:45:00",
            Self::DateTTime => "dates with times, such as 2026-11-23T18:45:00",
            Self::Other => "texts",
        })
    }
}
