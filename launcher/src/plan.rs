//! The plan: what the launcher obeys.
//!
//! Owns reading a plan (sealed memfd or plan store), checking its digest and
//! shape, and putting the caller's `--bind` parameters in place. An unknown
//! field, a path that is not canonical or a row out of order fails closed: the
//! launcher has no defaults. Where the rows are carried out: `steps/mounts.rs`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

mod shape;

use crate::appear::Appearing;
use crate::copyback::Copyback;
use crate::persist::asked::{OnPersistence, Persistence};
use crate::report::Refusal;
use crate::steps::env::EnvPolicy;
use crate::sys::FromStart;
use shape::{check_namespaces, check_rows};

pub const SCHEMA: &str = "stockade.plan.v1";
/// A plan of 1,000 grants is about 200 kB; more than this is not a plan.
const PLAN_MAX_BYTES: u64 = 8 << 20;
/// All four seals: nobody, the caller included, can change what was hashed.
const SEALS: i32 = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub schema: String,
    pub backend: Backend,
    pub caller: String,
    pub requested_tier: String,
    pub profiles: Vec<String>,
    pub accept: Vec<String>,
    pub net: Net,
    pub namespaces: Vec<Namespace>,
    pub ids: Ids,
    pub mounts: Vec<Row>,
    pub guards: Vec<Guard>,
    pub guard_lost: GuardLost,
    pub cover_sockets: bool,
    pub env: EnvPolicy,
    pub fds: Vec<RawFd>,
    #[serde(deserialize_with = "required")]
    pub landlock: Option<Landlock>,
    pub limits: Limits,
    pub seccomp: Seccomp,
    pub cwd: String,
    #[serde(deserialize_with = "required")]
    pub executable: Option<String>,
    pub hostname: String,
    pub persistence: Vec<Persistence>,
    pub appearing: Vec<Appearing>,
    /// Private places whose content is counted before it goes: targets of tmpfs rows.
    pub discards: Vec<String>,
    pub copyback: Vec<Copyback>,
    pub promises: Vec<PlanPromise>,
    pub record: serde_json::Map<String, serde_json::Value>,
}

#[derive(Debug, Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    Namespaces,
    /// Landlock and a filter, without any namespace.
    Landlock,
}

#[derive(Debug, Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum Net {
    None,
    Host,
}

#[derive(Debug, Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum Namespace {
    Cgroup,
    Ipc,
    Mount,
    Net,
    Pid,
    User,
    Uts,
}

#[derive(Debug, Deserialize, Clone, Copy)]
#[serde(deny_unknown_fields, rename_all = "lowercase", tag = "mode")]
pub enum Ids {
    Identity,
    Shifted { kernel_uid: u32, kernel_gid: u32, owner_uid: u32, owner_gid: u32 },
}

#[derive(Debug, Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum GuardLost {
    Restore,
    End,
}

#[derive(Debug, Deserialize, Serialize, Clone)]
#[serde(deny_unknown_fields)]
pub struct Guard {
    pub path: String,
    pub read_only: bool,
    /// Only of guards that the launcher adds: what is there is covered by something inert.
    #[serde(default)]
    pub cover: bool,
}

#[derive(Debug, Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum Attr {
    Ro,
    Nosuid,
    Nodev,
    Noexec,
}

#[derive(Debug, Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Dir,
    File,
    Socket,
    Any,
    /// The root of a mount whose file system may not answer: it is shown without being looked at.
    Mount,
}

/// On-disk uid and gid that appear as box 0 in one idmapped row; absent, the
/// owner named in `ids`. Root's home is root's, the workspace may be a user's.
pub type Owner = (u32, u32);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase", tag = "kind")]
pub enum Row {
    Bind {
        source: String,
        target: String,
        attrs: Vec<Attr>,
        #[serde(rename = "type")]
        kind: Kind,
        recursive: bool,
        optional: bool,
        idmap: bool,
        create: bool,
        #[serde(default)]
        owner: Option<Owner>,
    },
    Tmpfs {
        target: String,
        mode: String,
        size_bytes: u64,
        attrs: Vec<Attr>,
        create: bool,
    },
    Overlay {
        source: String,
        target: String,
        hide: Vec<String>,
        dirs: Vec<String>,
        idmap: bool,
        create: bool,
        #[serde(default)]
        owner: Option<Owner>,
    },
    Cache {
        #[serde(deserialize_with = "required")]
        source: Option<String>,
        upper: String,
        work: String,
        target: String,
        idmap: bool,
        create: bool,
        #[serde(default)]
        owner: Option<Owner>,
    },
    Dir {
        target: String,
        mode: String,
    },
    Symlink {
        target: String,
        to: String,
    },
    File {
        target: String,
        mode: String,
        content: String,
    },
    Proc {
        target: String,
        covers: Vec<String>,
    },
    Dev {
        target: String,
        shm_size_bytes: u64,
    },
    Seal {
        target: String,
    },
}

impl Row {
    pub fn target(&self) -> &str {
        match self {
            Row::Bind { target, .. }
            | Row::Tmpfs { target, .. }
            | Row::Overlay { target, .. }
            | Row::Cache { target, .. }
            | Row::Dir { target, .. }
            | Row::Symlink { target, .. }
            | Row::File { target, .. }
            | Row::Proc { target, .. }
            | Row::Dev { target, .. }
            | Row::Seal { target } => target,
        }
    }

    /// Every string of the row that names a path, for parameter substitution.
    fn paths_mut(&mut self) -> Vec<&mut String> {
        match self {
            Row::Bind { source, target, .. } | Row::Overlay { source, target, .. } => vec![source, target],
            Row::Cache { source, upper, work, target, .. } => {
                let mut all = vec![upper, work, target];
                all.extend(source.as_mut());
                all
            }
            Row::Tmpfs { target, .. }
            | Row::Dir { target, .. }
            | Row::Symlink { target, .. }
            | Row::File { target, .. }
            | Row::Proc { target, .. }
            | Row::Dev { target, .. }
            | Row::Seal { target } => vec![target],
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Landlock {
    pub abi: u8,
    pub scope_signal: bool,
    pub scope_abstract: bool,
    pub rules: Vec<LandlockRule>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LandlockRule {
    pub path: String,
    pub access: Access,
}

#[derive(Debug, Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    Read,
    Write,
    Device,
    List,
}

#[derive(Debug, Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    #[serde(deserialize_with = "required")]
    pub processes: Option<u64>,
    #[serde(deserialize_with = "required")]
    pub files: Option<u64>,
    #[serde(deserialize_with = "required")]
    pub cpu_time_s: Option<u64>,
    #[serde(deserialize_with = "required")]
    pub memory_bytes: Option<u64>,
    #[serde(deserialize_with = "required")]
    pub address_space_bytes: Option<u64>,
    #[serde(deserialize_with = "required")]
    pub wall_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seccomp {
    pub filter: String,
}

#[derive(Debug, Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub struct PlanPromise {
    pub id: String,
    pub tiers: Vec<String>,
    pub ns: bool,
    pub needs: Vec<Vec<String>>,
    #[serde(deserialize_with = "required")]
    pub state: Option<String>,
    #[serde(deserialize_with = "required")]
    pub reason: Option<String>,
}

/// A field that may be null must still be there: absence is another plan version.
pub fn required<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    Option::deserialize(from)
}

/// A plan that was read, hashed and checked, and the digest that names it.
pub struct Loaded {
    pub plan: Plan,
    pub digest: String,
}

fn seals_of(fd: RawFd) -> i32 {
    // SAFETY: fcntl with F_GET_SEALS takes no pointer; a wrong descriptor is an error value.
    unsafe { libc::fcntl(fd, libc::F_GET_SEALS) }
}

/// Nobody can change its bytes any more.
pub fn is_sealed(fd: RawFd) -> bool {
    all_sealed(seals_of(fd))
}

fn all_sealed(seals: i32) -> bool {
    seals >= 0 && seals & SEALS == SEALS
}

/// Reads a plan from an inherited memfd. Source: memfd_create(2), "File sealing".
pub fn from_fd(fd: RawFd, binds: &BTreeMap<String, String>) -> Result<Loaded, Refusal> {
    let seals = seals_of(fd);
    if !all_sealed(seals) {
        return Err(Refusal::new("plan_unsealed", format!("descriptor {fd}"))
            .detail(format!("got seals {seals:#x}, expected {SEALS:#x}")));
    }
    // SAFETY: the caller passed this descriptor to us with --plan-fd; we own it from here on.
    let file = unsafe { File::from_raw_fd(fd) };
    load(&file, None, binds)
}

/// Reads `<dir>/<digest>.json`: owner, mode and content are checked on the descriptor.
pub fn from_store(dir: &str, digest: &str, binds: &BTreeMap<String, String>) -> Result<Loaded, Refusal> {
    let hex = digest.len() == 64 && digest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if !hex {
        return Err(Refusal::new("plan_digest", digest).detail("expected 64 lower-case hexadecimal digits"));
    }
    let path = format!("{dir}/{digest}.json");
    let file = open_nofollow(&path).map_err(|e| Refusal::new("plan_missing", &path).io(&e))?;
    // Its time says when it was last used: unpinned plans are collected by age. Not worth a refusal.
    // SAFETY: the descriptor is ours; null means now.
    unsafe { libc::futimens(file.as_raw_fd(), std::ptr::null()) };
    let meta = file.metadata().map_err(|e| Refusal::new("plan_missing", &path).io(&e))?;
    // SAFETY: geteuid has no failure and no memory effect.
    let euid = unsafe { libc::geteuid() };
    if !meta.is_file() || (meta.uid() != euid && meta.uid() != 0) || meta.mode() & 0o022 != 0 {
        return Err(Refusal::new("plan_owner", &path).detail(format!(
            "got owner {} mode {:o}, expected owner {euid} and no write bit for others",
            meta.uid(),
            meta.mode() & 0o7777
        )));
    }
    load(&file, Some(digest), binds)
}

fn open_nofollow(path: &str) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)
}

/// The descriptors that a plan names. Nothing else of it is looked at: whoever builds its box does that.
pub fn descriptors_of(file: &File) -> Result<Vec<RawFd>, Refusal> {
    let bytes = content(file)?;
    // In a string the quotes would stand behind a backslash: this is a key, and no other object has one of that name.
    let key = br#""fds":"#;
    let at = bytes.windows(key.len()).position(|window| window == key).map_or(bytes.len(), |at| at + key.len());
    let end = bytes[at..].iter().position(|byte| *byte == b']').map_or(at, |end| at + end + 1);
    serde_json::from_slice(&bytes[at..end]).map_err(|e| unreadable(&e))
}

fn unreadable(error: &serde_json::Error) -> Refusal {
    Refusal::new("plan_invalid", "plan").detail(error.to_string())
}

fn content(file: &File) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::with_capacity(32 << 10);
    let lost = |e: std::io::Error| Refusal::new("plan_missing", "plan").io(&e);
    FromStart::of(file).take(PLAN_MAX_BYTES + 1).read_to_end(&mut bytes).map_err(lost)?;
    if bytes.len() as u64 > PLAN_MAX_BYTES {
        return Err(Refusal::new("plan_invalid", "plan").detail(format!("larger than {PLAN_MAX_BYTES} bytes")));
    }
    Ok(bytes)
}

fn load(file: &File, want: Option<&str>, binds: &BTreeMap<String, String>) -> Result<Loaded, Refusal> {
    let bytes = content(file)?;
    let digest = hex(&Sha256::digest(&bytes));
    if want.is_some_and(|w| w != digest) {
        return Err(Refusal::new("plan_digest", want.unwrap_or_default()).detail(format!("got {digest}")));
    }
    let plan: Plan = serde_json::from_slice(&bytes).map_err(|e| unreadable(&e))?;
    Ok(Loaded { plan: finish(plan, binds)?, digest })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Puts parameters in place, then checks what the types cannot say.
fn finish(mut plan: Plan, binds: &BTreeMap<String, String>) -> Result<Plan, Refusal> {
    if plan.schema != SCHEMA {
        return Err(invalid("schema", &plan.schema));
    }
    let rows = plan.mounts.iter_mut().flat_map(Row::paths_mut);
    let guards = plan.guards.iter_mut().map(|g| &mut g.path);
    let watched =
        plan.persistence.iter_mut().flat_map(|p| [Some(&mut p.root), p.quarantine.as_mut().map(|q| &mut q.index)]);
    let watched = watched.flatten();
    let roots = watched.chain(plan.appearing.iter_mut().map(|a| &mut a.root));
    let rules = plan.landlock.iter_mut().flat_map(|l| l.rules.iter_mut().map(|r| &mut r.path));
    let private = plan.discards.iter_mut().chain(plan.copyback.iter_mut().flat_map(|c| [&mut c.source, &mut c.target]));
    let rows = rows.chain(guards).chain(roots).chain(rules).chain(private);
    for path in rows.chain([&mut plan.cwd]).chain(plan.executable.as_mut()) {
        substitute(path, binds)?;
        canonical(path)?;
    }
    // What the box may read and write, as src/stockade/host/within.py reads it in the box record.
    let told = plan.record.iter_mut().filter(|(key, _)| matches!(key.as_str(), "read" | "write"));
    for value in told.filter_map(|(_, value)| value.as_array_mut()).flatten() {
        if let serde_json::Value::String(path) = value {
            substitute(path, binds)?;
        }
    }
    // Stable: of two rows at one depth the later one in the plan is put on top.
    plan.mounts.sort_by_key(|r| (matches!(r, Row::Seal { .. }), depth(r.target())));
    plan.guards.sort_by_key(|g| depth(&g.path));
    match plan.backend {
        Backend::Namespaces => check_rows(&plan.mounts).and_then(|()| check_namespaces(&plan))?,
        Backend::Landlock => crate::alone::check(&plan)?,
    }
    if plan.fds.windows(2).any(|w| w[0] >= w[1]) || plan.fds.iter().any(|fd| *fd < 3) {
        return Err(invalid("fds", "not sorted, or below 3"));
    }
    if plan.guards.iter().any(|guard| guard.cover) {
        return Err(invalid("guards.cover", "true: only the launcher adds such guards"));
    }
    crate::discard::check(&plan)?;
    if plan.persistence.iter().any(|p| p.quarantine.is_some() && p.mode != OnPersistence::Quarantine) {
        return Err(invalid("persistence.quarantine", "given with another mode"));
    }
    Ok(plan)
}

pub fn invalid(field: &str, got: &str) -> Refusal {
    Refusal::new("plan_invalid", field).detail(format!("got {got:?}"))
}

/// `@name` and `@name/rest` stand for the caller's `--bind name=PATH`.
fn substitute(path: &mut String, binds: &BTreeMap<String, String>) -> Result<(), Refusal> {
    let Some(rest) = path.strip_prefix('@') else { return Ok(()) };
    let (name, tail) = rest.split_once('/').map_or((rest, None), |(n, t)| (n, Some(t)));
    let base =
        binds.get(name).ok_or_else(|| Refusal::new("bind_invalid", path.as_str()).detail("no --bind of that name"))?;
    *path = match tail {
        Some(tail) if base == "/" => format!("/{tail}"),
        Some(tail) => format!("{base}/{tail}"),
        None => base.clone(),
    };
    Ok(())
}

/// Canonical: absolute, no empty, `.` or `..` component, no NUL, no trailing slash.
pub fn canonical(path: &str) -> Result<(), Refusal> {
    let good = path == "/"
        || path
            .strip_prefix('/')
            .is_some_and(|r| r.split('/').all(|c| !matches!(c, "" | "." | "..") && !c.contains('\0')));
    if good {
        return Ok(());
    }
    Err(Refusal::new("plan_invalid", path).detail("not a canonical absolute path"))
}

/// Number of components: `/` is 0.
pub fn depth(path: &str) -> usize {
    Path::new(path).components().count() - 1
}
