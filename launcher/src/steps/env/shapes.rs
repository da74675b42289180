//! Token shapes: secrets that are known by how they look.
//!
//! Owns the search for `prefix` + enough characters of `charset` in values. One
//! pass for all shapes, linear also for hostile values.

use serde::Deserialize;

use super::EnvError;

/// A prefix shorter than this would match ordinary text everywhere.
const SHORTEST_PREFIX: usize = 2;

/// How a known secret looks: `prefix`, then at least `min_len` bytes of `charset`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    pub name: String,
    pub prefix: String,
    pub charset: String,
    pub min_len: usize,
}

/// All token shapes, searched in one pass over a value.
pub struct Shapes<'a> {
    compiled: Vec<(&'a [u8], ByteSet, usize)>,
    first: ByteSet,
    /// For each first byte, the second bytes that can follow it.
    pairs: Vec<ByteSet>,
}

impl<'a> Shapes<'a> {
    /// Refuses a prefix or charset that cannot mark a secret.
    pub fn compile(shapes: &'a [Shape]) -> Result<Self, EnvError> {
        let mut all = Self {
            compiled: Vec::with_capacity(shapes.len()),
            first: ByteSet::default(),
            pairs: vec![ByteSet::default(); 256],
        };
        for shape in shapes {
            let prefix = shape.prefix.as_bytes();
            if prefix.len() < SHORTEST_PREFIX {
                return Err(EnvError::new(
                    format!("env shape {:?}", shape.name),
                    "got a prefix of less than 2 bytes, expected one that marks a secret",
                ));
            }
            let set = ByteSet::parse(&shape.charset).ok_or_else(|| {
                EnvError::new(
                    format!("env shape {:?}", shape.name),
                    "got a bad charset, expected ASCII like A-Za-z0-9_- with '-' last as itself",
                )
            })?;
            all.first.insert(prefix[0]);
            all.pairs[prefix[0] as usize].insert(prefix[1]);
            all.compiled.push((prefix, set, shape.min_len));
        }
        Ok(all)
    }

    /// True if any shape occurs anywhere in `value`.
    pub fn occur_in(&self, value: &[u8]) -> bool {
        // Up to this offset a shape is known not to match: a run of its charset
        // that was too short once is only shorter from a later start. Keeps
        // `ghp_ghp_ghp_…` linear.
        if self.compiled.is_empty() {
            return false;
        }
        let mut dead_until = vec![0usize; self.compiled.len()];
        for at in 0..value.len().saturating_sub(1) {
            let byte = value[at];
            if !self.first.has(byte) || !self.pairs[byte as usize].has(value[at + 1]) {
                continue;
            }
            for (shape, dead) in self.compiled.iter().zip(&mut dead_until) {
                if at >= *dead && shape_starts(shape, &value[at..], at, dead) {
                    return true;
                }
            }
        }
        false
    }
}

/// Tests one shape at one offset; moves `dead` past a run that was too short.
fn shape_starts((prefix, set, min_len): &(&[u8], ByteSet, usize), tail: &[u8], at: usize, dead: &mut usize) -> bool {
    let Some(rest) = tail.strip_prefix(*prefix) else {
        return false;
    };
    let run = rest.iter().take(*min_len).take_while(|byte| set.has(**byte)).count();
    if run < *min_len && prefix.iter().all(|byte| set.has(*byte)) {
        *dead = at + prefix.len() + run;
    }
    run >= *min_len
}

/// A set of byte values.
#[derive(Debug, Clone, Copy, Default)]
struct ByteSet([u64; 4]);

impl ByteSet {
    /// Reads `A-Za-z0-9_-`: ranges and single characters of printable ASCII;
    /// a `-` at the end (or at the start) is itself.
    fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let mut set = Self::default();
        let mut at = 0;
        while at < bytes.len() {
            let low = bytes[at];
            let is_range = bytes.get(at + 1) == Some(&b'-') && at + 2 < bytes.len();
            let high = if is_range { bytes[at + 2] } else { low };
            if low > high || !(b' '..=b'~').contains(&low) || !(b' '..=b'~').contains(&high) {
                return None;
            }
            (low..=high).for_each(|byte| set.insert(byte));
            at += if is_range { 3 } else { 1 };
        }
        (!bytes.is_empty()).then_some(set)
    }

    fn insert(&mut self, byte: u8) {
        self.0[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }

    fn has(&self, byte: u8) -> bool {
        self.0[usize::from(byte >> 6)] & (1 << (byte & 63)) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(prefix: &str, charset: &str, min_len: usize) -> Shape {
        Shape { name: "x".into(), prefix: prefix.into(), charset: charset.into(), min_len }
    }

    #[test]
    fn shapes_agree_with_a_plain_search() {
        let list = [shape("ghp_", "A-Za-z0-9_", 36), shape("sk-", "A-Za-z0-9_-", 20)];
        let shapes = Shapes::compile(&list).unwrap();
        let plain = |value: &[u8]| {
            list.iter().any(|s| {
                let set = ByteSet::parse(&s.charset).unwrap();
                (0..value.len()).any(|at| {
                    value[at..]
                        .strip_prefix(s.prefix.as_bytes())
                        .is_some_and(|rest| rest.len() >= s.min_len && rest[..s.min_len].iter().all(|b| set.has(*b)))
                })
            })
        };
        // A small deterministic generator over the bytes that matter.
        let mut state = 1u64;
        for _ in 0..20_000 {
            let mut value = Vec::new();
            for _ in 0..12 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let part: &[u8] =
                    [&b"ghp_"[..], b"sk-", b"aaaaaaaaaaaa", b".", b"s", b"Z-9_Z-9_"][(state >> 33) as usize % 6];
                value.extend_from_slice(part);
            }
            assert_eq!(shapes.occur_in(&value), plain(&value), "{}", String::from_utf8_lossy(&value));
        }
    }

    #[test]
    fn charsets_are_ranges_and_single_characters() {
        let set = ByteSet::parse("A-C_-").unwrap();
        assert!(b"ABC_-".iter().all(|b| set.has(*b)) && !set.has(b'D') && !set.has(b'a'));
        assert!(ByteSet::parse("-a").unwrap().has(b'-'));
        for bad in ["", "b-a", "é", "a\n"] {
            assert!(ByteSet::parse(bad).is_none(), "{bad:?}");
        }
    }
}
