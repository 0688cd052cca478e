//! Numbers and durations as a job file writes them.

use serde::Serialize;
use serde_json::Value as Json;

/// Replaces each f32 by the f64 with the shortest text that rounds back to it: 0.01, not 0.009999999776.
pub(crate) fn shorten(value: &mut Json) {
    match value {
        Json::Array(items) => items.iter_mut().for_each(shorten),
        Json::Object(keys) => keys.values_mut().for_each(shorten),
        Json::Number(number) => {
            let Some(wide) = number.as_f64().filter(|_| number.is_f64()) else { return };
            let narrow = wide as f32;
            if f64::from(narrow) == wide {
                *value = narrow.to_string().parse::<f64>().map_or(Json::from(wide), Json::from);
            }
        }
        _ => {}
    }
}

/// A choice as the job file writes it.
pub(crate) fn word(choice: &impl Serialize) -> String {
    let written = serde_json::to_value(choice).unwrap_or_default();
    written.as_str().unwrap_or_default().to_owned()
}

pub(super) mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(in crate::settings) fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        duration.as_secs_f64().serialize(to)
    }

    pub(in crate::settings) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}

/// A duration as a number of seconds, 0 for none.
pub(super) mod seconds_or_none {
    use std::time::Duration;

    use serde::{Deserializer, Serializer};

    use super::seconds;

    pub(in crate::settings) fn serialize<S: Serializer>(duration: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        seconds::serialize(&duration.unwrap_or_default(), to)
    }

    pub(in crate::settings) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        Ok(Some(seconds::deserialize(from)?).filter(|duration| !duration.is_zero()))
    }
}

/// A limit above 0 as a number, 0 for none.
pub(super) mod limit {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(in crate::settings) fn serialize<S: Serializer>(limit: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
        limit.unwrap_or(0.0).serialize(to)
    }

    pub(in crate::settings) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
        Ok(Some(f64::deserialize(from)?).filter(|limit| *limit > 0.0))
    }
}

/// A number of bytes as text with a unit.
pub(crate) mod size {
    use bytesize::ByteSize;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Bytes of a size such as `2GiB`; `None` if the text is not a size.
    pub(crate) fn parse(text: &str) -> Option<u64> {
        text.trim().parse().ok().map(|ByteSize(bytes)| bytes)
    }

    /// Less memory does not hold the rows of one batch. Sizes are signed both in job files and in pointers.
    pub(crate) fn is_in_range(text: &str) -> bool {
        parse(text).is_some_and(|bytes| (64 << 10..=i64::MAX as u64).contains(&bytes))
    }

    /// The size in the largest unit of which it is a whole number.
    pub(crate) fn write(bytes: u64) -> String {
        let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        let unit = units.into_iter().find(|(_, bits)| bytes.trailing_zeros() >= *bits);
        unit.map_or_else(|| format!("{bytes} B"), |(name, bits)| format!("{} {name}", bytes >> bits))
    }

    pub(in crate::settings) fn serialize<S: Serializer>(bytes: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
        bytes.map(write).serialize(to)
    }

    pub(in crate::settings) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
        let bytes = |text: String| parse(&text).ok_or_else(|| D::Error::custom(format!("not a size: {text}")));
        Option::<String>::deserialize(from)?.map(bytes).transpose()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_narrow_number_is_written_shortly_and_a_wide_one_as_it_is() {
        let mut values =
            json!({ "narrow": [f64::from(0.01_f32), f64::from(1e-30_f32)], "wide": 0.1, "whole": 3, "half": 0.5 });
        shorten(&mut values);
        assert_eq!(values, json!({ "narrow": [0.01, 1e-30], "wide": 0.1, "whole": 3, "half": 0.5 }));
        for value in [f32::MIN_POSITIVE, 0.1, 16_777_217.0, 1e30] {
            let mut number = json!(f64::from(value));
            shorten(&mut number);
            assert_eq!(number.as_f64().unwrap() as f32, value);
        }
    }

    #[test]
    fn a_size_is_written_exactly() {
        for (bytes, written) in [(2 << 30, "2 GiB"), (3 << 19, "1536 KiB"), (500_000_001, "500000001 B")] {
            assert_eq!(size::write(bytes), written);
            assert_eq!(size::parse(written), Some(bytes));
        }
    }
}
