//! What a program inside a box asks for: the bytes of a request, and nothing else.
//!
//! Owns the format (a magic, then fields of one tag byte, a length and that many bytes) and its
//! bounds. Hostile code writes these bytes: `parse` is a plain function over them, allocates no
//! more than they hold, and answers None for whatever it does not know. Next: nested.rs.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use crate::plan::canonical;

/// First bytes of a request, and the message on the box socket that carries its descriptors.
pub const MAGIC: &[u8] = b"stockade.nest.v1\n";
pub const MAX_BYTES: usize = 8 << 20;
const MAX_ITEMS: usize = 1 << 16;
pub const MAX_KEPT: usize = 64;
const MAX_FD: u32 = 1 << 16;
/// MAX_ARG_STRLEN of execve(2).
const MAX_ITEM_BYTES: usize = 128 << 10;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub argv: Vec<Vec<u8>>,
    /// The asking process's own environment; the plan's policy decides what of it is kept.
    pub environ: Vec<Vec<u8>>,
    /// Values that were set for the command.
    pub set: Vec<Vec<u8>>,
    pub binds: BTreeMap<String, String>,
    pub cwd: Option<String>,
    pub timeout_ms: Option<u64>,
    /// Numbers under which the command gets the descriptors that follow the fixed ones.
    pub kept: Vec<RawFd>,
    pub report: bool,
    pub quiet: bool,
    pub umask: u32,
    /// One bit for each signal that the asking process ignores.
    pub ignored: u64,
}

impl Request {
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let mut field = |tag: u8, value: &[u8]| {
            bytes.push(tag);
            bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
            bytes.extend_from_slice(value);
        };
        self.argv.iter().for_each(|item| field(b'a', item));
        self.environ.iter().for_each(|item| field(b'e', item));
        self.set.iter().for_each(|item| field(b's', item));
        self.binds.iter().for_each(|(name, path)| field(b'b', format!("{name}={path}").as_bytes()));
        self.cwd.iter().for_each(|cwd| field(b'c', cwd.as_bytes()));
        self.timeout_ms.iter().for_each(|ms| field(b't', &ms.to_le_bytes()));
        self.kept.iter().for_each(|fd| field(b'f', &(*fd as u32).to_le_bytes()));
        if self.report {
            field(b'r', b"");
        }
        if self.quiet {
            field(b'q', b"");
        }
        field(b'u', &self.umask.to_le_bytes());
        field(b'i', &self.ignored.to_le_bytes());
        bytes
    }

    fn take(&mut self, tag: u8, value: &[u8]) -> Option<()> {
        match tag {
            b'a' => self.argv.push(text_item(value)?),
            b'e' => self.environ.push(text_item(value)?),
            b's' => self.set.push(text_item(value)?),
            b'b' => self.bind(std::str::from_utf8(value).ok()?)?,
            b'c' => once(&mut self.cwd, path(std::str::from_utf8(value).ok()?)?)?,
            b't' => once(&mut self.timeout_ms, u64::from_le_bytes(value.try_into().ok()?))?,
            b'f' => self.keep(u32::from_le_bytes(value.try_into().ok()?))?,
            b'r' if value.is_empty() && !self.report => self.report = true,
            b'q' if value.is_empty() && !self.quiet => self.quiet = true,
            b'u' => self.umask = u32::from_le_bytes(value.try_into().ok()?) & 0o777,
            b'i' => self.ignored = u64::from_le_bytes(value.try_into().ok()?),
            _ => return None,
        }
        Some(())
    }

    fn bind(&mut self, text: &str) -> Option<()> {
        let (name, target) = text.split_once('=')?;
        let good = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        (good && self.binds.insert(name.to_string(), path(target)?).is_none()).then_some(())
    }

    /// Ascending and above the standard streams, as in a plan.
    fn keep(&mut self, fd: u32) -> Option<()> {
        let above = self.kept.last().is_none_or(|last| (*last as u32) < fd);
        if !above || !(3..MAX_FD).contains(&fd) || self.kept.len() == MAX_KEPT {
            return None;
        }
        self.kept.push(fd as RawFd);
        Some(())
    }
}

fn once<T>(slot: &mut Option<T>, value: T) -> Option<()> {
    slot.replace(value).is_none().then_some(())
}

fn path(text: &str) -> Option<String> {
    canonical(text).ok()?;
    Some(text.to_string())
}

fn text_item(value: &[u8]) -> Option<Vec<u8>> {
    (value.len() < MAX_ITEM_BYTES && !value.contains(&0)).then(|| value.to_vec())
}

/// The request that these bytes are, whole.
pub fn parse(bytes: &[u8]) -> Option<Request> {
    if bytes.len() > MAX_BYTES {
        return None;
    }
    let (mut request, mut rest) = (Request::default(), bytes.strip_prefix(MAGIC)?);
    for _ in 0..MAX_ITEMS {
        let Some((tag, more)) = rest.split_first() else { break };
        let (size, more) = more.split_at_checked(4)?;
        let size = u32::from_le_bytes(size.try_into().ok()?) as usize;
        let (value, more) = more.split_at_checked(size)?;
        request.take(*tag, value)?;
        rest = more;
    }
    let startable = request.argv.first().is_some_and(|word| !word.is_empty());
    (rest.is_empty() && startable).then_some(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Request {
        Request {
            argv: vec![b"/bin/sh".to_vec(), b"-c".to_vec(), b"\xff".to_vec()],
            environ: vec![b"PATH=/bin".to_vec()],
            set: vec![b"A=".to_vec()],
            binds: BTreeMap::from([("ws".to_string(), "/home/u/w".to_string())]),
            cwd: Some("/home/u/w".into()),
            timeout_ms: Some(1500),
            kept: vec![3, 9],
            report: true,
            quiet: true,
            umask: 0o22,
            ignored: 1 << 12,
        }
    }

    #[test]
    fn a_request_survives_the_way() {
        assert_eq!(parse(&sample().bytes()), Some(sample()));
        let bare = Request { argv: vec![b"true".to_vec()], ..Request::default() };
        assert_eq!(parse(&bare.bytes()), Some(bare));
    }

    #[test]
    fn anything_odd_is_no_request() {
        let good = sample().bytes();
        for end in 0..good.len() {
            if let Some(cut) = parse(&good[..end]) {
                assert!(cut.argv.len() <= 3, "a cut at a field's edge says less, never more");
            }
        }
        let with = |tag: u8, value: &[u8]| {
            let size = (value.len() as u32).to_le_bytes();
            parse(&[good.as_slice(), &[tag], &size, value].concat())
        };
        for (tag, value) in [
            (b'x', &b""[..]),
            (b'a', b"a\0b"),
            (b'b', b"ws=/again"),
            (b'b', b"n=/a/../b"),
            (b'b', b"no"),
            (b'c', b"/twice"),
            (b't', b"short"),
            (b'f', &[2, 0, 0, 0]),
            (b'f', &[9, 0, 0, 0]),
            (b'f', &[0xff, 0xff, 0xff, 0xff]),
            (b'r', b""),
        ] {
            assert_eq!(with(tag, value), None, "{} {value:?}", tag as char);
        }
        assert!(with(b'a', b"more").is_some());
        assert_eq!(parse(&[good.as_slice(), &[b'a', 0xff, 0xff, 0xff, 0xff]].concat()), None);
        assert_eq!(parse(MAGIC), None);
        assert_eq!(parse(&vec![0; MAX_BYTES + 1]), None);
    }

    /// 200,000 mutations of the sample by a fixed sequence: none panics, and what is taken keeps to the bounds.
    #[test]
    fn mutated_bytes_never_panic_and_what_parses_is_bounded() {
        let (good, mut state) = (sample().bytes(), 0x9e37_79b9_7f4a_7c15_u64);
        let mut next = move |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below.max(1)
        };
        let mut taken = 0;
        for _ in 0..200_000 {
            let mut bytes = good.clone();
            for _ in 0..=next(3) {
                match next(4) {
                    0 => bytes.truncate(next(bytes.len() + 1)),
                    1 => bytes.push(next(256) as u8),
                    2 if !bytes.is_empty() => drop(bytes.remove(next(bytes.len()))),
                    _ => {
                        let at = next(bytes.len());
                        if let Some(byte) = bytes.get_mut(at) {
                            *byte = next(256) as u8;
                        }
                    }
                }
            }
            let Some(request) = parse(&bytes) else { continue };
            taken += 1;
            assert!(!request.argv[0].is_empty() && request.kept.len() <= MAX_KEPT);
            assert!(request.kept.windows(2).all(|two| two[0] < two[1]) && request.kept.iter().all(|fd| *fd > 2));
            assert!(request.binds.values().chain(&request.cwd).all(|path| canonical(path).is_ok()));
            assert!(request.argv.iter().chain(&request.environ).all(|item| !item.contains(&0)));
        }
        assert!(taken > 1000, "the mutations must reach past the first check");
    }
}
