//! Step 1: id maps of the user namespace.
//!
//! Owns who the box is. An ordinary caller is itself (identity map). A root
//! caller is an unused kernel id that looks like root inside: no file, device or
//! sysctl of the real root opens for it. Source: user_namespaces(7), "Defining
//! user and group ID mappings"; mount_setattr(2), "ID-mapped mounts".

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::plan::{Ids, Kind, Owner, Plan, Row};
use crate::report::Refusal;
use crate::steps::mounts::{self, Prepared};
use crate::sys;

fn map_denied(what: &str, e: &io::Error) -> Refusal {
    Refusal::new("map_denied", what).io(e)
}

/// Called by P1 for itself: a one-line identity map needs no help from outside.
pub fn map_self(uid: u32, gid: u32) -> Result<(), Refusal> {
    sys::write_file("/proc/self/setgroups", "deny").map_err(|e| map_denied("setgroups", &e))?;
    sys::write_file("/proc/self/uid_map", &format!("{uid} {uid} 1")).map_err(|e| map_denied("uid_map", &e))?;
    sys::write_file("/proc/self/gid_map", &format!("{gid} {gid} 1")).map_err(|e| map_denied("gid_map", &e))
}

/// Called by P0 as real root: `inside` of the namespace of `pid` is kernel id `outside`.
fn map_child(pid: libc::pid_t, inside: (u32, u32), outside: (u32, u32)) -> Result<(), Refusal> {
    let write = |name: &str, text: &str| {
        sys::write_file(&format!("/proc/{pid}/{name}"), text).map_err(|e| map_denied(name, &e))
    };
    write("setgroups", "deny")?;
    write("uid_map", &format!("{} {} 1", inside.0, outside.0))?;
    write("gid_map", &format!("{} {} 1", inside.1, outside.1))
}

/// Maps box 0 to the plan's kernel ids for a box whose first process is `pid`, and
/// idmaps what was waiting for it: the box's own map is that of files of owner 0.
pub fn map_box(pid: libc::pid_t, ids: Ids, waiting: &Waiting) -> Result<(), Refusal> {
    let Ids::Shifted { kernel_uid, kernel_gid, .. } = ids else { return Ok(()) };
    map_child(pid, BOX_ROOT, (kernel_uid, kernel_gid))?;
    if waiting.0.is_empty() {
        return Ok(());
    }
    let map = open_map(pid)?;
    waiting.0.iter().try_for_each(|(tree, path)| idmap(*tree, path, false, map.as_raw_fd()))
}

/// Called by P1 of a root caller, once the maps stand and the sources are open.
pub fn become_box_root(ids: Ids) -> Result<(), Refusal> {
    let Ids::Shifted { .. } = ids else { return Ok(()) };
    let fail = |what: &str| map_denied(what, &io::Error::last_os_error());
    // SAFETY: no pointers. Raw calls: only this thread changes, there is no other to keep in step.
    unsafe {
        if libc::syscall(libc::SYS_setresgid, 0, 0, 0) < 0 {
            return Err(fail("setresgid"));
        }
        if libc::syscall(libc::SYS_setresuid, 0, 0, 0) < 0 {
            return Err(fail("setresuid"));
        }
    }
    Ok(())
}

const BOX_ROOT: Owner = (0, 0);

/// Trees of the prepared ones, by descriptor and source, that get their idmap when the box exists.
#[derive(Default)]
pub struct Waiting(Vec<(RawFd, String)>);

/// Called by P0 as real root, before the box exists: supplementary groups go
/// (setgroups is denied inside), and every source is opened and cloned, since
/// idmaps need privilege over the file system and P1 will not be root.
pub fn prepare(plan: &Plan) -> Result<(Prepared, Waiting), Refusal> {
    let Ids::Shifted { kernel_uid, kernel_gid, owner_uid, owner_gid } = plan.ids else {
        return Ok((None, Waiting::default()));
    };
    // SAFETY: a zero count reads no list.
    if unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) } < 0 {
        return Err(map_denied("setgroups", &io::Error::last_os_error()));
    }
    let mut maps = Maps {
        kernel: (kernel_uid, kernel_gid),
        default: (owner_uid, owner_gid),
        made: BTreeMap::new(),
        waiting: Waiting::default(),
    };
    let mut trees: BTreeMap<String, VecDeque<OwnedFd>> = BTreeMap::new();
    for source in plan.mounts.iter().flat_map(sources) {
        match source.tree(&mut maps) {
            Err(e) if source.optional && e.is("source_missing") => {}
            tree => trees.entry(source.path.to_string()).or_default().push_back(tree?),
        }
    }
    Ok((Some(trees), maps.waiting))
}

/// User namespaces that serve as id maps, one for each owner on disk.
struct Maps {
    kernel: Owner,
    default: Owner,
    made: BTreeMap<Owner, File>,
    waiting: Waiting,
}

impl Maps {
    fn apply(&mut self, source: &Source, tree: RawFd) -> Result<(), Refusal> {
        let owner = source.owner.unwrap_or(self.default);
        if owner == BOX_ROOT && !source.recursive {
            self.waiting.0.push((tree, source.path.to_string()));
            return Ok(());
        }
        let map = self.of(owner)?;
        idmap(tree, source.path, source.recursive, map)
    }

    fn of(&mut self, owner: Owner) -> Result<RawFd, Refusal> {
        if let Some(map) = self.made.get(&owner) {
            return Ok(map.as_raw_fd());
        }
        let map = id_namespace(owner, self.kernel)?;
        let fd = map.as_raw_fd();
        self.made.insert(owner, map);
        Ok(fd)
    }
}

/// A host path that a row mounts, and how.
struct Source<'a> {
    path: &'a str,
    kind: Kind,
    recursive: bool,
    idmap: bool,
    optional: bool,
    owner: Option<Owner>,
}

impl Source<'_> {
    fn tree(&self, maps: &mut Maps) -> Result<OwnedFd, Refusal> {
        let tree = mounts::clone_source(self.path, self.kind, self.recursive)?;
        if self.idmap {
            maps.apply(self, tree.as_raw_fd())?;
        }
        Ok(tree)
    }
}

fn idmap(tree: RawFd, path: &str, recursive: bool, map: RawFd) -> Result<(), Refusal> {
    sys::set_attrs(tree, sys::MOUNT_ATTR_IDMAP, recursive, Some(map))
        .map_err(|e| Refusal::new("mount_denied", format!("idmap of {path}")).io(&e))
}

fn open_map(pid: libc::pid_t) -> Result<File, Refusal> {
    File::open(format!("/proc/{pid}/ns/user")).map_err(|e| map_denied("ns/user", &e))
}

fn sources(row: &Row) -> Vec<Source<'_>> {
    let dir = |path, idmap, owner| Source { path, kind: Kind::Dir, recursive: false, idmap, optional: false, owner };
    match row {
        Row::Bind { source, kind, recursive, optional, idmap, owner, .. } => {
            // An idmap needs a file system that supports it: submounts of a grant may not.
            let recursive = *recursive && !*idmap;
            let (kind, idmap, optional, owner) = (*kind, *idmap, *optional, *owner);
            vec![Source { path: source, kind, recursive, idmap, optional, owner }]
        }
        Row::Overlay { source, idmap, owner, .. } => vec![dir(source, *idmap, *owner)],
        // In the order in which the row takes them: the store first, then the lower layer.
        Row::Cache { source, upper, idmap, owner, .. } => {
            let store = dir(mounts::split(upper).0, *idmap, *owner);
            [store].into_iter().chain(source.iter().map(|s| dir(s, *idmap, *owner))).collect()
        }
        _ => vec![],
    }
}

/// A user namespace used only as a map: on-disk `owner` appears as kernel id `kernel`.
fn id_namespace(owner: (u32, u32), kernel: (u32, u32)) -> Result<File, Refusal> {
    // SAFETY: takes no pointer.
    let parent = unsafe { libc::getpid() };
    // SAFETY: the launcher is single-threaded here; the child only waits to be killed.
    let pid =
        unsafe { sys::fork_into(libc::CLONE_NEWUSER) }.map_err(|e| Refusal::new("userns_denied", "id map").io(&e))?;
    if pid == 0 {
        // SAFETY: plain waiting; dies with us because of the parent-death signal, or at
        // once when we were killed before it was set.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            while libc::getppid() == parent {
                libc::pause();
            }
            libc::_exit(0)
        }
    }
    let file = map_child(pid, owner, kernel).and_then(|()| open_map(pid));
    // SAFETY: our own child; the namespace lives on in the open file.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
    file
}
