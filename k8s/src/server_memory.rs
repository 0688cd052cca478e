//! The memory of embedding servers.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::validate::ValidJob;

/// Memory of a server's container where neither the spec nor the job file says how much, bytes.
const SERVER_MEMORY: u64 = 4 << 30;

impl ValidJob {
    #[must_use]
    pub fn server_rows(&self) -> u64 {
        let limit = || {
            let resources = self.spec.embedding_servers.pod.resources.as_ref()?;
            let limits = [resources.limits.as_ref(), resources.requests.as_ref()];
            limits.into_iter().flatten().find_map(|amounts| amount_bytes(amounts.get("memory")?))
        };
        self.job.cluster.memory.or_else(limit).unwrap_or(SERVER_MEMORY)
    }

    /// The most bytes of rows that one server writes into a checkpoint: those in its memory and those beyond.
    #[must_use]
    pub fn saved_rows(&self) -> u64 {
        self.server_rows().saturating_add(self.rows_beyond_memory())
    }

    /// Rows that do not fit into `cluster.memory`: as many again, or what a larger disk has room for besides two bases
    /// of the log.
    fn rows_beyond_memory(&self) -> u64 {
        let Some(memory) = self.job.cluster.memory else { return 0 };
        let size = self.spec.embedding_servers.storage.as_ref().and_then(|storage| storage.size.as_ref());
        let room = size.and_then(amount_bytes).map(|disk| disk.saturating_sub(2 * memory));
        room.unwrap_or(0).max(memory)
    }

    /// The memory of a server's container, unless the user says otherwise. It follows from `cluster.memory`.
    #[must_use]
    pub fn default_server_memory(&self) -> String {
        match self.job.cluster.memory {
            // An eighth for rows on their way to the cold tier, an eighth for requests, and the process itself.
            Some(bytes) => format!("{}Mi", (bytes + bytes / 4).div_ceil(1 << 20) + 512),
            None => format!("{}Gi", SERVER_MEMORY >> 30),
        }
    }
}

/// The bytes of an amount such as `8Gi`, `500M` or `1e9`. `None` if it is no amount.
fn amount_bytes(amount: &Quantity) -> Option<u64> {
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
            assert_eq!(amount_bytes(&Quantity(text.to_owned())), expected, "{text}");
        }
    }
}
