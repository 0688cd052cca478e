//! Amounts of Kubernetes as numbers.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The bytes of an amount such as `8Gi`, `500M` or `1e9`. `None` if it is no amount.
#[must_use]
pub(crate) fn bytes(amount: &Quantity) -> Option<u64> {
    let text = amount.0.trim_start_matches('+');
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().ok()?;
    let factor = match unit {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => f64::from(1 << 20),
        "Gi" => f64::from(1 << 30),
        "Ti" => 1024_f64.powi(4),
        "Pi" => 1024_f64.powi(5),
        "Ei" => 1024_f64.powi(6),
        exponent => 10_f64.powi(exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    Some((number * factor).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_an_amount_is_read() {
        for (text, expected) in [
            ("8Gi", Some(8 << 30)),
            ("1.5Ki", Some(1536)),
            ("+500M", Some(500_000_000)),
            ("1e3", Some(1000)),
            ("2E", Some(2_000_000_000_000_000_000)),
            ("2E2", Some(200)),
            ("100m", Some(1)),
            ("7", Some(7)),
            ("8GB", None),
            ("", None),
        ] {
            assert_eq!(bytes(&Quantity(text.to_owned())), expected, "{text}");
        }
    }
}
