//! What the values of a column mean, and how each is written as text.
//!
//! A value has the id of its text, so the text is what a CSV file would have: a whole number is written without a fraction,
//! also one that is stored as a float, because tools store a column of whole numbers with nulls as floats.

use std::io::Write;

use crate::category::date::date_of;
use crate::parse::number::{format_digits, push_integer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueKind {
    Bool,
    Integer,
    /// A whole number without sign, of 32 or 64 bits.
    Unsigned(u32),
    Half,
    Single,
    Double,
    /// A number with so many digits behind the point.
    Decimal(u32),
    Text,
    Uuid,
    /// Days since 1970.
    Date,
    /// A time of day, in so many parts of a second.
    Time(i64),
    /// A moment, in so many parts of a second since 1970.
    Timestamp(i64),
    /// Null in every row, as a writer says that has seen no value.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ColumnValue<'a> {
    Int(i64),
    Float(f64),
    Bytes(&'a [u8]),
}

impl ValueKind {
    /// In words. Columns of one kind of data have one word, whatever their width: files may differ in that.
    pub(crate) fn plain_name(self) -> &'static str {
        match self {
            Self::Bool => "true or false",
            Self::Integer | Self::Unsigned(_) | Self::Half | Self::Single | Self::Double | Self::Decimal(_) => {
                "numbers"
            }
            Self::Text => "text",
            Self::Uuid => "UUIDs",
            Self::Date => "dates",
            Self::Time(_) => "times of day",
            Self::Timestamp(_) => "timestamps",
            Self::Nothing => "no values",
        }
    }

    /// A value as a number; `None` for text. Dates are days and timestamps are seconds since 1970.
    pub(crate) fn number(self, value: ColumnValue<'_>) -> Option<f64> {
        Some(match (self, value) {
            (Self::Text | Self::Uuid | Self::Nothing, _) => return None,
            (Self::Half, ColumnValue::Bytes(bytes)) => half_to_f64(u16::from_le_bytes(*bytes.first_chunk()?)),
            (Self::Decimal(scale), value) => decimal_digits(value)? as f64 / 10_f64.powi(scale.cast_signed()),
            (Self::Unsigned(bits), ColumnValue::Int(value)) => to_unsigned(value, bits) as f64,
            (Self::Time(parts) | Self::Timestamp(parts), ColumnValue::Int(value)) => value as f64 / parts as f64,
            (_, ColumnValue::Int(value)) => value as f64,
            (_, ColumnValue::Float(value)) => value,
            (_, ColumnValue::Bytes(_)) => return None,
        })
    }

    /// A value as text, in `buffer` unless it is text already.
    pub(crate) fn text<'a>(self, value: ColumnValue<'a>, buffer: &'a mut Vec<u8>) -> &'a [u8] {
        buffer.clear();
        match (self, value) {
            (Self::Uuid, ColumnValue::Bytes(bytes)) => push_uuid(bytes, buffer),
            (Self::Half, ColumnValue::Bytes(_)) => push_float(self.number(value).unwrap_or(f64::NAN), true, buffer),
            (Self::Decimal(scale), value) => push_decimal(decimal_digits(value), scale, buffer),
            (_, ColumnValue::Bytes(bytes)) => return bytes,
            (Self::Bool, ColumnValue::Int(value)) => {
                buffer.extend_from_slice(if value == 0 { b"false" } else { b"true" })
            }
            (Self::Unsigned(bits), ColumnValue::Int(value)) => {
                buffer.extend_from_slice(format_digits(to_unsigned(value, bits), &mut [0; 20]));
            }
            (Self::Date, ColumnValue::Int(days)) => push_date(days, buffer),
            (Self::Time(parts), ColumnValue::Int(value)) => push_time(value, parts, buffer),
            (Self::Timestamp(parts), ColumnValue::Int(value)) => {
                let day = parts.saturating_mul(86_400);
                push_date(value.div_euclid(day), buffer);
                buffer.push(b' ');
                push_time(value.rem_euclid(day), parts, buffer);
            }
            (_, ColumnValue::Int(value)) => push_integer(value, buffer),
            (_, ColumnValue::Float(value)) => push_float(value, self == Self::Single, buffer),
        }
        buffer
    }
}

fn to_unsigned(value: i64, bits: u32) -> u64 {
    if bits == 32 { u64::from(value as u32) } else { value.cast_unsigned() }
}

/// The shortest text that is read back as the same number; a whole number without a fraction.
fn push_float(value: f64, single: bool, out: &mut Vec<u8>) {
    // A vector takes every write.
    let _ = match value {
        value if value.is_nan() => out.write(b"NaN").map(drop),
        0.0 => out.write(b"0").map(drop),
        value if single => write!(out, "{}", value as f32),
        value => write!(out, "{value}"),
    };
}

/// A number of 16 bits: sign, 5 bits of exponent, 10 bits of fraction.
fn half_to_f64(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let size = match exponent {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2_f64.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -size } else { size }
}

/// The number without its point; `None` if it has more than 38 digits.
fn decimal_digits(value: ColumnValue<'_>) -> Option<i128> {
    match value {
        ColumnValue::Int(value) => Some(i128::from(value)),
        ColumnValue::Float(_) => None,
        // Most significant byte first.
        ColumnValue::Bytes(bytes) => {
            let sign = if bytes.first().is_some_and(|first| first >> 7 == 1) { 0xff } else { 0 };
            let (extra, low) = bytes.split_at(bytes.len().saturating_sub(16));
            if extra.iter().any(|byte| *byte != sign) {
                return None;
            }
            let mut sixteen = [sign; 16];
            sixteen[16 - low.len()..].copy_from_slice(low);
            Some(i128::from_be_bytes(sixteen))
        }
    }
}

fn push_decimal(value: Option<i128>, scale: u32, out: &mut Vec<u8>) {
    let Some(value) = value else { return out.extend_from_slice(b"a decimal of more than 38 digits") };
    let (sign, size, width) = (if value < 0 { "-" } else { "" }, value.unsigned_abs(), scale as usize);
    let unit = 10_u128.pow(scale);
    let _ = match scale {
        0 => write!(out, "{sign}{size}"),
        _ => write!(out, "{sign}{}.{:0width$}", size / unit, size % unit),
    };
}

fn push_uuid(bytes: &[u8], out: &mut Vec<u8>) {
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            out.push(b'-');
        }
        let _ = write!(out, "{byte:02x}");
    }
}

fn push_date(days: i64, out: &mut Vec<u8>) {
    let (year, month, day) = date_of(days);
    let _ = write!(out, "{year:04}-{month:02}-{day:02}");
}

/// Hours, minutes and seconds, with a fraction if there is one.
fn push_time(value: i64, parts: i64, out: &mut Vec<u8>) {
    let (seconds, fraction) = (value.div_euclid(parts), value.rem_euclid(parts));
    let _ = write!(out, "{:02}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60);
    if fraction > 0 {
        let width = parts.ilog10() as usize;
        let _ = write!(out, ".{fraction:0width$}");
        while out.last() == Some(&b'0') {
            out.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_are_written_as_in_a_csv_file() {
        use ColumnValue::{Bytes, Float, Int};
        use ValueKind::*;
        for (kind, value, expected) in [
            (Integer, Int(i64::MIN), i64::MIN.to_string()),
            (Unsigned(32), Int(-1), u32::MAX.to_string()),
            (Unsigned(64), Int(-1), u64::MAX.to_string()),
            (Double, Float(17.0), "17".to_owned()),
            (Double, Float(-0.0), "0".to_owned()),
            (Double, Float(0.1), "0.1".to_owned()),
            (Double, Float(f64::NAN), "NaN".to_owned()),
            (Double, Float(-2.5), "-2.5".to_owned()),
            (Single, Float(f64::from(0.1_f32)), "0.1".to_owned()),
            (Half, Bytes(&0x3e00_u16.to_le_bytes()), "1.5".to_owned()),
            (Decimal(2), Int(-1205), "-12.05".to_owned()),
            (Decimal(0), Int(7), "7".to_owned()),
            (Decimal(3), Bytes(&[0xff, 0xff, 0xff]), "-0.001".to_owned()),
            (Date, Int(0), "1970-01-01".to_owned()),
            (Date, Int(20_780), "2026-11-23".to_owned()),
            (Date, Int(11_016), "2000-02-29".to_owned()),
            (Date, Int(-1), "1969-12-31".to_owned()),
            (Time(1_000), Int(67_512_050), "18:45:12.05".to_owned()),
            (Timestamp(1_000_000), Int(1_795_459_500_000_000), "2026-11-23 18:45:00".to_owned()),
            (Timestamp(1_000), Int(-1), "1969-12-31 23:59:59.999".to_owned()),
            (Uuid, Bytes(&[0xab; 16]), "abababab-abab-abab-abab-abababababab".to_owned()),
        ] {
            assert_eq!(String::from_utf8_lossy(kind.text(value, &mut Vec::new())), expected, "{kind:?}");
        }
        for (kind, value, expected) in [
            (Decimal(2), Bytes(&[0x04, 0xb5][..]), Some(12.05)),
            (Decimal(0), Bytes(&[1; 17]), None),
            (Timestamp(1_000), Int(1_500), Some(1.5)),
        ] {
            assert_eq!(kind.number(value), expected, "{kind:?}");
        }
    }

    proptest! {
        #[test]
        fn any_value_has_a_text(number: i64, float: f64, bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            use ValueKind::*;
            for kind in [Bool, Integer, Unsigned(32), Half, Single, Double, Decimal(38), Uuid, Date, Time(1_000), Timestamp(1_000_000_000)] {
                for value in [ColumnValue::Int(number), ColumnValue::Float(float), ColumnValue::Bytes(&bytes)] {
                    let _ = kind.text(value, &mut Vec::new()).len();
                    let _ = kind.number(value);
                }
            }
        }
    }
}
