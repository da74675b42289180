//! Patterns with `*`: names of variables, components of paths.
//!
//! Owns the one matcher of the launcher. `*` stands for any bytes, nothing else
//! is special; a leading dot needs no dot, because a hidden file runs like any
//! other. Next: steps/env.rs, persist.rs.

/// Whether letters of the other case match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    Exact,
    Fold,
}

impl Case {
    fn equal(self, a: u8, b: u8) -> bool {
        a == b || (self == Case::Fold && a.eq_ignore_ascii_case(&b))
    }
}

/// Matches `text` against a pattern with `*`. Only the last star is ever
/// retried, so the cost is bounded by pattern length times text length: a name
/// made of `aaaa…` cannot stall the launch.
pub fn matches(pattern: &[u8], text: &[u8], case: Case) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            retry = Some((p, t));
        } else if pattern.get(p).is_some_and(|want| case.equal(*want, text[t])) {
            p += 1;
            t += 1;
        } else if let Some((after_star, from)) = retry {
            p = after_star;
            t = from + 1;
            retry = Some((after_star, t));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_as_in_a_shell() {
        let yes = |p: &str, t: &str| assert!(matches(p.as_bytes(), t.as_bytes(), Case::Exact), "{p} {t}");
        let no = |p: &str, t: &str| assert!(!matches(p.as_bytes(), t.as_bytes(), Case::Exact), "{p} {t}");
        for (p, t) in [("*", ""), ("A*", "A"), ("*B", "AAB"), ("A*B*C", "AxByBzC"), ("**A", "A"), ("*a*a", "aaa")] {
            yes(p, t);
        }
        for (p, t) in [("A", ""), ("", "A"), ("A*B", "AC"), ("A*B", "ABx"), ("a", "A"), ("*aa", "a")] {
            no(p, t);
        }
        assert!(matches(b"http_*", b"HTTP_PROXY", Case::Fold));
    }
}
