//! Which watched names a git index tracks, without running git.
//!
//! Owns a bounded parser of index versions 2 to 4. The file belongs to a tree
//! that a box may have written: it is opened no-follow as a regular file, every
//! length is checked, and what is not understood (a split index, a size of hash
//! that does not fit) or goes beyond a bound answers "cannot tell", which moves
//! nothing. Names of `.git` count as untracked: git never tracks them.
//! Source: gitformat-index(5).

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::os::fd::AsRawFd;

use super::walk::Node;
use crate::{byparts, sys};

/// A million files make an index of about 100 MB; nobody waits for that at a start.
const INDEX_MAX_BYTES: u64 = 32 << 20;
/// Linux opens no longer path (PATH_MAX). A name of version 4 is a difference to the one before it,
/// so few bytes of a file can stand for many long names: the bounds are on the names as they are read.
const NAME_MAX_BYTES: usize = 4_096;
const NAMES_MAX_BYTES: usize = 128 << 20;
/// What is kept of them is held for the whole run, and written to the journal.
const FOUND_MAX: usize = 20_000;
const FOUND_MAX_BYTES: usize = 1 << 20;
const HEADER: usize = 12;
/// Times, device, inode, mode, owner, group and size before the object's name.
const STAT: usize = 40;
const EXTENDED: u16 = 0x4000;
/// SHA-1 and SHA-256.
const HASH_SIZES: [usize; 2] = [20, 32];

/// The tracked names that `names` watches, relative to the root that lies at `prefix` of the work
/// tree. None: it cannot be told. An index that does not exist tracks nothing.
pub fn tracked(index: &str, prefix: &str, names: &Node) -> Option<Vec<Vec<u8>>> {
    let bytes = match read(index) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Some(vec![]),
        other => other.ok()?,
    };
    HASH_SIZES.into_iter().find_map(|hash| Parser { bytes: &bytes, hash, names, prefix: prefix.as_bytes() }.run())
}

fn read(index: &str) -> io::Result<Vec<u8>> {
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = byparts::open_canonical(index, flags)?;
    let st = sys::fstat(file.as_raw_fd())?;
    if st.st_mode & libc::S_IFMT != libc::S_IFREG || st.st_size as u64 > INDEX_MAX_BYTES {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    let mut bytes = Vec::with_capacity(st.st_size as usize);
    std::fs::File::from(file).take(INDEX_MAX_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

struct Parser<'a> {
    bytes: &'a [u8],
    hash: usize,
    names: &'a Node,
    prefix: &'a [u8],
}

impl Parser<'_> {
    fn run(&self) -> Option<Vec<Vec<u8>>> {
        let body = self.bytes.get(..self.bytes.len().checked_sub(self.hash)?)?;
        if body.get(..4)? != b"DIRC" {
            return None;
        }
        let (version, count) = (number(body, 4)?, number(body, 8)?);
        if !(2..=4).contains(&version) {
            return None;
        }
        let (mut at, mut name, mut found) = (HEADER, vec![], Found::default());
        for _ in 0..count {
            at = self.entry(body, at, version, &mut name)?;
            found.read = found.read.checked_add(name.len()).filter(|read| *read <= NAMES_MAX_BYTES)?;
            if let Some(watched) = self.watched(&name) {
                found.keep(watched)?;
            }
        }
        self.extensions(body, at).then(|| found.names.into_iter().collect())
    }

    /// Reads one entry into `name` and returns where the next begins.
    fn entry(&self, body: &[u8], start: usize, version: u32, name: &mut Vec<u8>) -> Option<usize> {
        let flags_at = start + STAT + self.hash;
        let flags = u16::from_be_bytes(body.get(flags_at..flags_at + 2)?.try_into().ok()?);
        let mut at = flags_at + if version >= 3 && flags & EXTENDED != 0 { 4 } else { 2 };
        if version == 4 {
            let strip = varint(body, &mut at)?;
            name.truncate(name.len().checked_sub(strip)?);
        } else {
            name.clear();
        }
        let length = body.get(at..)?.iter().position(|byte| *byte == 0)?;
        if name.len() + length > NAME_MAX_BYTES {
            return None;
        }
        name.extend_from_slice(&body[at..at + length]);
        let absurd = name.is_empty() || name[0] == b'/';
        let end = match version {
            4 => at + length + 1,
            _ => start + (at + length - start + 8) / 8 * 8,
        };
        (!absurd && body.get(at + length..end)?.iter().all(|byte| *byte == 0)).then_some(end)
    }

    fn watched<'a>(&self, name: &'a [u8]) -> Option<&'a [u8]> {
        let inner = name.strip_prefix(self.prefix)?;
        // A directory that a sparse index holds as a whole ends with a slash.
        let path = inner.strip_suffix(b"/").unwrap_or(inner);
        (!is_gits_own(path) && self.names.reaches(path)).then_some(inner)
    }

    /// True when what follows the entries ends exactly where the file does, and none of it says
    /// that entries are elsewhere (`link`, the split index).
    fn extensions(&self, body: &[u8], mut at: usize) -> bool {
        while at < body.len() {
            let (Some(kind), Some(size)) = (body.get(at..at + 4), number(body, at + 4)) else { return false };
            if kind == b"link" {
                return false;
            }
            at += 8 + size as usize;
        }
        at == body.len()
    }
}

/// What is kept while an index is read: a conflict has a name up to three times, a hostile index
/// as often as it likes.
#[derive(Default)]
struct Found {
    names: BTreeSet<Vec<u8>>,
    bytes: usize,
    read: usize,
}

impl Found {
    /// None beyond a bound.
    fn keep(&mut self, name: &[u8]) -> Option<()> {
        if !self.names.contains(name) {
            self.bytes += name.len();
            self.names.insert(name.to_vec());
        }
        (self.names.len() <= FOUND_MAX && self.bytes <= FOUND_MAX_BYTES).then_some(())
    }
}

/// True when a component is `.git`, in any case: git takes no such name into an index, so one that
/// is there was put there to pass a new hook off as the user's. Source: verify_path() of git.
fn is_gits_own(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|part| part.eq_ignore_ascii_case(b".git"))
}

/// True when `path` is tracked by one of the names of `tracked`. A directory of a sparse index says
/// nothing of a `.git` below it.
pub fn holds(tracked: &[Vec<u8>], path: &[u8]) -> bool {
    !is_gits_own(path) && tracked.iter().any(|name| name == path || (name.ends_with(b"/") && path.starts_with(name)))
}

fn number(body: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(body.get(at..at + 4)?.try_into().ok()?))
}

/// The encoding of offsets in packs: each further byte counts one more. Source: gitformat-pack(5).
fn varint(body: &[u8], at: &mut usize) -> Option<usize> {
    let mut byte = *body.get(*at)?;
    let mut value = usize::from(byte & 127);
    *at += 1;
    while byte & 128 != 0 {
        byte = *body.get(*at)?;
        *at += 1;
        value = (value.checked_add(1)?.checked_mul(128)?) | usize::from(byte & 127);
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    struct Repository(PathBuf);

    impl Repository {
        fn new(format: &str) -> Self {
            let path = std::env::temp_dir().join(format!("index-{}", crate::ulid::ulid().unwrap()));
            std::fs::create_dir_all(path.join("sub/.vscode")).unwrap();
            let made = Self(path.canonicalize().unwrap());
            made.git(&["init", "-q", &format!("--object-format={format}")]);
            for name in [".envrc", "src.c", "sub/.envrc", "sub/.vscode/tasks.json", "sub/z"] {
                std::fs::write(made.0.join(name), "x").unwrap();
            }
            made.git(&["add", "."]);
            made
        }

        fn git(&self, words: &[&str]) {
            let git = |c: &mut Command| c.args(words).env("GIT_CONFIG_GLOBAL", "/dev/null").status().unwrap().success();
            assert!(git(Command::new("git").arg("-C").arg(&self.0)), "{words:?}");
        }

        fn tracked(&self, prefix: &str) -> Option<Vec<String>> {
            let names = [".envrc", ".vscode/*", ".mcp.json", "src.d"].map(str::to_owned);
            let index = self.0.join(".git/index");
            let found = tracked(index.to_str().unwrap(), prefix, &Node::compile(&names).unwrap())?;
            Some(found.into_iter().map(|name| String::from_utf8(name).unwrap()).collect())
        }
    }

    impl Drop for Repository {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    #[test]
    fn every_version_and_hash_that_git_writes_is_read() {
        for format in ["sha1", "sha256"] {
            let repository = Repository::new(format);
            for version in ["2", "3", "4"] {
                repository.git(&["update-index", "--index-version", version]);
                if version == "3" {
                    // The extended flags are written only where an entry has one.
                    repository.git(&["update-index", "--skip-worktree", "sub/z"]);
                }
                assert_eq!(repository.tracked("").unwrap(), [".envrc"], "{format} {version}");
                assert_eq!(repository.tracked("sub/").unwrap(), [".envrc", ".vscode/tasks.json"], "{format} {version}");
            }
        }
    }

    #[test]
    fn no_index_tracks_nothing_and_a_split_or_broken_one_cannot_tell() {
        let repository = Repository::new("sha1");
        let index = repository.0.join(".git/index");
        let whole = std::fs::read(&index).unwrap();
        for size in [0, 11, 40, whole.len() - 21, whole.len() - 1] {
            std::fs::write(&index, &whole[..size]).unwrap();
            assert_eq!(repository.tracked(""), None, "{size}");
        }
        let mut larger = whole.clone();
        larger[11] += 1;
        std::fs::write(&index, &larger).unwrap();
        assert_eq!(repository.tracked(""), None);
        std::fs::write(&index, &whole).unwrap();
        repository.git(&["update-index", "--split-index"]);
        assert_eq!(repository.tracked(""), None);
        std::fs::remove_file(&index).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &index).unwrap();
        assert_eq!(repository.tracked(""), None);
        std::fs::remove_file(&index).unwrap();
        assert_eq!(repository.tracked("").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn random_changes_of_an_index_never_panic() {
        let repository = Repository::new("sha1");
        let index = repository.0.join(".git/index");
        repository.git(&["update-index", "--index-version", "4"]);
        let whole = std::fs::read(&index).unwrap();
        let names = Node::compile(&[".envrc".to_owned()]).unwrap();
        for at in 0..whole.len() {
            for value in [0, 0x7f, 0xff, whole[at] ^ 0x80] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                for hash in HASH_SIZES {
                    Parser { bytes: &bytes, hash, names: &names, prefix: b"" }.run();
                }
            }
        }
        assert!(Path::new(&index).exists());
    }

    /// An index of version 4 without its hash: per entry how much of the last name goes and what comes.
    fn version_4(entries: &[(u8, &[u8])]) -> Vec<u8> {
        let mut bytes = [&b"DIRC"[..], &4u32.to_be_bytes(), &(entries.len() as u32).to_be_bytes()].concat();
        for (strip, name) in entries {
            bytes.extend([0; STAT + HASH_SIZES[0] + 2]);
            bytes.push(*strip);
            bytes.extend([name, &b"\0"[..]].concat());
        }
        bytes.extend([0; HASH_SIZES[0]]);
        bytes
    }

    fn parsed(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
        let names = Node::compile(&[".vscode/*", ".git/hooks/*", "*/.git/hooks/*"].map(str::to_owned)).unwrap();
        Parser { bytes, hash: HASH_SIZES[0], names: &names, prefix: b"" }.run()
    }

    #[test]
    fn a_small_index_that_stands_for_gigabytes_of_names_cannot_tell() {
        let long = |size: usize| [&b".vscode/"[..], &vec![b'a'; size]].concat();
        let (name, mut entries) = (long(1 << 20), vec![(0, &b""[..]); 2_000]);
        entries[0].1 = &name;
        assert_eq!(parsed(&version_4(&entries)), None);
        // As long as a path can be, and as often as that: one name is kept.
        let name = long(4_000);
        entries[0].1 = &name;
        assert_eq!(parsed(&version_4(&entries)).unwrap(), std::slice::from_ref(&name));
        // Long enough to be looked at for seconds.
        entries.resize(40_000, (0, b""));
        assert_eq!(parsed(&version_4(&entries)), None);
        // Each another name: too much to keep.
        let ends: Vec<String> = (0..1_000).map(|number| format!("{number:04}")).collect();
        let others = ends.iter().map(|end| (4, end.as_bytes()));
        let entries: Vec<(u8, &[u8])> = [(0, &name[..])].into_iter().chain(others).collect();
        assert_eq!(parsed(&version_4(&entries)), None);
        assert_eq!(parsed(&version_4(&entries[..200])).unwrap().len(), 200);
    }

    #[test]
    fn an_index_that_names_what_git_never_tracks_tracks_none_of_it() {
        for name in
            [&b".git/hooks/pre-commit"[..], b".GIT/hooks/x", b"sub/.git/hooks/x", b".git/", b".vscode/tasks.json"]
        {
            let found = parsed(&version_4(&[(0, name)])).unwrap();
            assert_eq!(found.is_empty(), name != b".vscode/tasks.json", "{name:?}");
        }
        assert!(!holds(&[b"sub/".to_vec()], b"sub/.git/hooks/x") && holds(&[b"sub/".to_vec()], b"sub/.gitx"));
    }

    #[test]
    fn a_directory_of_a_sparse_index_tracks_what_is_below_it() {
        let tracked = [b".vscode/".to_vec(), b".envrc".to_vec()];
        assert!(holds(&tracked, b".vscode/tasks.json") && holds(&tracked, b".envrc"));
        assert!(!holds(&tracked, b".vscodex") && !holds(&tracked, b".envrc/x"));
    }
}
