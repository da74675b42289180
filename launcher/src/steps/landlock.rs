//! Step 11: Landlock over the same grants.
//!
//! Owns the second, independent holder of the file promises and the only holder
//! of abstract-socket scoping with the host's network. The rights handled are
//! those of the ABI that the plan names, never "what the kernel has": a kernel
//! with less refuses the launch. Source: landlock(7); kernel
//! Documentation/userspace-api/landlock.rst.

use std::error::Error;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use landlock::{
    Access as _, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetStatus, Scope, ABI,
};

use crate::nested::ring;
use crate::plan::{Access, Backend, Landlock, Row};
use crate::report::Refusal;
use crate::sys;

/// Every right there is, of whatever ABI.
pub const ALL: u64 = u64::MAX;

/// A rule set by rights, as it is applied and as boxes inside are narrowed by it.
#[derive(Debug, Clone)]
pub struct Rules {
    pub abi: u8,
    pub scope_signal: bool,
    pub scope_abstract: bool,
    pub rules: Vec<(String, u64)>,
}

/// What a plan's rules stand for. An ABI that we do not know is refused when they are applied.
pub fn rules(policy: &Landlock) -> Rules {
    let abi = known(policy.abi).unwrap_or(ABI::V3);
    let rules = policy.rules.iter().map(|rule| (rule.path.clone(), rights(rule.access, abi).bits())).collect();
    Rules { abi: policy.abi, scope_signal: policy.scope_signal, scope_abstract: policy.scope_abstract, rules }
}

/// Of a box inside another: its rules name places by paths in which its caller may have put links.
pub struct Around<'a> {
    pub outer: &'a Rules,
    pub rows: &'a [Row],
}

/// What the running kernel offers; 0 without Landlock. Source: landlock_create_ruleset(2).
pub fn kernel_abi() -> i64 {
    // SAFETY: a null attribute with size 0 asks for the version only.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, 1) }.max(0)
}

/// A rule set in the making; nobody is restricted yet. A copy of this process has it too.
pub struct Begun {
    created: RulesetCreated,
    abi: ABI,
}

/// What a rule lets one do. Write roots are where files are moved in and out before a command runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Gives {
    Reading,
    Writing,
}

fn gives(rights: u64) -> Gives {
    match rights & BitFlags::from(AccessFs::MakeReg).bits() {
        0 => Gives::Reading,
        _ => Gives::Writing,
    }
}

impl Begun {
    pub fn new(policy: &Rules) -> Result<Self, Refusal> {
        let abi = abi(policy)?;
        let denied = |e: &(dyn Error + 'static)| refusal("ruleset", e);
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(abi))
            .map_err(|e| denied(&e))?;
        let scopes = [(policy.scope_signal, Scope::Signal), (policy.scope_abstract, Scope::AbstractUnixSocket)];
        for (_, scope) in scopes.into_iter().filter(|(wanted, _)| *wanted) {
            ruleset = ruleset.scope(scope).map_err(|e| denied(&e))?;
        }
        Ok(Self { created: ruleset.create().map_err(|e| denied(&e))?, abi })
    }

    /// Opens what the rules of a kind are about.
    pub fn add(
        mut self,
        policy: &Rules,
        which: Gives,
        (around, backend): (Option<&Around>, Backend),
    ) -> Result<Self, Refusal> {
        for (path, rights) in policy.rules.iter().filter(|rule| gives(rule.1) == which) {
            self.created = add(self.created, path, *rights, self.abi, (around, backend))?;
        }
        Ok(self)
    }

    /// Restricts the calling thread. `kept` are inherited descriptors that stay usable by name.
    pub fn restrict(self, kept: &[i32]) -> Result<(), Refusal> {
        let created = add_descriptors(self.created, kept, self.abi)?;
        let status = created.restrict_self().map_err(|e| refusal("ruleset", &e))?;
        if status.ruleset != RulesetStatus::FullyEnforced {
            let got = format!("got {:?}, expected FullyEnforced", status.ruleset);
            return Err(Refusal::new("landlock_denied", "ruleset").detail(got));
        }
        Ok(())
    }
}

/// The crate wraps the system call's error; its number says whether trying again helps.
fn refusal(object: &str, error: &(dyn Error + 'static)) -> Refusal {
    let refusal = Refusal::new("landlock_denied", object).detail(error.to_string());
    let mut cause = None;
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        cause = error.downcast_ref::<std::io::Error>().or(cause);
        next = error.source();
    }
    match cause {
        Some(cause) => refusal.io(cause),
        None => refusal,
    }
}

fn known(abi: u8) -> Option<ABI> {
    [(3, ABI::V3), (4, ABI::V4), (5, ABI::V5), (6, ABI::V6)].into_iter().find(|row| row.0 == abi).map(|row| row.1)
}

fn abi(policy: &Rules) -> Result<ABI, Refusal> {
    let kernel = kernel_abi();
    if kernel < i64::from(policy.abi) {
        return Err(
            Refusal::new("landlock_unavailable", "kernel").detail(format!("got ABI {kernel}, expected {}", policy.abi))
        );
    }
    let unknown =
        || Refusal::new("plan_invalid", "landlock.abi").detail(format!("got {}, expected 3 to 6", policy.abi));
    known(policy.abi).ok_or_else(unknown)
}

fn rights(access: Access, abi: ABI) -> BitFlags<AccessFs> {
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev | AccessFs::ReadDir;
    match access {
        Access::Read => AccessFs::from_read(abi),
        Access::Write => AccessFs::from_all(abi),
        Access::Device => device & AccessFs::from_all(abi),
        Access::List => AccessFs::ReadDir.into(),
    }
}

/// P1's own domain of a box without namespaces: signals do not leave it. It handles one right and gives
/// that everywhere: landlock(7) says of LANDLOCK_ACCESS_FS_REFER that a layer denies it by default, handled
/// or not, and renames between directories would fail.
pub fn scope_signals() -> Result<(), Refusal> {
    let denied = |e: &(dyn Error + 'static)| refusal("domain", e);
    let root = crate::byparts::open_path("/", 0, 0).map_err(|e| denied(&e))?;
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::Refer)
        .and_then(|ruleset| ruleset.scope(Scope::Signal))
        .and_then(Ruleset::create)
        .and_then(|created| created.add_rule(PathBeneath::new(root, AccessFs::Refer)))
        .and_then(RulesetCreated::restrict_self)
        .map_err(|e| denied(&e))?;
    match status.ruleset {
        RulesetStatus::FullyEnforced => Ok(()),
        other => {
            Err(Refusal::new("landlock_denied", "domain").detail(format!("got {other:?}, expected FullyEnforced")))
        }
    }
}

/// Without a mount namespace the rules are the box: a name that became a link since the plan was made
/// would give what it leads to. It gives nothing, and neither does what the caller cannot reach.
fn gone(rights: u64, backend: Backend, error: &std::io::Error) -> bool {
    match error.raw_os_error() {
        Some(libc::ENOENT) => true,
        Some(libc::ELOOP | libc::ENOTDIR | libc::EACCES) => {
            // Only a write grant makes files.
            backend == Backend::Landlock && gives(rights) == Gives::Reading
        }
        _ => false,
    }
}

fn add(
    created: RulesetCreated,
    path: &str,
    rights: u64,
    abi: ABI,
    (around, backend): (Option<&Around>, Backend),
) -> Result<RulesetCreated, Refusal> {
    let opened = match backend {
        Backend::Namespaces => sys::openat2(libc::AT_FDCWD, path, libc::O_PATH, sys::RESOLVE_NO_MAGICLINKS),
        Backend::Landlock => crate::byparts::open_unlinked(path),
    };
    let fd = match opened {
        // An optional grant that the host does not have: nothing to allow.
        Err(e) if gone(rights, backend, &e) => return Ok(created),
        other => other.map_err(|e| Refusal::new("landlock_denied", path).io(&e))?,
    };
    let rights = around.map_or(Some(rights), |around| at_its_place(around, &fd, rights));
    let wanted = BitFlags::from_bits_truncate(rights.unwrap_or(0)) & AccessFs::from_all(abi);
    let allowed = fit(&fd, wanted, abi).map_err(|e| Refusal::new("landlock_denied", path).io(&e))?;
    allow(created, fd, allowed, path)
}

/// Where a path led through a link, the outer box's word about the place itself counts; none where
/// that place has no name.
fn at_its_place(around: &Around, fd: &OwnedFd, rights: u64) -> Option<u64> {
    let real = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    Some(rights & ring::outer_rights(&around.outer.rules, around.rows, real.to_str()?))
}

/// Rights that only make sense for directories are not asked for on a file.
fn fit(fd: &OwnedFd, wanted: BitFlags<AccessFs>, abi: ABI) -> std::io::Result<BitFlags<AccessFs>> {
    let dir = sys::fstat(fd.as_raw_fd())?.st_mode & libc::S_IFMT == libc::S_IFDIR;
    Ok(if dir { wanted } else { wanted & AccessFs::from_file(abi) })
}

fn allow(
    created: RulesetCreated,
    fd: OwnedFd,
    rights: BitFlags<AccessFs>,
    name: &str,
) -> Result<RulesetCreated, Refusal> {
    if rights.is_empty() {
        return Ok(created);
    }
    created.add_rule(PathBeneath::new(fd, rights)).map_err(|e| refusal(name, &e))
}

/// `/dev/stdout` redirected to a file is opened by name again: a rule per kept
/// descriptor that has a path, limited to how it was opened.
fn add_descriptors(mut created: RulesetCreated, kept: &[i32], abi: ABI) -> Result<RulesetCreated, Refusal> {
    for fd in kept {
        // SAFETY: F_GETFL takes no pointer; a closed descriptor is an error value.
        let flags = unsafe { libc::fcntl(*fd, libc::F_GETFL) };
        let Ok(st) = sys::fstat(*fd) else { continue };
        if flags < 0 || flags & libc::O_PATH != 0 || !matches!(st.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFCHR)
        {
            continue;
        }
        let mut rights: BitFlags<AccessFs> = BitFlags::empty();
        if flags & libc::O_ACCMODE != libc::O_WRONLY {
            rights |= AccessFs::ReadFile;
        }
        if flags & libc::O_ACCMODE != libc::O_RDONLY {
            rights |= AccessFs::WriteFile | AccessFs::Truncate;
        }
        if st.st_mode & libc::S_IFMT == libc::S_IFCHR {
            rights |= AccessFs::IoctlDev;
        }
        let Some(path) = reopen(*fd) else { continue };
        let rights = rights & AccessFs::from_file(abi);
        if st.st_nlink == 0 {
            // A memory file among them, which has no place either: only the kernel tells it from a deleted one.
            let twin = created.try_clone().map_err(|e| Refusal::new("landlock_denied", "ruleset").io(&e))?;
            allow(twin, path, rights, "descriptor").map(drop).or_else(placeless)?;
        } else {
            created = allow(created, path, rights, "descriptor")?;
        }
    }
    Ok(created)
}

/// Source: security/landlock/syscalls.c, get_path_from_fd: what lies on no mount of a user is not
/// restricted (fs.c, is_nouser_or_private) and takes no rule.
fn placeless(refusal: Refusal) -> Result<(), Refusal> {
    match refusal.errno {
        Some(libc::EBADFD) => Ok(()),
        _ => Err(refusal),
    }
}

/// An O_PATH twin; None for objects that cannot be opened by name again.
fn reopen(fd: i32) -> Option<OwnedFd> {
    let twin = crate::byparts::open_path(&format!("/proc/self/fd/{fd}"), 0, 0).ok()?;
    let _ = twin.as_fd();
    Some(twin)
}
