//! The spool: records on disk, appended by many launchers at once.
//!
//! Owns the file format (`\n{"len":N,…}\n`, N = bytes of the object) and its
//! rotation. Appending takes no lock: one O_APPEND write per record. A record
//! that was cut (disk full, file size limit) is closed by a newline and reported
//! as degraded; readers skip what does not parse or has the wrong length, so a
//! cut record can never merge with its neighbour. Fails closed: anything but a
//! regular file under the name is an error. Next: report.rs.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::ulid;

/// Size at which the file is renamed to `name.<ULID>`.
const ROTATE_BYTES: u64 = 8 << 20;
/// Another writer may rotate between our open and our look: bounded retries.
const ROTATE_TRIES: u32 = 4;

/// A spool file, held by its directory: the caller's cwd may change.
pub struct Spool {
    dir: OwnedFd,
    name: CString,
    rotate_bytes: u64,
}

/// How an append went.
#[derive(Debug, PartialEq, Eq)]
pub enum Appended {
    Whole,
    /// The record is damaged on disk; what happened.
    Degraded(String),
}

impl Spool {
    /// Opens the directory of `path`; the file itself is made by the first append.
    pub fn open(path: &Path) -> io::Result<Self> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let name = CString::new(path.file_name().ok_or_else(invalid)?.as_bytes())?;
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let parent = CString::new(parent.as_os_str().as_bytes())?;
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let dir = open_at(libc::AT_FDCWD, &parent, flags)?;
        Ok(Self { dir, name, rotate_bytes: ROTATE_BYTES })
    }

    pub fn descriptor(&self) -> RawFd {
        self.dir.as_raw_fd()
    }

    /// Appends one JSON object (`{…}` on one line, without `len`).
    pub fn append(&self, json: &str) -> io::Result<Appended> {
        let record = frame(json)?;
        let file = self.open_current()?;
        // A file size limit of the caller must not kill the supervisor.
        let _held = HeldSignal::hold(libc::SIGXFSZ);
        match write_once(file.as_raw_fd(), &record) {
            Ok(wrote) if wrote == record.len() => Ok(Appended::Whole),
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            Ok(wrote) => Ok(close_cut_record(file.as_raw_fd(), wrote, record.len())),
            Err(error) => Err(error),
        }
    }

    /// The file under the name, rotated first when it is full.
    fn open_current(&self) -> io::Result<OwnedFd> {
        for _ in 0..ROTATE_TRIES {
            let (file, stat) = self.open_file()?;
            if (stat.st_size as u64) < self.rotate_bytes || !self.rotate(&file, &stat)? {
                return Ok(file);
            }
        }
        self.open_file().map(|(file, _)| file)
    }

    fn open_file(&self) -> io::Result<(OwnedFd, libc::stat)> {
        // Non-blocking: a fifo planted under the name must not stop the launch.
        let flags =
            libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
        let file = open_at(self.dir.as_raw_fd(), &self.name, flags)?;
        let stat = stat_at(file.as_raw_fd(), c"", libc::AT_EMPTY_PATH)?;
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(io::Error::from_raw_os_error(libc::ENXIO));
        }
        Ok((file, stat))
    }

    /// Renames a full file away. True: the name is free or new, open it again.
    ///
    /// Only the holder of the lock on the file that the name stands for may
    /// rename it, so between our look and our rename the name cannot come to
    /// mean a fresh file. A writer that does not get the lock appends to the old
    /// file: it is still a segment of the log. The lock ends with the descriptor.
    fn rotate(&self, file: &OwnedFd, opened: &libc::stat) -> io::Result<bool> {
        if !crate::sys::try_lock(file.as_raw_fd(), libc::LOCK_EX).unwrap_or(false) {
            return Ok(false);
        }
        let current = match stat_at(self.dir.as_raw_fd(), &self.name, libc::AT_SYMLINK_NOFOLLOW) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(true),
            other => other?,
        };
        if (current.st_dev, current.st_ino) != (opened.st_dev, opened.st_ino) {
            return Ok(true);
        }
        let mut target = self.name.as_bytes().to_vec();
        target.extend_from_slice(format!(".{}", ulid::ulid()?).as_bytes());
        let target = CString::new(target)?;
        let dir = self.dir.as_raw_fd();
        // SAFETY: both names are NUL-terminated and outlive the call.
        match unsafe { libc::renameat(dir, self.name.as_ptr(), dir, target.as_ptr()) } {
            0 => Ok(true),
            // A directory that cannot be changed: the log grows, nothing is lost.
            _ => Ok(false),
        }
    }
}

/// Frames an object: `{"a":1}` to `\n{"len":16,"a":1}\n`.
pub fn frame(json: &str) -> io::Result<Vec<u8>> {
    let body = json.strip_prefix('{').filter(|body| body.ends_with('}') && !body.contains('\n'));
    let body = body.ok_or(io::ErrorKind::InvalidInput)?;
    let comma = if body == "}" { "" } else { "," };
    let fixed = r#"{"len":"#.len() + comma.len() + body.len();
    // The number counts its own digits: the smallest width that fits itself.
    let len = (1..20).map(|digits| (digits, fixed + digits)).find(|(digits, len)| len.to_string().len() == *digits);
    let len = len.map_or(fixed, |(_, len)| len);
    Ok(format!("\n{{\"len\":{len}{comma}{body}\n").into_bytes())
}

/// Ends the line of a cut record, so that the next record starts on its own.
fn close_cut_record(fd: RawFd, wrote: usize, of: usize) -> Appended {
    let closed = matches!(write_once(fd, b"\n"), Ok(1));
    let end = if closed { "closed by a newline" } else { "not closed" };
    Appended::Degraded(format!("spool record cut: wrote {wrote} of {of} bytes, {end}"))
}

fn write_once(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    loop {
        // SAFETY: pointer and length describe a live slice; the descriptor is only borrowed.
        let wrote = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        if wrote >= 0 {
            return Ok(wrote as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn open_at(dir: RawFd, name: &CStr, flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: the name is NUL-terminated and outlives the call; mode is read with O_CREAT.
    let fd = unsafe { libc::openat(dir, name.as_ptr(), flags, 0o600) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn stat_at(dir: RawFd, name: &CStr, flags: i32) -> io::Result<libc::stat> {
    // SAFETY: stat is plain data, all zero is a value of it.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the name is NUL-terminated; stat outlives the call.
    if unsafe { libc::fstatat(dir, name.as_ptr(), &mut stat, flags) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(stat)
}

/// Holds one signal back from this thread for the life of the value and
/// swallows it if our own write raised it. The disposition is not touched: it is
/// shared by all threads and inherited by the command.
pub struct HeldSignal {
    set: libc::sigset_t,
    old: libc::sigset_t,
    was_pending: bool,
    signal: i32,
}

impl HeldSignal {
    /// Blocks `signal` for the calling thread.
    pub fn hold(signal: i32) -> Self {
        // SAFETY: signal sets are plain data that live through the calls.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            let mut old: libc::sigset_t = std::mem::zeroed();
            let mut pending: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, signal);
            libc::sigpending(&mut pending);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut old);
            let was_pending = libc::sigismember(&pending, signal) == 1;
            Self { set, old, was_pending, signal }
        }
    }

    fn is_pending(&self) -> bool {
        // SAFETY: the set is plain data that lives through the calls.
        unsafe {
            let mut pending: libc::sigset_t = std::mem::zeroed();
            libc::sigpending(&mut pending);
            libc::sigismember(&pending, self.signal) == 1
        }
    }
}

impl Drop for HeldSignal {
    fn drop(&mut self) {
        // One that waited before we came was somebody else's; it stays.
        let ours = !self.was_pending && self.is_pending();
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: sets and timespec are plain data that live through the calls.
        unsafe {
            if ours {
                libc::sigtimedwait(&self.set, std::ptr::null_mut(), &now);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.old, std::ptr::null_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::process::Command;

    const WRITERS: usize = 8;
    const RECORDS: usize = 1000;
    const CHILD_DIR: &str = "SPOOL_TEST_CHILD_DIR";

    struct Dir(PathBuf);

    impl Dir {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("spool-{}", ulid::ulid().unwrap()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn spool(&self, rotate_bytes: u64) -> Spool {
            let mut spool = Spool::open(&self.0.join("spool.jsonl")).unwrap();
            spool.rotate_bytes = rotate_bytes;
            spool
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    /// Every record of every segment; panics on one that is torn.
    fn read_all(dir: &Path) -> Vec<serde_json::Value> {
        let mut records = Vec::new();
        for entry in fs::read_dir(dir).unwrap() {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap();
            for line in text.lines().filter(|line| !line.is_empty()) {
                let value: serde_json::Value = serde_json::from_str(line).unwrap();
                assert_eq!(value["len"].as_u64(), Some(line.len() as u64), "{line}");
                records.push(value);
            }
        }
        records
    }

    fn write_many(dir: &Dir, rotate_bytes: u64, writer: usize) {
        let spool = dir.spool(rotate_bytes);
        for n in 0..RECORDS {
            let json = format!(r#"{{"writer":{writer},"n":{n},"pad":"{}"}}"#, "x".repeat(n % 300));
            assert_eq!(spool.append(&json).unwrap(), Appended::Whole);
        }
    }

    fn assert_none_lost(dir: &Dir) {
        let mut seen: HashMap<(u64, u64), u32> = HashMap::new();
        for record in read_all(&dir.0) {
            let key = (record["writer"].as_u64().unwrap(), record["n"].as_u64().unwrap());
            *seen.entry(key).or_default() += 1;
        }
        assert_eq!(seen.len(), WRITERS * RECORDS);
        assert!(seen.values().all(|count| *count == 1));
    }

    #[test]
    fn eight_threads_lose_and_tear_nothing_while_the_file_rotates() {
        let dir = Dir::new();
        std::thread::scope(|scope| {
            (0..WRITERS).for_each(|writer| {
                drop(scope.spawn({
                    let dir = &dir;
                    move || write_many(dir, 20_000, writer)
                }))
            });
        });
        assert_none_lost(&dir);
        assert!(fs::read_dir(&dir.0).unwrap().count() > 20);
    }

    /// Started by the test below as a process of its own; alone it does nothing.
    #[test]
    fn writer_process() {
        let Some(value) = std::env::var(CHILD_DIR).ok() else { return };
        let (writer, path) = value.split_once(':').unwrap();
        let dir = std::mem::ManuallyDrop::new(Dir(path.into()));
        write_many(&dir, 100_000, writer.parse().unwrap());
    }

    #[test]
    fn eight_processes_lose_and_tear_nothing_while_the_file_rotates() {
        let dir = Dir::new();
        let start = |writer| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "spool::tests::writer_process"])
                .env(CHILD_DIR, format!("{writer}:{}", dir.0.display()))
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap()
        };
        let children: Vec<_> = (0..WRITERS).map(start).collect();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        assert_none_lost(&dir);
        assert!(fs::read_dir(&dir.0).unwrap().count() > 5);
    }

    #[test]
    fn the_length_counts_its_own_digits() {
        for pad in (0..1200).chain(99_950..100_050) {
            let framed = frame(&format!(r#"{{"p":"{}"}}"#, "x".repeat(pad))).unwrap();
            let text = std::str::from_utf8(&framed).unwrap();
            let object = text.strip_prefix('\n').unwrap().strip_suffix('\n').unwrap();
            let value: serde_json::Value = serde_json::from_str(object).unwrap();
            assert_eq!(value["len"].as_u64().unwrap() as usize, object.len());
            assert!(object.starts_with(r#"{"len":"#));
        }
        assert_eq!(frame("{}").unwrap(), b"\n{\"len\":9}\n");
        assert!(frame("[]").is_err() && frame("{\n}").is_err() && frame("").is_err());
    }

    #[test]
    fn the_file_is_private_and_nothing_but_a_file() {
        let dir = Dir::new();
        let spool = dir.spool(ROTATE_BYTES);
        spool.append("{}").unwrap();
        let path = dir.0.join("spool.jsonl");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::rename(&path, dir.0.join("real")).unwrap();
        std::os::unix::fs::symlink(dir.0.join("real"), &path).unwrap();
        assert_eq!(spool.append("{}").unwrap_err().raw_os_error(), Some(libc::ELOOP));
        fs::remove_file(&path).unwrap();
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the name is NUL-terminated and outlives the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert_eq!(spool.append("{}").unwrap_err().raw_os_error(), Some(libc::ENXIO));
    }

    /// Started by the test below with a file size limit; alone it does nothing.
    #[test]
    fn limited_process() {
        let Some(path) = std::env::var("SPOOL_TEST_LIMITED").ok() else { return };
        let limit = libc::rlimit { rlim_cur: 100, rlim_max: 100 };
        // SAFETY: limit outlives the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
        let spool = Spool::open(Path::new(&path)).unwrap();
        assert_eq!(spool.append(r#"{"a":1}"#).unwrap(), Appended::Whole);
        let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(200));
        let Appended::Degraded(reason) = spool.append(&long).unwrap() else { panic!("not degraded") };
        assert!(reason.contains("of 220 bytes, not closed"), "{reason}");
        assert_eq!(spool.append("{}").unwrap_err().raw_os_error(), Some(libc::EFBIG));
    }

    #[test]
    fn a_file_size_limit_degrades_the_record_and_does_not_kill() {
        let dir = Dir::new();
        let path = dir.0.join("spool.jsonl");
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "spool::tests::limited_process"])
            .env("SPOOL_TEST_LIMITED", &path)
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
        // The next record, without the limit, stands on a line of its own.
        dir.spool(ROTATE_BYTES).append(r#"{"b":2}"#).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let whole: Vec<&str> = text.lines().filter(|l| serde_json::from_str::<serde_json::Value>(l).is_ok()).collect();
        assert_eq!(whole, [r#"{"len":16,"a":1}"#, r#"{"len":16,"b":2}"#]);
    }
}
