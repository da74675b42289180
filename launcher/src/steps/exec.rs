//! Step 14: working directory, and the command itself.
//!
//! Owns finding the program as a shell would (PATH of the box's environment),
//! checking that the box resolves it to the file that the caller meant, and
//! execve. Source: execve(2); exec(3), "special semantics for execlp".

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::report::Refusal;
use crate::sys;

/// The working directory, opened before the filter (which knows no openat2).
pub fn open_dir(path: &str) -> Result<OwnedFd, Refusal> {
    crate::byparts::open_path(path, libc::O_DIRECTORY, sys::RESOLVE_NO_MAGICLINKS)
        .map_err(|e| Refusal::new("chdir_denied", path).io(&e))
}

pub fn change_dir(dir: &OwnedFd, path: &str) -> Result<(), Refusal> {
    // SAFETY: the descriptor is ours.
    let ret = unsafe { libc::fchdir(dir.as_raw_fd()) };
    sys::check(i64::from(ret)).map(drop).map_err(|e| Refusal::new("chdir_denied", path).io(&e))
}

/// The files that `argv[0]` may stand for, in order.
pub fn candidates(argv0: &CStr, env: &[CString]) -> Vec<CString> {
    let name = argv0.to_bytes();
    if name.contains(&b'/') {
        return vec![argv0.to_owned()];
    }
    let path =
        env.iter().find_map(|item| item.to_bytes().strip_prefix(b"PATH=")).unwrap_or(b"/usr/local/bin:/usr/bin:/bin");
    path.split(|b| *b == b':')
        // An empty entry means the working directory to exec(3): a planted program. It is left out.
        .filter(|dir| !dir.is_empty())
        .filter_map(|dir| CString::new([dir, b"/", name].concat()).ok())
        .collect()
}

/// Refuses when the first candidate that exists is another file than `expected`.
pub fn check_executable(candidates: &[CString], expected: Option<&str>) -> Result<(), Refusal> {
    let Some(expected) = expected else { return Ok(()) };
    let want = identity(&sys::cstr(expected).map_err(|e| Refusal::new("interpreter_changed", expected).io(&e))?);
    let found = candidates.iter().find_map(|path| identity(path).map(|id| (path, id)));
    match (found, want) {
        (Some((_, got)), Some(want)) if got == want => Ok(()),
        (None, _) => Err(Refusal::new("not_found", expected).errno(libc::ENOENT)),
        (Some((path, _)), _) => Err(Refusal::new("interpreter_changed", path.to_string_lossy())
            .detail(format!("got another file than expected {expected:?}"))),
    }
}

/// Tells whether this process finds a program of that name, on its own PATH or where programs usually lie.
pub fn is_here(argv0: &CStr, env: &[CString]) -> bool {
    let usual = [c"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()];
    let found = |env: &[CString]| candidates(argv0, env).iter().any(|path| identity(path).is_some());
    found(env) || found(&usual)
}

fn exists(path: &CStr) -> bool {
    // SAFETY: path lives through the call; F_OK asks for existence only.
    unsafe { libc::access(path.as_ptr(), libc::F_OK) == 0 }
}

/// Device and inode of an executable regular file.
fn identity(path: &CStr) -> Option<(u64, u64)> {
    // SAFETY: path and st live through the calls; st is plain data.
    unsafe {
        let mut st: libc::stat = std::mem::zeroed();
        let good = libc::stat(path.as_ptr(), &mut st) == 0
            && st.st_mode & libc::S_IFMT == libc::S_IFREG
            && libc::access(path.as_ptr(), libc::X_OK) == 0;
        good.then_some((st.st_dev, st.st_ino))
    }
}

/// Tries each candidate; returns only when none could be started.
pub fn exec(candidates: &[CString], argv: &[CString], env: &[CString]) -> Refusal {
    let args = pointers(argv);
    let vars = pointers(env);
    let mut worst = libc::ENOENT;
    for path in candidates {
        // SAFETY: all strings and both null-terminated arrays outlive the call.
        unsafe { libc::execve(path.as_ptr(), args.as_ptr(), vars.as_ptr()) };
        match io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) {
            libc::ENOENT | libc::ENOTDIR => {}
            // A file that may not be run: remember it, look further along PATH. A
            // directory that may not be searched is, as to a shell, no place to look.
            libc::EACCES if exists(path) => worst = libc::EACCES,
            libc::EACCES => {}
            other => {
                worst = other;
                break;
            }
        }
    }
    let name = argv.first().map(|a| a.to_string_lossy().into_owned()).unwrap_or_default();
    let startable = candidates.iter().any(|path| identity(path).is_some());
    let code = if worst == libc::ENOENT && !startable { "not_found" } else { "exec_failed" };
    Refusal::new(code, name).errno(worst)
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
}
