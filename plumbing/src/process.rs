//! What the kernel knows of this process.

/// Most resident memory this process ever held, bytes; `None` where the kernel does not tell (`/proc` is Linux's).
#[must_use]
pub fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_covers_what_was_held() {
        let held = std::hint::black_box(vec![1_u8; 64 << 20]);
        assert!(peak_memory().is_none_or(|peak| peak > held.len() as u64));
    }
}
