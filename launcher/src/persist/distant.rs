//! Mounts that another program or machine answers for, or does not: they are not looked into.
//!
//! Owns telling one by its type, without a call that waits for it. Asked only where something is
//! mounted inside a root, so an ordinary start does not read the mount table for it. The same list
//! as in src/stockade/plan/mountinfo.py, which a test compares.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use crate::sys;

/// Sorted. "fuse.sshfs" counts as "fuse".
const DISTANT: [&str; 20] = [
    "9p", "afs", "autofs", "beegfs", "ceph", "cifs", "coda", "fuse", "fuseblk", "gfs2", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "ocfs2", "orangefs", "smb3", "smbfs", "virtiofs",
];

/// Of the supervisor of a box inside another, which the /proc of that box does not show; else /proc itself.
static PROC: AtomicI32 = AtomicI32::new(-1);

/// From now on the mount table is read through this descriptor of a /proc, which stays open.
pub fn read_through(proc: RawFd) {
    PROC.store(proc, Ordering::Relaxed);
}

fn mount_table() -> io::Result<String> {
    let proc = PROC.load(Ordering::Relaxed);
    if proc < 0 {
        return std::fs::read_to_string("/proc/self/mountinfo");
    }
    let mut text = String::new();
    File::from(sys::openat(proc, c"self/mountinfo", libc::O_RDONLY, 0)?).read_to_string(&mut text)?;
    Ok(text)
}

/// True also where it cannot be told.
pub fn is_distant(dir: RawFd, name: &CStr) -> bool {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    let id = sys::openat2_c(dir, name, flags, 0).and_then(|fd| sys::mount_id(fd.as_raw_fd()));
    let table = mount_table();
    match (id, table) {
        (Ok(id), Ok(table)) => kind(&table, id).is_none_or(|kind| DISTANT.contains(&kind)),
        _ => true,
    }
}

/// The type of a mount, without what follows a dot. Source: proc_pid_mountinfo(5).
fn kind(table: &str, id: u64) -> Option<&str> {
    let id = id.to_string();
    let line = table.lines().find(|line| line.split(' ').next() == Some(id.as_str()))?;
    line.split_once(" - ")?.1.split([' ', '.']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_a_mount_is_found_by_its_id() {
        let table = "21 1 8:1 / / rw shared:1 - ext4 /dev/sda rw\n121 21 0:40 / /m rw - fuse.sshfs a: rw\n";
        assert_eq!((kind(table, 21), kind(table, 121), kind(table, 12)), (Some("ext4"), Some("fuse"), None));
        assert!(DISTANT.is_sorted() && DISTANT.contains(&"fuse") && !DISTANT.contains(&"ext4"));
    }
}
