//! Questions about paths as text. They are canonical: no link, no `..`, no doubled slash.

/// True for the same path, and for one below it.
pub fn within(inner: &str, outer: &str) -> bool {
    inner.strip_prefix(outer.trim_end_matches('/')).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
