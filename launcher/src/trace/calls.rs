//! Which arguments of which call are names, and what the call wants with them.
//!
//! Owns the table and the way from an argument to an absolute name of the box.
//! The filter `trace` (seccomp/<arch>.toml) says which calls stop; a test holds the
//! two together. Names are joined to the directory that they start from, which is
//! the box's own: `..` and links in them are left to the reader.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::steps::seccomp::TRACED;
use crate::sys;
use crate::trace::memory;

/// Something that a call named.
#[derive(Debug, PartialEq)]
pub struct Named {
    pub target: Target,
    /// The call would change it, or wants to know whether it could.
    pub write: bool,
}

#[derive(Debug, PartialEq)]
pub enum Target {
    Path(String),
    /// A Unix socket by its path; an abstract one begins with `@`.
    Socket(String),
    Address(String),
}

#[derive(Clone, Copy)]
enum Want {
    Read,
    Write,
    /// As the flags of open(2) in this argument say.
    Flags(usize),
    /// As the mode of access(2) in this argument says.
    Mode(usize),
}

#[derive(Clone, Copy)]
enum Argument {
    /// A path, from the working directory.
    Path(usize, Want),
    /// A directory descriptor and a path.
    At(usize, usize, Want),
    /// An address and its length.
    Address(usize, usize, Want),
}

use Argument::{Address, At, Path};
use Want::{Flags, Mode, Read, Write};

type Row = (&'static str, &'static [Argument]);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    ("open", &[Path(0, Flags(1))]),
    ("openat", &[At(0, 1, Flags(2))]),
    ("creat", &[Path(0, Write)]),
    ("access", &[Path(0, Mode(1))]),
    ("faccessat", &[At(0, 1, Mode(2))]),
    ("faccessat2", &[At(0, 1, Mode(2))]),
    ("stat", &[Path(0, Read)]),
    ("lstat", &[Path(0, Read)]),
    ("newfstatat", &[At(0, 1, Read)]),
    ("statx", &[At(0, 1, Read)]),
    ("statfs", &[Path(0, Read)]),
    ("readlink", &[Path(0, Read)]),
    ("readlinkat", &[At(0, 1, Read)]),
    ("chdir", &[Path(0, Read)]),
    ("execve", &[Path(0, Read)]),
    ("execveat", &[At(0, 1, Read)]),
    ("getxattr", &[Path(0, Read)]),
    ("lgetxattr", &[Path(0, Read)]),
    ("listxattr", &[Path(0, Read)]),
    ("llistxattr", &[Path(0, Read)]),
    ("inotify_add_watch", &[Path(1, Read)]),
    ("name_to_handle_at", &[At(0, 1, Read)]),
    ("mkdir", &[Path(0, Write)]),
    ("mkdirat", &[At(0, 1, Write)]),
    ("rmdir", &[Path(0, Write)]),
    ("unlink", &[Path(0, Write)]),
    ("unlinkat", &[At(0, 1, Write)]),
    ("rename", &[Path(0, Write), Path(1, Write)]),
    ("renameat", &[At(0, 1, Write), At(2, 3, Write)]),
    ("renameat2", &[At(0, 1, Write), At(2, 3, Write)]),
    ("link", &[Path(0, Read), Path(1, Write)]),
    ("linkat", &[At(0, 1, Read), At(2, 3, Write)]),
    // The first argument of these is the text of the link.
    ("symlink", &[Path(1, Write)]),
    ("symlinkat", &[At(1, 2, Write)]),
    ("mknod", &[Path(0, Write)]),
    ("mknodat", &[At(0, 1, Write)]),
    ("chmod", &[Path(0, Write)]),
    ("fchmodat", &[At(0, 1, Write)]),
    ("fchmodat2", &[At(0, 1, Write)]),
    ("chown", &[Path(0, Write)]),
    ("lchown", &[Path(0, Write)]),
    ("fchownat", &[At(0, 1, Write)]),
    ("truncate", &[Path(0, Write)]),
    ("utime", &[Path(0, Write)]),
    ("utimes", &[Path(0, Write)]),
    ("futimesat", &[At(0, 1, Write)]),
    ("utimensat", &[At(0, 1, Write)]),
    ("setxattr", &[Path(0, Write)]),
    ("lsetxattr", &[Path(0, Write)]),
    ("removexattr", &[Path(0, Write)]),
    ("lremovexattr", &[Path(0, Write)]),
    ("connect", &[Address(1, 2, Read)]),
    ("sendto", &[Address(4, 5, Read)]),
    ("bind", &[Address(1, 2, Write)]),
];

/// The rows of this architecture, by number.
pub struct Calls(BTreeMap<u64, &'static Row>);

impl Calls {
    pub fn new() -> Calls {
        let row = |name: &str| ROWS.iter().find(|(known, _)| *known == name);
        Calls(TRACED.iter().filter_map(|(number, name)| Some((u64::from(*number), row(name)?))).collect())
    }

    /// What a call names; None where that is nothing.
    pub fn names(&self, pid: libc::pid_t, number: u64, args: &[u64; 6]) -> Option<(&'static str, Vec<Named>)> {
        let (call, arguments) = self.0.get(&number)?;
        let found: Vec<Named> = arguments.iter().filter_map(|argument| argument.read(pid, args)).collect();
        (!found.is_empty()).then_some((*call, found))
    }
}

impl Argument {
    fn read(&self, pid: libc::pid_t, args: &[u64; 6]) -> Option<Named> {
        let (target, want) = match *self {
            Path(path, want) => (Target::Path(path_at(pid, libc::AT_FDCWD, args[path])?), want),
            At(dir, path, want) => (Target::Path(path_at(pid, args[dir] as i32, args[path])?), want),
            Address(at, size, want) => (address(pid, args[at], args[size] as usize)?, want),
        };
        Some(Named { target, write: want.writes(args) })
    }
}

impl Want {
    fn writes(self, args: &[u64; 6]) -> bool {
        match self {
            Read => false,
            Write => true,
            Flags(at) => args[at] as i32 & (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) != 0,
            Mode(at) => args[at] as i32 & libc::W_OK != 0,
        }
    }
}

/// An empty path means the descriptor itself, which was named when it was opened.
fn path_at(pid: libc::pid_t, dir: i32, at: u64) -> Option<String> {
    let text = memory::string(pid, at).filter(|text| !text.is_empty())?;
    absolute(pid, dir, &text)
}

fn absolute(pid: libc::pid_t, dir: i32, text: &[u8]) -> Option<String> {
    if text.starts_with(b"/") {
        return Some(tidy(&String::from_utf8_lossy(text)));
    }
    let link = match dir {
        libc::AT_FDCWD => format!("/proc/{pid}/cwd"),
        fd => format!("/proc/{pid}/fd/{fd}"),
    };
    let base = sys::link_target(libc::AT_FDCWD, &sys::cstr(&link).ok()?).ok()?;
    let whole = [&base, &b"/"[..], text].concat();
    Some(tidy(&String::from_utf8_lossy(&whole)))
}

/// Without empty components and single dots; `..` depends on links and stays.
fn tidy(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    format!("/{}", parts.join("/"))
}

/// Source: unix(7), ip(7), ipv6(7), "Address format".
fn address(pid: libc::pid_t, at: u64, size: usize) -> Option<Target> {
    let bytes = memory::bytes(pid, at, size.min(std::mem::size_of::<libc::sockaddr_storage>()))?;
    let family = i32::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
    let rest = &bytes[2..];
    let port = |rest: &[u8]| Some(u16::from_be_bytes(rest.get(..2)?.try_into().ok()?));
    match family {
        libc::AF_UNIX => socket(pid, rest),
        libc::AF_INET => {
            let ip: [u8; 4] = rest.get(2..6)?.try_into().ok()?;
            Some(Target::Address(SocketAddr::from((Ipv4Addr::from(ip), port(rest)?)).to_string()))
        }
        libc::AF_INET6 => {
            let ip: [u8; 16] = rest.get(6..22)?.try_into().ok()?;
            Some(Target::Address(SocketAddr::from((Ipv6Addr::from(ip), port(rest)?)).to_string()))
        }
        _ => None,
    }
}

fn socket(pid: libc::pid_t, rest: &[u8]) -> Option<Target> {
    match rest.first()? {
        0 => Some(Target::Socket(format!("@{}", String::from_utf8_lossy(&rest[1..])))),
        _ => {
            let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
            absolute(pid, libc::AT_FDCWD, &rest[..end]).map(Target::Socket)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::tests::{subjects, Subject};

    fn stopped(subject: &Subject) -> Vec<String> {
        ROWS.iter().map(|row| row.0.to_string()).filter(|name| subject.has(name)).collect()
    }

    #[test]
    fn every_call_that_stops_has_a_row_and_every_row_stops() {
        for (_, name) in TRACED {
            assert!(ROWS.iter().any(|row| row.0 == *name), "{name}");
        }
        for subject in subjects().iter().filter(|s| s.filter.name == "trace") {
            let rows = stopped(subject);
            assert_eq!(rows.len(), subject.filter.calls.len(), "{rows:?}");
            for name in rows {
                subject.check(&name, &[1; 6], crate::bpf::policy::Action::Trace);
            }
            subject.check("sendto", &[1, 1, 1, 1, 0, 0], crate::bpf::policy::Action::Allow);
            subject.check("read", &[1; 6], crate::bpf::policy::Action::Allow);
        }
    }

    fn named(name: &str, args: [u64; 6]) -> Vec<Named> {
        let number = TRACED.iter().find(|row| row.1 == name).unwrap().0;
        let me = std::process::id() as libc::pid_t;
        Calls::new().names(me, u64::from(number), &args).map_or(vec![], |found| found.1)
    }

    fn at(text: &std::ffi::CStr) -> u64 {
        text.as_ptr() as u64
    }

    #[test]
    fn names_are_made_absolute_and_what_is_wanted_is_told() {
        let path = |text: &str, write| Named { target: Target::Path(text.into()), write };
        let cwd = libc::AT_FDCWD as u64;
        assert_eq!(named("openat", [cwd, at(c"//a/./b/../c/"), 0, 0, 0, 0]), [path("/a/b/../c", false)]);
        assert_eq!(named("openat", [cwd, at(c"/a"), libc::O_RDWR as u64, 0, 0, 0]), [path("/a", true)]);
        assert_eq!(named("faccessat", [cwd, at(c"/a"), 6, 0, 0, 0]), [path("/a", true)]);
        let here = std::env::current_dir().unwrap().join("x");
        assert_eq!(named("unlinkat", [cwd, at(c"x"), 0, 0, 0, 0]), [path(here.to_str().unwrap(), true)]);
        let root = std::fs::File::open("/").unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&root) as u64;
        assert_eq!(named("linkat", [fd, at(c"a"), cwd, at(c"/b"), 0, 0]), [path("/a", false), path("/b", true)]);
        assert_eq!(named("newfstatat", [fd, at(c""), 0, 0, 0, 0]), []);
        assert_eq!(named("openat", [cwd, 8, 0, 0, 0, 0]), []);
        assert_eq!(named("utimensat", [cwd, 0, 0, 0, 0, 0]), []);
    }

    #[test]
    fn addresses_are_told_as_people_write_them() {
        let target = |bytes: &[u8]| {
            named("connect", [3, bytes.as_ptr() as u64, bytes.len() as u64, 0, 0, 0]).pop().map(|named| named.target)
        };
        let unix = |rest: &[u8]| target(&[&1u16.to_ne_bytes()[..], rest].concat());
        assert_eq!(unix(b"/run/a\0junk"), Some(Target::Socket("/run/a".into())));
        assert_eq!(unix(b"/run/b"), Some(Target::Socket("/run/b".into())));
        assert_eq!(unix(b"\0name"), Some(Target::Socket("@name".into())));
        assert_eq!((unix(b""), target(b"")), (None, None));
        let four = [&2u16.to_ne_bytes()[..], &80u16.to_be_bytes(), &[127, 0, 0, 1], &[0; 8]].concat();
        assert_eq!(target(&four), Some(Target::Address("127.0.0.1:80".into())));
        let six = [&10u16.to_ne_bytes()[..], &443u16.to_be_bytes(), &[0; 4], &[0; 15], &[1], &[0; 4]].concat();
        assert_eq!(target(&six), Some(Target::Address("[::1]:443".into())));
        assert_eq!(target(&four[..4]), None);
    }
}
