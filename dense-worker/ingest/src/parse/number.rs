//! Numbers in text.

/// Largest magnitude that is accepted: the largest of an `f32`.
pub(crate) const MOST: f64 = f32::MAX as f64;

/// Longest run of digits that cannot overflow an `i64`.
const FAST_DIGITS: usize = 18;

/// A decimal number; `None` for other text. NaN, infinities and magnitudes beyond `f32` are not accepted, because they
/// would make the whole network NaN.
#[inline]
pub(crate) fn parse_number(text: &[u8]) -> Option<f64> {
    parse_integer(text).or_else(|| parse_decimal(text))
}

/// The common case, several times faster than the general one.
#[inline]
fn parse_integer(text: &[u8]) -> Option<f64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || digits.len() > FAST_DIGITS {
        return None;
    }
    let mut value = 0_i64;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + i64::from(digit);
    }
    Some(if negative { -value } else { value } as f64)
}

#[cold]
fn parse_decimal(text: &[u8]) -> Option<f64> {
    let value: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (value.abs() <= MOST).then_some(value)
}

/// The digits of a number, which is several times faster than the standard library's formatting.
#[inline]
pub(crate) fn format_digits(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[start..];
        }
    }
}

pub(crate) fn push_integer(number: i64, out: &mut Vec<u8>) {
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(format_digits(number.unsigned_abs(), &mut [0; 20]));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_in_their_usual_forms() {
        for (text, value) in
            [("0", 0.0), ("-3", -3.0), ("007", 7.0), ("1.5", 1.5), ("-.25", -0.25), ("+2", 2.0), ("1e3", 1000.0)]
        {
            assert_eq!(parse_number(text.as_bytes()), Some(value), "{text}");
        }
    }

    #[test]
    fn text_that_is_not_a_finite_number_is_refused() {
        for text in ["", "-", "nan", "NaN", "inf", "-Infinity", "1e39", "0x10", "1 ", " 1", "1,5", "--1", "1_000", "１"]
        {
            assert_eq!(parse_number(text.as_bytes()), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn the_fast_case_agrees_with_the_standard_library(value: i64, zeros in 0_usize..4) {
            let sign = if value < 0 { "-" } else { "" };
            let text = format!("{sign}{}{}", "0".repeat(zeros), value.unsigned_abs());
            prop_assert_eq!(parse_number(text.as_bytes()), text.parse().ok());
        }

        #[test]
        fn any_bytes_are_a_number_or_refused(text: Vec<u8>) {
            prop_assert!(parse_number(&text).is_none_or(f64::is_finite));
        }

        #[test]
        fn integers_are_written_as_the_standard_library_writes_them(value: i64) {
            let mut text = Vec::new();
            push_integer(value, &mut text);
            prop_assert_eq!(String::from_utf8(text).unwrap(), value.to_string());
        }
    }
}
