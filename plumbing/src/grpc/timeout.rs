//! The timeout of a request's sender, in gRPC's header `grpc-timeout`.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

const HEADER: HeaderName = HeaderName::from_static("grpc-timeout");
/// Largest number in the header: it may have eight digits.
const MOST: u128 = 99_999_999;

/// Adds the sender's timeout to a request, in milliseconds, rounded up. A timeout longer than a day is in seconds.
pub fn state_timeout(headers: &mut HeaderMap, timeout: Duration) {
    let millis = timeout.as_nanos().div_ceil(1_000_000);
    let text = match millis {
        0..=MOST => format!("{millis}m"),
        _ => format!("{}S", millis.div_ceil(1000).min(MOST)),
    };
    // Digits and a letter are always a valid header value.
    if let Ok(value) = HeaderValue::try_from(text) {
        headers.insert(HEADER, value);
    }
}

/// The timeout of a request's sender. `None` if the header is missing or malformed.
#[must_use]
pub fn stated_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(HEADER)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(3600 * number)),
        "M" => Some(Duration::from_secs(60 * number)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Duration> {
        stated_timeout(&HeaderMap::from_iter([(HEADER, HeaderValue::try_from(text).unwrap())]))
    }

    #[test]
    fn a_stated_timeout_is_read_again_and_never_shorter() {
        let mut headers = HeaderMap::new();
        assert_eq!(stated_timeout(&headers), None);
        for (timeout, stated) in [
            (Duration::ZERO, Duration::ZERO),
            (Duration::from_nanos(1), Duration::from_millis(1)),
            (Duration::from_micros(2_500), Duration::from_millis(3)),
            (Duration::from_secs(300), Duration::from_secs(300)),
            (Duration::from_millis(100_000_001), Duration::from_secs(100_001)),
            (Duration::MAX, Duration::from_secs(99_999_999)),
        ] {
            state_timeout(&mut headers, timeout);
            assert_eq!(stated_timeout(&headers), Some(stated), "{timeout:?}");
        }
    }

    #[test]
    fn every_unit_of_the_protocol_is_read_and_nothing_else() {
        let read_all = ["2H", "2M", "2S", "2m", "2u", "2n"].map(read);
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let nanos = |nanos| Some(Duration::from_nanos(nanos));
        assert_eq!(read_all, [seconds(7200), seconds(120), seconds(2), nanos(2_000_000), nanos(2_000), nanos(2)]);
        for bad in ["", "m", "2", "2x", "-2S", "+2S", "2 S", "123456789n", "2.5S", "2S2S"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert_eq!(read("99999999H"), seconds(3600 * 99_999_999));
    }
}
