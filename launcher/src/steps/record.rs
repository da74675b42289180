//! Step 5, second half: /run/stockade with the box record and the box socket.
//!
//! Owns the only things of Stockade that a process inside can see. Both live on
//! a read-only tmpfs of their own; the listening end of the socket goes to P0.
//! The record names the namespaces of the box, so that a copy elsewhere is known
//! for one. Read by src/stockade/host/active.py.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;

use crate::report::Refusal;
use crate::steps::mounts::{self, Root};
use crate::sys;

pub const DIR: &str = "/run/stockade";
/// unix(7): at most this many connections wait; P0 serves 64 at a time.
const BACKLOG: i32 = 64;
/// Those that this process and the command share; namespaces(7).
const NAMED: [&str; 3] = ["user", "mnt", "pid"];

/// Makes the record and returns the listening socket.
pub fn place(root: &Root, json: &str) -> Result<OwnedFd, Refusal> {
    let fail = |e: &io::Error| Refusal::new("mount_denied", format!("box record on {DIR}")).io(e);
    let json = with_namespaces(json).map_err(|e| fail(&e))?;
    let flags = sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_NODEV | sys::MOUNT_ATTR_NOEXEC;
    let options = [("mode", Some("0755")), ("size", Some("1048576"))];
    let tmpfs = sys::new_fs("tmpfs", &options, flags).map_err(|e| fail(&e))?;
    root.put(&tmpfs, DIR, true)?;
    mounts::write_at(tmpfs.as_raw_fd(), "box.json", 0o444, json.as_bytes()).map_err(|e| fail(&e))?;
    let socket = listen(tmpfs.as_raw_fd()).map_err(|e| fail(&e))?;
    sys::set_attrs(tmpfs.as_raw_fd(), sys::MOUNT_ATTR_RDONLY, false, None).map_err(|e| fail(&e))?;
    Ok(socket)
}

/// The host's /proc still stands here, and names this process in any pid namespace.
fn with_namespaces(json: &str) -> io::Result<String> {
    let mut record: serde_json::Map<String, serde_json::Value> = serde_json::from_str(json).map_err(io::Error::other)?;
    let mut named = serde_json::Map::new();
    for name in NAMED {
        let inode = std::fs::metadata(format!("/proc/self/ns/{name}"))?.ino();
        named.insert(name.to_owned(), inode.into());
    }
    record.insert("namespaces".to_owned(), named.into());
    Ok(serde_json::Value::Object(record).to_string())
}

/// Bound through the descriptor of the directory: its path may be longer than sun_path.
fn listen(dir: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the address is plain data that lives through the calls; the descriptor is owned at once.
    unsafe {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let socket = OwnedFd::from_raw_fd(sys::check(i64::from(libc::socket(libc::AF_UNIX, kind, 0)))? as RawFd);
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, from) in address.sun_path.iter_mut().zip(format!("/proc/self/fd/{dir}/box.sock").bytes()) {
            *to = from as libc::c_char;
        }
        let size = std::mem::size_of::<libc::sockaddr_un>() as libc::socklen_t;
        sys::check(i64::from(libc::bind(socket.as_raw_fd(), std::ptr::addr_of!(address).cast(), size)))?;
        sys::check(i64::from(libc::listen(socket.as_raw_fd(), BACKLOG)))?;
        Ok(socket)
    }
}
