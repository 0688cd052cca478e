//! Names of the folders of checkpoints.

/// Folders of checkpoints begin so; the best states of a run lie beside them under other names.
const PREFIX: &str = "resume-";

pub(crate) fn name_of(step: u64) -> String {
    format!("{PREFIX}{step:012}")
}

/// `None` for other folders.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_a_checkpoint_is_known_by_its_name() {
        assert_eq!((step_of(&name_of(7)), step_of("resume-9")), (Some(7), Some(9)));
        assert_eq!(["model", "step-7", "resume-", "resume-x"].map(step_of), [None; 4]);
    }
}
