//! Step 4: the mount table, and step 6: the pivot into it.
//!
//! Owns turning plan rows into mounts. Every source is opened component by
//! component without following a link, its type is checked on the descriptor,
//! and the mount is made from that descriptor, so a name that is swapped
//! meanwhile changes nothing. A row that cannot be had refuses the launch.
//! Overlays: `overlay.rs`; /dev and /proc: `dev.rs`; guards: `guards.rs`.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::plan::{Attr, Kind, Plan, Row};
use crate::report::Refusal;
use crate::steps::{dev, overlay};
use crate::sys;

/// Trees made by a root caller's P0, by source path and in row order. P1 of such
/// a box is no longer root and could not reach them (/root is 0700).
/// None: an ordinary caller, whose P1 opens its sources itself.
pub type Prepared = Option<BTreeMap<String, VecDeque<OwnedFd>>>;

/// The new root while it is being built.
pub struct Root {
    pub fd: OwnedFd,
    pub prepared: Prepared,
    /// Of a box inside another: the proc of its pid namespace, which only its birth could have.
    pub proc: Option<OwnedFd>,
    /// The tmpfs rows by target: the only places where anything is created.
    tmpfs: BTreeMap<String, OwnedFd>,
    /// Their mount ids.
    own: Vec<u64>,
    /// Directories on them, by path. Rows come by depth, so that nothing is mounted
    /// over one of these once a row below it was placed.
    dirs: RefCell<BTreeMap<String, OwnedFd>>,
    /// Mounts that become read-only when all rows are placed, besides the sealed ones.
    later: Vec<String>,
    /// An overlay was refused and its entries were bound one by one.
    pub snapshot: bool,
}

/// Builds the whole table on top of `/` and returns the new root, not yet entered.
pub fn build(plan: &Plan, prepared: Prepared, proc: Option<OwnedFd>) -> Result<Root, Refusal> {
    private_propagation()?;
    let mut rows = plan.mounts.iter();
    let first = rows.next().ok_or_else(|| Refusal::new("plan_invalid", "mounts"))?;
    let mut root = new_root(first, prepared)?;
    root.proc = proc;
    rows.filter(|row| !matches!(row, Row::Seal { .. })).try_for_each(|row| root.apply(row))?;
    Ok(root)
}

/// mount_namespaces(7): nothing that happens here may reach the host, nor come from it.
fn private_propagation() -> Result<(), Refusal> {
    let null = std::ptr::null();
    // SAFETY: only the target string is read; it is static.
    let ret = unsafe { libc::mount(null, c"/".as_ptr(), null, libc::MS_REC | libc::MS_PRIVATE, null.cast()) };
    sys::check(i64::from(ret)).map(drop).map_err(|e| Refusal::new("mount_denied", "private propagation of /").io(&e))
}

/// The new root is stacked on the old one: absolute paths still start below it,
/// at the host's root, so sources stay reachable until the pivot.
fn new_root(row: &Row, prepared: Prepared) -> Result<Root, Refusal> {
    let (mut tmpfs, mut own) = (BTreeMap::new(), vec![]);
    let mut prepared = prepared;
    let fd = match row {
        Row::Bind { source, attrs, kind, recursive, .. } => {
            let tree = take_tree(&mut prepared, source, *kind, *recursive)?;
            sys::set_attrs(tree.as_raw_fd(), attr_bits(attrs), *recursive, None)
                .map_err(|e| denied("attributes of", "/", &e))?;
            tree
        }
        Row::Tmpfs { mode, size_bytes, attrs, .. } => {
            let made = make_tmpfs("/", mode, *size_bytes, attrs)?;
            own.push(sys::mount_id(made.as_raw_fd()).map_err(|e| denied("id of", "/", &e))?);
            tmpfs.insert("/".to_string(), made.try_clone().map_err(|e| denied("dup of", "/", &e))?);
            made
        }
        _ => return Err(Refusal::new("plan_invalid", "mounts").detail("the first row must give `/`")),
    };
    let old = sys::open_host("/").map_err(|e| denied("open of", "/", &e))?;
    sys::attach(fd.as_raw_fd(), old.as_raw_fd()).map_err(|e| denied("root on", "/", &e))?;
    Ok(Root { fd, prepared, proc: None, tmpfs, own, dirs: RefCell::default(), later: vec![], snapshot: false })
}

impl Root {
    fn apply(&mut self, row: &Row) -> Result<(), Refusal> {
        match row {
            Row::Bind { .. } => self.bind(row),
            Row::Tmpfs { target, mode, size_bytes, attrs, create } => {
                let made = make_tmpfs(target, mode, *size_bytes, attrs)?;
                self.put(&made, target, *create)?;
                self.own.push(sys::mount_id(made.as_raw_fd()).map_err(|e| denied("id of", target, &e))?);
                self.tmpfs.insert(target.clone(), made);
                Ok(())
            }
            Row::Overlay { .. } => overlay::home(self, row),
            Row::Cache { .. } => overlay::cache(self, row),
            Row::Dir { target, mode } => self.make_dir(target, mode),
            Row::Symlink { target, to } => self.symlink(target, to),
            Row::File { target, mode, content } => self.file(target, mode, content),
            Row::Proc { target, covers } => dev::proc_fs(self, target, covers),
            Row::Dev { target, shm_size_bytes } => dev::devices(self, target, *shm_size_bytes),
            Row::Seal { .. } => Ok(()),
        }
    }

    /// Makes the sealed tmpfs mounts read-only, when nothing is created in them any more.
    pub fn seal_all(&self, plan: &Plan) -> Result<(), Refusal> {
        self.later.iter().try_for_each(|target| self.seal(target))?;
        plan.mounts.iter().try_for_each(|row| match row {
            Row::Seal { target } => self.seal(target),
            _ => Ok(()),
        })
    }

    fn bind(&mut self, row: &Row) -> Result<(), Refusal> {
        let Row::Bind { source, target, attrs, kind, recursive, optional, create, .. } = row else { return Ok(()) };
        let tree = match self.source_tree(source, *kind, *recursive) {
            Err(e) if *optional && e.is("source_missing") => return Ok(()),
            other => other?,
        };
        let bits = attr_bits(attrs);
        if bits != 0 {
            sys::set_attrs(tree.as_raw_fd(), bits, *recursive, None)
                .map_err(|e| denied("attributes of", source, &e))?;
        }
        self.hang(&tree, target, create.then(|| is_dir(tree.as_raw_fd())), |e| {
            Refusal::new("mount_denied", format!("bind {source} on {target}")).io(e)
        })
    }

    /// The detached tree for a source: prepared by real root, or cloned here.
    pub fn source_tree(&mut self, source: &str, kind: Kind, recursive: bool) -> Result<OwnedFd, Refusal> {
        take_tree(&mut self.prepared, source, kind, recursive)
    }

    /// Puts a detached mount on `target`, which is created when the row says so.
    pub fn put(&self, mount: &OwnedFd, target: &str, create: bool) -> Result<(), Refusal> {
        self.hang(mount, target, create.then_some(true), |e| denied("mount on", target, e))
    }

    /// Hangs a detached mount on `target`; `create` says what is made for it (directory or file).
    fn hang(
        &self,
        mount: &OwnedFd,
        target: &str,
        create: Option<bool>,
        fail: impl Fn(&io::Error) -> Refusal,
    ) -> Result<(), Refusal> {
        let (parent, name) = split(target);
        if let Some((directory, dir)) = create.and_then(|directory| Some((directory, self.own_dir(parent).ok()?))) {
            if make_at(dir, name, directory).is_ok() {
                return sys::attach_at(mount.as_raw_fd(), dir, name).map_err(|e| fail(&e));
            }
        }
        let point = self.mount_point(target, create)?;
        sys::attach(mount.as_raw_fd(), point.as_raw_fd()).map_err(|e| fail(&e))
    }

    /// Opens a mount point in the new root; `create` says as what (directory or file).
    pub fn mount_point(&self, target: &str, create: Option<bool>) -> Result<OwnedFd, Refusal> {
        match self.open(target) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) && create.is_some() => {
                self.create(target, create == Some(true)).map_err(|e| missing_point(target, &e))?;
                self.open(target).map_err(|e| missing_point(target, &e))
            }
            other => other.map_err(|e| missing_point(target, &e)),
        }
    }

    /// An O_PATH descriptor inside the new root; links are never followed.
    pub fn open(&self, path: &str) -> io::Result<OwnedFd> {
        let resolve = sys::RESOLVE_IN_ROOT | sys::RESOLVE_NO_SYMLINKS | sys::RESOLVE_NO_MAGICLINKS;
        sys::openat2(self.fd.as_raw_fd(), path, libc::O_PATH | libc::O_NOFOLLOW, resolve)
    }

    /// Makes `path` and its missing parents. Everything of the host is read-only
    /// or not ours to litter, so this can only succeed on a tmpfs of the plan.
    fn create(&self, path: &str, directory: bool) -> io::Result<()> {
        let (parent, name) = split(path);
        make_at(self.own_dir(parent)?, name, directory)
    }

    /// A directory on a tmpfs of the plan, made with its parents if it is missing.
    fn own_dir(&self, path: &str) -> io::Result<RawFd> {
        if let Some(dir) = self.dirs.borrow().get(path) {
            return Ok(dir.as_raw_fd());
        }
        let dir = match self.open(path) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
                self.create(path, true)?;
                self.open(path)?
            }
            other => other?,
        };
        self.on_own_tmpfs(dir.as_raw_fd())?;
        let fd = dir.as_raw_fd();
        self.dirs.borrow_mut().insert(path.to_string(), dir);
        Ok(fd)
    }

    fn make_dir(&self, target: &str, mode: &str) -> Result<(), Refusal> {
        let (parent, name) = self.parent_of(target)?;
        let mode = octal(mode)?;
        if make_dir_at(parent, name, mode).is_ok() {
            return Ok(());
        }
        // It is there as the parent of an earlier row.
        let dir = self.open(target).map_err(|e| missing_point(target, &e))?;
        self.on_own_tmpfs(dir.as_raw_fd()).map_err(|e| missing_point(target, &e))?;
        sys::chmod_held(dir.as_raw_fd(), mode).map_err(|e| denied("mode of", target, &e))
    }

    fn symlink(&self, target: &str, to: &str) -> Result<(), Refusal> {
        let (dir, name) = self.parent_of(target)?;
        let (to, name) = (sys::cstr(to), sys::cstr(name));
        let (Ok(to), Ok(name)) = (to, name) else { return Err(Refusal::new("plan_invalid", target)) };
        // SAFETY: both strings outlive the call.
        let ret = unsafe { libc::symlinkat(to.as_ptr(), dir, name.as_ptr()) };
        sys::check(i64::from(ret)).map(drop).map_err(|e| denied("link at", target, &e))
    }

    pub fn file(&self, target: &str, mode: &str, content: &str) -> Result<(), Refusal> {
        let (dir, name) = self.parent_of(target)?;
        write_at(dir, name, octal(mode)?, content.as_bytes()).map_err(|e| denied("file at", target, &e))
    }

    pub fn parent_of<'a>(&self, target: &'a str) -> Result<(RawFd, &'a str), Refusal> {
        let (parent, name) = split(target);
        Ok((self.own_dir(parent).map_err(|e| missing_point(target, &e))?, name))
    }

    /// Nothing is ever created in the user's tree, which may be a tmpfs, too: the
    /// directory must be on a mount that a tmpfs row of this plan made.
    fn on_own_tmpfs(&self, dir: RawFd) -> io::Result<()> {
        let id = sys::mount_id(dir)?;
        self.own.contains(&id).then_some(()).ok_or_else(|| io::Error::from_raw_os_error(libc::EROFS))
    }

    /// Keeps a tmpfs open for rows below it, until `seal_all`.
    pub fn seal_later(&mut self, target: &str, made: OwnedFd) {
        self.tmpfs.insert(target.to_string(), made);
        self.later.push(target.to_string());
    }

    fn seal(&self, target: &str) -> Result<(), Refusal> {
        let mount = self
            .tmpfs
            .get(target)
            .ok_or_else(|| Refusal::new("plan_invalid", target).detail("seal of no tmpfs row"))?;
        sys::set_attrs(mount.as_raw_fd(), sys::MOUNT_ATTR_RDONLY, false, None)
            .map_err(|e| denied("seal of", target, &e))
    }

    /// The tmpfs of a row, by its target.
    pub fn tmpfs(&self, target: &str) -> Option<RawFd> {
        self.tmpfs.get(target).map(|fd| fd.as_raw_fd())
    }

    /// Step 6: pivot_root(2) with both arguments "."; the old root is then on top of the new one.
    pub fn enter(&self) -> Result<(), Refusal> {
        let fail = |what: &str, e: &io::Error| Refusal::new("pivot_denied", what).io(e);
        let dot = c".".as_ptr();
        // SAFETY: the strings are static; the descriptor is ours.
        unsafe {
            sys::check(i64::from(libc::fchdir(self.fd.as_raw_fd()))).map_err(|e| fail("fchdir", &e))?;
            sys::check(libc::syscall(libc::SYS_pivot_root, dot, dot)).map_err(|e| fail("pivot_root", &e))?;
        }
        Ok(())
    }
}

fn take_tree(prepared: &mut Prepared, source: &str, kind: Kind, recursive: bool) -> Result<OwnedFd, Refusal> {
    let Some(trees) = prepared else { return clone_source(source, kind, recursive) };
    let tree = trees.get_mut(source).and_then(VecDeque::pop_front);
    tree.ok_or_else(|| Refusal::new("source_missing", source).errno(libc::ENOENT))
}

/// The end of step 6: the old root goes as a whole. Takes a tenth of a
/// millisecond (RCU), so it is done while the command prepares itself.
pub fn leave_old_root() -> Result<(), Refusal> {
    umount_old_root().map_err(|e| not_left(&e))
}

/// The same for a thread that may not touch the heap.
pub fn umount_old_root() -> io::Result<()> {
    // SAFETY: the string is static.
    sys::check(i64::from(unsafe { libc::umount2(c".".as_ptr(), libc::MNT_DETACH) })).map(drop)
}

pub fn not_left(error: &io::Error) -> Refusal {
    Refusal::new("pivot_denied", "umount of the old root").io(error)
}

/// Opens a host path without following links and clones the mount there.
pub fn clone_source(source: &str, kind: Kind, recursive: bool) -> Result<OwnedFd, Refusal> {
    let fd = open_source(source, kind)?;
    sys::clone_tree(fd.as_raw_fd(), recursive)
        .map_err(|e| Refusal::new("mount_denied", format!("clone of {source}")).io(&e))
}

/// Opens a host path and checks on the descriptor that it is what the plan says.
pub fn open_source(source: &str, kind: Kind) -> Result<OwnedFd, Refusal> {
    let fd = sys::open_host(source).map_err(|e| source_error(source, &e))?;
    if kind == Kind::Mount {
        return Ok(fd);
    }
    let mode = sys::fstat(fd.as_raw_fd()).map_err(|e| source_error(source, &e))?.st_mode & libc::S_IFMT;
    let good = match kind {
        Kind::Dir => mode == libc::S_IFDIR,
        Kind::Socket => mode == libc::S_IFSOCK,
        // A character device (/dev/dri/…) is granted as a file.
        Kind::File => matches!(mode, libc::S_IFREG | libc::S_IFCHR | libc::S_IFIFO),
        Kind::Any | Kind::Mount => true,
    };
    if mode == libc::S_IFLNK {
        return Err(Refusal::new("source_symlink", source));
    }
    if !good {
        return Err(Refusal::new("source_type", source).detail(format!("got mode {mode:o}, expected {kind:?}")));
    }
    Ok(fd)
}

fn source_error(source: &str, e: &io::Error) -> Refusal {
    let code = match e.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => "source_missing",
        Some(libc::ELOOP) => "source_symlink",
        _ => "source_denied",
    };
    Refusal::new(code, source).io(e)
}

fn missing_point(target: &str, e: &io::Error) -> Refusal {
    Refusal::new("mount_point_missing", target).io(e)
}

pub fn denied(what: &str, object: &str, e: &io::Error) -> Refusal {
    Refusal::new("mount_denied", format!("{what} {object}")).io(e)
}

pub fn attr_bits(attrs: &[Attr]) -> u64 {
    attrs.iter().fold(0, |bits, attr| {
        bits | match attr {
            Attr::Ro => sys::MOUNT_ATTR_RDONLY,
            Attr::Nosuid => sys::MOUNT_ATTR_NOSUID,
            Attr::Nodev => sys::MOUNT_ATTR_NODEV,
            Attr::Noexec => sys::MOUNT_ATTR_NOEXEC,
        }
    })
}

fn make_tmpfs(target: &str, mode: &str, size_bytes: u64, attrs: &[Attr]) -> Result<OwnedFd, Refusal> {
    octal(mode)?;
    let size = size_bytes.to_string();
    let options = [("mode", Some(mode)), ("size", Some(size.as_str()))];
    sys::new_fs("tmpfs", &options, attr_bits(attrs)).map_err(|e| denied("tmpfs for", target, &e))
}

pub fn octal(mode: &str) -> Result<libc::mode_t, Refusal> {
    u32::from_str_radix(mode, 8)
        .ok()
        .filter(|m| *m <= 0o1777)
        .ok_or_else(|| Refusal::new("plan_invalid", mode).detail("not a file mode"))
}

fn is_dir(fd: RawFd) -> bool {
    sys::fstat(fd).is_ok_and(|st| st.st_mode & libc::S_IFMT == libc::S_IFDIR)
}

pub fn split(path: &str) -> (&str, &str) {
    match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some((parent, name)) => (parent, name),
        None => ("/", path),
    }
}

pub fn make_dir_at(dir: RawFd, name: &str, mode: libc::mode_t) -> io::Result<()> {
    let name = sys::cstr(name)?;
    // SAFETY: name outlives the call.
    sys::check(i64::from(unsafe { libc::mkdirat(dir, name.as_ptr(), mode) })).map(drop)
}

pub fn make_at(dir: RawFd, name: &str, directory: bool) -> io::Result<()> {
    match directory {
        true => make_dir_at(dir, name, 0o755),
        false => make_node_at(dir, name, libc::S_IFREG | 0o600),
    }
}

/// mknodat(2) with device 0: a regular file, or the whiteout (character device 0/0).
pub fn make_node_at(dir: RawFd, name: &str, mode: libc::mode_t) -> io::Result<()> {
    let name = sys::cstr(name)?;
    // SAFETY: name outlives the call.
    sys::check(i64::from(unsafe { libc::mknodat(dir, name.as_ptr(), mode, 0) })).map(drop)
}

/// linkat(2) of a name in one directory to a name in another of the same file system.
pub fn link_at(from: RawFd, old: &str, dir: RawFd, name: &str) -> io::Result<()> {
    let (old, name) = (sys::cstr(old)?, sys::cstr(name)?);
    // SAFETY: both names outlive the call.
    sys::check(i64::from(unsafe { libc::linkat(from, old.as_ptr(), dir, name.as_ptr(), 0) })).map(drop)
}

pub fn write_at(dir: RawFd, name: &str, mode: libc::mode_t, content: &[u8]) -> io::Result<()> {
    use std::io::Write;
    use std::os::fd::FromRawFd;
    let name = sys::cstr(name)?;
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: name outlives the call; the new descriptor is owned by the file at once.
    let mut file = unsafe {
        let fd = sys::check(i64::from(libc::openat(dir, name.as_ptr(), flags, mode)))?;
        std::fs::File::from_raw_fd(fd as RawFd)
    };
    file.write_all(content)
}
