//! Times, lists and names as a person reads them.

pub use zagros_coordinator_core::time_in_words as time;

/// A count with its noun: `1 push`, `3 pushes`.
pub(crate) fn count_noun(number: u32, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// `a`, `a and b`, `a, b and c`.
pub(crate) fn join_list(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Members of one role: `dense worker 1`, `dense workers 0, 2 and 3`.
pub(crate) fn name_members(role: &str, indices: &[u32]) -> String {
    let numbers: Vec<String> = indices.iter().map(u32::to_string).collect();
    let plural = if indices.len() == 1 { "" } else { "s" };
    format!("{role}{plural} {}", join_list(&numbers))
}

/// The ending of a verb whose subject is so many things.
pub(crate) fn verb_ending(things: usize) -> &'static str {
    if things == 1 { "s" } else { "" }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_lists_and_names_read_well() {
        let times = [3_200, 42_000, 725_000, 3_900_000].map(|millis| time(Duration::from_millis(millis)));
        assert_eq!(times, ["3.2 s", "42 s", "12 min", "1 h 5 min"]);
        assert_eq!(name_members("dense worker", &[1]), "dense worker 1");
        assert_eq!(name_members("dense worker", &[0, 2, 3]), "dense workers 0, 2 and 3");
        assert_eq!(
            (count_noun(1, "push", "pushes"), count_noun(0, "push", "pushes")),
            ("1 push".into(), "0 pushes".into())
        );
        assert_eq!(join_list(&[]), "");
    }
}
