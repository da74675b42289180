//! Records: what the launcher says, to whom.
//!
//! Owns the writing of receipt records (report/records.rs), the table of
//! refusal codes, the one line on stderr and the writer of the report
//! descriptor. Fails closed: a report that cannot be written is itself a
//! refusal. Text that came from outside is escaped before it reaches a terminal
//! or a log line. Next: spool.rs (the same records on disk), promises.rs.

mod records;

use std::fmt::{self, Write as _};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use serde::Serialize;

use crate::errno;
use crate::ulid;
pub use records::{
    Decided, Earlier, End, Inside, Launch, LimitApplied, LimitHit, Outcome, Refused, Standing, Supervisor,
};

/// Version of every record of this file.
pub const SCHEMA: &str = "stockade.receipt.v1";

/// Longest object or detail in a message: argv[0] may be 128 kB, a path 4 kB.
const CLIP_BYTES: usize = 4_200;
/// How long a full report pipe is waited for.
const REPORT_WAIT_MS: i32 = 5_000;

/// Every refusal code: the step that it belongs to (03, 04) and what helps.
pub const CODES: &[(&str, u8, &str)] = &[
    ("usage", 0, "stockade-launch is started by stockade; see `stockade run --help`"),
    ("plan_missing", 0, "the plan was collected or never stored; ask for a new launch line, or pin it"),
    ("plan_unsealed", 0, "a plan descriptor is a memfd with all seals; let stockade hand it over"),
    ("plan_owner", 0, "the plan store must belong to the caller and be writable by nobody else"),
    ("plan_digest", 0, "the stored plan was changed; remove it and ask for a new launch line"),
    ("plan_invalid", 0, "plan and launcher are of different versions; reinstall stockade"),
    ("bind_invalid", 0, "give each parameter of the plan as --bind NAME=/absolute/path"),
    ("userns_denied", 1, "user namespaces are not allowed here; `stockade doctor` names the setting"),
    ("map_denied", 1, "the id map was refused; `stockade doctor` names the cause"),
    ("namespace_denied", 3, "a namespace was refused; `stockade doctor` names the setting"),
    ("source_missing", 4, "a granted path does not exist; create it or drop the grant"),
    ("source_type", 4, "a granted path is of another type now; ask for a new plan"),
    ("source_symlink", 4, "a component of a granted path became a symbolic link; ask for a new plan"),
    ("source_denied", 4, "a granted path cannot be opened; check its permissions"),
    ("mount_denied", 4, "a mount was refused; `stockade doctor` shows what this host allows"),
    (
        "mount_point_missing",
        4,
        "nothing is ever created in your tree to mount on; create the directory or drop the grant",
    ),
    ("overlay_denied", 4, "overlay mounts are not allowed here; `stockade doctor` names the cause"),
    (
        "guard_denied",
        4,
        "a guarded path could not be protected; make it readable, or try again if it was being replaced",
    ),
    ("proc_denied", 4, "a fresh /proc was refused; in a container /proc may be covered by the host"),
    ("dev_denied", 5, "the private /dev could not be made; `stockade doctor` names the cause"),
    ("pivot_denied", 6, "the new root could not be entered; `stockade doctor` names the cause"),
    ("fork_failed", 7, "no process could be made; check the process limit"),
    ("fds_denied", 8, "hand over files, pipes or sockets; grant a directory by its path"),
    ("env_invalid", 9, "check the names and values that were set for the command"),
    ("nnp_denied", 10, "no_new_privs was refused"),
    ("keyring_denied", 10, "no fresh session keyring could be made; check the key quota"),
    ("caps_denied", 10, "capabilities could not be dropped"),
    ("landlock_unavailable", 11, "the kernel has less Landlock than the plan needs; ask for a new plan on this host"),
    ("landlock_denied", 11, "a Landlock rule was refused"),
    ("rlimit_denied", 12, "a limit is above the caller's own hard limit; ask for less"),
    ("seccomp_denied", 13, "the system call filter was refused"),
    ("chdir_denied", 14, "the working directory does not exist in the box; grant it or name another with --cwd"),
    ("trace_denied", 13, "this host lets nobody trace processes (kernel.yama.ptrace_scope); run without watching"),
    ("exec_failed", 14, "check that the file is executable and that its interpreter exists in the box"),
    ("not_found", 14, "the command is not on the PATH of the box; `stockade why` shows what is granted"),
    ("interpreter_changed", 14, "the box finds another file under this name; name the command by its full path"),
    ("promise_not_kept", 14, "ask for a lower tier, or accept the missing promises by name"),
    ("report_failed", 14, "the reader of the receipt went away; keep the report descriptor open"),
    ("journal_failed", 14, "check space and permissions of the state home"),
    ("spool_failed", 14, "the audit record could not be written; check space and permissions of the state home"),
    ("start_timed_out", 7, "look for a file system that hangs, or try again when the machine has less to do"),
    ("nest_invalid", 0, "request and launcher are of different versions; reinstall stockade"),
    ("nest_busy", 0, "end a box inside this one, or wait for one to end"),
    ("nest_gone", 7, "the box around has ended, or its supervisor could not answer"),
    ("caller_gone", 7, "the program that asked for the box ended before it started"),
    ("resource", 0, "the machine is short of memory, descriptors or space; try again"),
];

/// Source: landlock_restrict_self(2), E2BIG.
const LAYERS: &str = "sixteen layers of Landlock are around this already, and each box takes two; start it further out";

const NOT_INSTALLED: &str = "install it, or check the spelling; a path names a program that is not on the PATH";

/// Why a launch did not happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: &'static str,
    pub step: u8,
    /// What it failed on, printable.
    pub object: String,
    pub errno: Option<i32>,
    /// `got X, expected Y`, printable; empty where the error number says all.
    pub detail: String,
    pub hint: String,
    pub transient: bool,
}

impl Refusal {
    /// A refusal with the step and hint of its code. Codes are literals; a test
    /// holds every one in the tree against the table.
    pub fn new(code: &'static str, object: impl Into<String>) -> Self {
        let row = CODES.iter().find(|row| row.0 == code);
        debug_assert!(row.is_some(), "code without a row: {code}");
        let (step, hint) = row.map_or((0, ""), |row| (row.1, row.2));
        Self {
            code,
            step,
            object: show(object.into().as_bytes()),
            errno: None,
            detail: String::new(),
            hint: hint.to_owned(),
            transient: matches!(code, "resource" | "start_timed_out" | "nest_busy"),
        }
    }

    /// Says more: `got X, expected Y`.
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = show(detail.into().as_bytes());
        self
    }

    /// Adds the error of the system call. The code stays that of the step; a
    /// shortage is marked transient, so that no probe caches it.
    pub fn io(mut self, error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(number) => {
                self = self.number(number);
                self.transient = errno::is_transient(number) && !self.is_fixed_limit(number);
                if self.transient {
                    self.hint = hint_of("resource");
                }
            }
            None if self.detail.is_empty() => self.detail = show(error.to_string().as_bytes()),
            None => {}
        }
        self
    }

    /// Of a command that the host does not have either: a grant would not help.
    pub fn not_installed(mut self) -> Self {
        NOT_INSTALLED.clone_into(&mut self.hint);
        self.detail("not installed on this host")
    }

    /// The error number alone, with the hint of the two together where there is one.
    pub fn number(mut self, number: i32) -> Self {
        self.errno = Some(number);
        if (self.code, number) == ("landlock_denied", libc::E2BIG) {
            LAYERS.clone_into(&mut self.hint);
        }
        self
    }

    /// Says whether it can pass by itself, where the error number does not.
    pub fn transient(mut self, transient: bool) -> Self {
        self.transient = transient;
        if transient {
            self.hint = hint_of("resource");
        }
        self
    }

    /// `object: detail (ERRNO)` or `object: ERRNO`.
    pub fn message(&self) -> String {
        let errno = self.errno.map(errno::label);
        match (self.detail.is_empty(), errno) {
            (true, None) => self.object.clone(),
            (true, Some(errno)) => format!("{}: {errno}", self.object),
            (false, None) => format!("{}: {}", self.object, self.detail),
            (false, Some(errno)) => format!("{}: {} ({errno})", self.object, self.detail),
        }
    }

    /// The line for stderr, without its newline.
    pub fn line(&self) -> String {
        format!("stockade: refused: {self}")
    }

    /// Writes the line to stderr in one call; nobody may be there to read it.
    pub fn print(&self) {
        // One write, so that the line is whole beside other writers of the terminal.
        write_all(libc::STDERR_FILENO, format!("{}\n", self.line()).as_bytes()).ok();
    }

    /// The record of the refusal.
    pub fn record(&self, run_id: &str) -> Refused {
        Refused {
            schema: SCHEMA,
            record: "refused",
            run_id: run_id.to_owned(),
            ts: ulid::now(),
            code: self.code,
            step: self.step,
            object: self.object.clone(),
            errno: self.errno,
            errno_name: self.errno.and_then(errno::name),
            message: self.message(),
            hint: self.hint.clone(),
            transient: self.transient,
            earlier: vec![],
            degraded: vec![],
        }
    }

    /// Namespaces answer ENOSPC both when many are in use and when the limit is
    /// zero; the second is a setting of the host and lasts.
    /// Source: user_namespaces(7), namespaces(7), /proc/sys/user.
    fn is_fixed_limit(&self, number: i32) -> bool {
        const KINDS: [&str; 7] = ["user", "mnt", "pid", "ipc", "uts", "cgroup", "net"];
        let limit = |kind| std::fs::read_to_string(format!("/proc/sys/user/max_{kind}_namespaces"));
        number == libc::ENOSPC
            && matches!(self.code, "userns_denied" | "namespace_denied")
            && KINDS.into_iter().any(|kind| limit(kind).is_ok_and(|text| text.trim() == "0"))
    }
}

fn hint_of(code: &str) -> String {
    CODES.iter().find(|row| row.0 == code).map_or("", |row| row.2).to_owned()
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message())?;
        if self.hint.is_empty() {
            return Ok(());
        }
        write!(f, " (hint: {})", self.hint)
    }
}

impl std::error::Error for Refusal {}

/// Makes bytes fit for one line of a terminal or a log: control characters,
/// line separators and direction overrides are escaped (a file name could
/// otherwise forge a second line or repaint the first), other bytes are `\xNN`.
pub fn show(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().min(CLIP_BYTES));
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if text.len() >= CLIP_BYTES {
                return text + "…";
            }
            push_safe(&mut text, c);
        }
        for byte in chunk.invalid() {
            if text.len() >= CLIP_BYTES {
                return text + "…";
            }
            write!(text, "\\x{byte:02x}").ok();
        }
    }
    text
}

fn push_safe(text: &mut String, c: char) {
    let turns_text = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if c.is_control() || turns_text || matches!(c, '\u{2028}' | '\u{2029}') {
        text.extend(c.escape_default());
    } else {
        text.push(c);
    }
}

/// One record as a single line of JSON.
pub fn to_json(record: &impl Serialize) -> Result<String, Refusal> {
    // Only maps with keys that are no strings, or a failing Serialize, can get here.
    serde_json::to_string(record).map_err(|e| Refusal::new("report_failed", "record").detail(e.to_string()))
}

/// The report descriptor, if the caller gave one.
pub struct Report {
    fd: Option<OwnedFd>,
}

impl Report {
    pub fn new(fd: Option<OwnedFd>) -> Self {
        Self { fd }
    }

    pub fn descriptor(&self) -> Option<RawFd> {
        self.fd.as_ref().map(|fd| fd.as_raw_fd())
    }

    /// Finds out that nobody reads before the command runs, not after.
    pub fn ready(&self) -> Result<(), Refusal> {
        let Some(fd) = &self.fd else { return Ok(()) };
        let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one pollfd that outlives the call.
        unsafe { libc::poll(&mut poll, 1, 0) };
        if poll.revents & (libc::POLLERR | libc::POLLNVAL) == 0 {
            return Ok(());
        }
        Err(Refusal::new("report_failed", format!("descriptor {}", fd.as_raw_fd())).detail("got no reader"))
    }

    /// Writes one record, serialised by `to_json` (the spool takes the same text);
    /// without a descriptor does nothing.
    pub fn send_json(&self, json: &str) -> Result<(), Refusal> {
        let Some(fd) = &self.fd else { return Ok(()) };
        write_all(fd.as_raw_fd(), format!("{json}\n").as_bytes())
            .map_err(|e| Refusal::new("report_failed", format!("descriptor {}", fd.as_raw_fd())).io(&e))
    }
}

/// A line for a person, in one write; nobody may be there to read it, and a full pipe is not waited for for ever.
pub fn say(what: &str) {
    if wait_writable(libc::STDERR_FILENO).is_err() {
        return;
    }
    write_all(libc::STDERR_FILENO, format!("stockade: {what}\n").as_bytes()).ok();
}

/// Writes everything. A pipe without reader is EPIPE: SIGPIPE is held back for
/// this thread, so the disposition that the command inherits stays the caller's.
fn write_all(fd: RawFd, mut bytes: &[u8]) -> io::Result<()> {
    let _held = crate::spool::HeldSignal::hold(libc::SIGPIPE);
    while !bytes.is_empty() {
        // SAFETY: pointer and length describe a live slice; the descriptor is only borrowed.
        let wrote = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        if wrote >= 0 {
            bytes = &bytes[wrote as usize..];
            continue;
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EAGAIN) => wait_writable(fd)?,
            _ => return Err(error),
        }
    }
    Ok(())
}

/// Waits for room in a pipe that the caller made non-blocking, but not for ever.
fn wait_writable(fd: RawFd) -> io::Result<()> {
    let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one pollfd that outlives the call.
    match unsafe { libc::poll(&mut poll, 1, REPORT_WAIT_MS) } {
        0 => Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
        n if n < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted => {
            Err(io::Error::last_os_error())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    fn denied() -> Refusal {
        Refusal::new("mount_denied", "bind /home/u/w on /home/u/w").io(&io::Error::from_raw_os_error(libc::EACCES))
    }

    fn pipe() -> (UnixStream, Report) {
        let (reader, writer) = UnixStream::pair().unwrap();
        (reader, Report::new(Some(writer.into())))
    }

    #[test]
    fn a_refusal_is_one_line_that_names_code_object_errno_and_hint() {
        let line = denied().line();
        assert!(line.starts_with("stockade: refused: mount_denied: bind /home/u/w on /home/u/w: EACCES (hint: "));
        assert!(line.ends_with(')') && !line.contains('\n'));
        let typed = Refusal::new("source_type", "/w").detail("got file, expected dir");
        assert!(typed.line().starts_with("stockade: refused: source_type: /w: got file, expected dir (hint: "));
        assert_eq!(
            denied().detail("got a, expected b").message(),
            "bind /home/u/w on /home/u/w: got a, expected b (EACCES)"
        );
    }

    #[test]
    fn a_path_cannot_forge_a_line_or_repaint_the_terminal() {
        let line = Refusal::new("source_missing", "/w/a\nstockade: ok\r\x1b[2K\u{202e}x\u{9b}").line();
        assert!(!line.contains(['\n', '\r', '\x1b', '\u{202e}', '\u{9b}']), "{line:?}");
        assert_eq!(show(b"/w/\xff\xc3\xa9"), "/w/\\xffé");
        assert!(show(&[b'a'; 200_000]).len() <= CLIP_BYTES + 10);
        assert!(show(&[0xff; 200_000]).len() <= CLIP_BYTES + 10);
    }

    #[test]
    fn a_shortage_is_transient_and_keeps_the_code_of_its_step() {
        let short = Refusal::new("mount_denied", "x").io(&io::Error::from_raw_os_error(libc::ENOMEM));
        assert_eq!((short.code, short.step, short.transient), ("mount_denied", 4, true));
        assert!(!denied().transient && Refusal::new("resource", "x").transient);
    }

    #[test]
    fn the_record_has_the_fields_of_the_receipt_schema_and_no_tier() {
        let json: serde_json::Value = serde_json::from_str(&to_json(&denied().record("R")).unwrap()).unwrap();
        let keys: HashSet<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let expected = [
            "schema",
            "record",
            "run_id",
            "ts",
            "code",
            "step",
            "object",
            "errno",
            "errno_name",
            "message",
            "hint",
            "transient",
            "earlier",
            "degraded",
        ];
        assert_eq!(keys, HashSet::from(expected));
        assert_eq!((json["errno"].as_i64(), json["errno_name"].as_str()), (Some(13), Some("EACCES")));
        assert_eq!((json["record"].as_str(), json["step"].as_i64()), (Some("refused"), Some(4)));
    }

    #[test]
    fn a_record_is_one_line_on_the_descriptor() {
        let (mut reader, report) = pipe();
        report.send_json(&to_json(&Inside::stamp("R", b"a\n{\"origin\":\"outside\"}\xff")).unwrap()).unwrap();
        drop(report);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text.matches('\n').count(), 1);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((json["origin"].as_str(), json["run_id"].as_str()), (Some("inside"), Some("R")));
    }

    #[test]
    fn a_reader_that_went_away_is_report_failed_and_no_signal() {
        let (reader, report) = pipe();
        drop(reader);
        let refusal = report.send_json("{}").unwrap_err();
        assert_eq!((refusal.code, refusal.errno), ("report_failed", Some(libc::EPIPE)));
        assert!(Report::new(None).send_json("{}").is_ok());
    }

    #[test]
    fn every_code_used_in_the_tree_is_in_the_table_once_and_has_a_hint() {
        let names: HashSet<&str> = CODES.iter().map(|row| row.0).collect();
        assert_eq!(names.len(), CODES.len());
        assert!(CODES.iter().all(|row| row.1 <= 14 && !row.2.is_empty()));
        let mut used = Vec::new();
        collect_codes(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut used);
        assert!(used.iter().any(|code| code == "report_failed"));
        let unknown: Vec<&String> = used.iter().filter(|code| !names.contains(code.as_str())).collect();
        assert!(unknown.is_empty(), "codes without a row: {unknown:?}");
    }

    fn collect_codes(dir: &Path, used: &mut Vec<String>) {
        // Put together, so that this line is no call.
        let call = ["Refusal::", "new("].concat();
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect_codes(&path, used);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let calls = text.split(call.as_str()).skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"'));
                used.extend(calls.filter_map(|rest| rest.split('"').next()).map(str::to_owned));
            }
        }
    }
}
