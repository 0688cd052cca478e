//! Which start of which machine this process runs on.

/// The kernel's random number of this start of this machine. What a process has written is in the cache of the machine until it is
/// on the disk, so after another start of the machine it may be gone. `None` where it cannot be read: then no start is known to be
/// the same as another.
#[must_use]
pub fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_of_the_machine_has_one_number() {
        let id = boot_id();
        assert_eq!(id, boot_id());
        assert!(id.is_none_or(|id| id.len() == 36 && !id.contains(char::is_whitespace)));
    }
}
