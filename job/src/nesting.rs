//! Limits the depth of nested brackets, because a parser that recovers from errors would follow all of them.

pub(crate) const DEEPEST: usize = 64;

/// Text behind a `#` counts as a comment. Brackets in strings count, because an unclosed string must not hide the rest.
pub(crate) fn too_deep(text: &str) -> Option<usize> {
    let (mut depth, mut is_comment) = (0_usize, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'\n' => is_comment = false,
            b'#' => is_comment = true,
            _ if is_comment => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEEPEST {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_are_accepted_up_to_a_depth() {
        assert_eq!(too_deep(&"[".repeat(DEEPEST)), None);
        assert_eq!(too_deep(&format!("a = {}", "[".repeat(1_000_000))), Some(4 + DEEPEST));
        assert_eq!(too_deep(&"{[]}".repeat(1_000_000)), None);
        assert_eq!(too_deep(&"# of [0, 1)\n".repeat(1_000)), None);
    }
}
