//! Path sockets of the host that a read-only view would leave reachable.
//!
//! Owns reading /proc/net/unix and choosing directories to cover: a read-only
//! mount does not stop connect(2). Names are hidden by directory, because a
//! mount on the socket itself is detached when the host replaces it. Not seen
//! here: sockets bound in other network namespaces, by relative path, or renamed
//! after bind; the rules that cover /run, /tmp and the home do not depend on
//! this list. Next: steps/mounts.rs.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

const TABLE: &str = "/proc/net/unix";
/// The same of process 1 of the box around, whose /proc does not know us.
const TABLE_INSIDE: &str = "/proc/1/net/unix";
/// Fields before the name: num refcount protocol flags type st inode.
const FIELDS: usize = 7;

/// What to cover.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Cover {
    /// Directories, sorted, none below another.
    pub dirs: Vec<PathBuf>,
    /// Sockets whose directory holds something the box needs, so that only the
    /// socket itself can be covered; weaker, see above.
    pub files: Vec<PathBuf>,
}

/// The path sockets of this network namespace.
pub fn read_host(inside: bool) -> io::Result<Vec<PathBuf>> {
    // The kernel says size 0; a guess saves a dozen small reads.
    let mut table = Vec::with_capacity(64 << 10);
    std::fs::File::open(if inside { TABLE_INSIDE } else { TABLE })?.read_to_end(&mut table)?;
    Ok(parse(&table))
}

/// Absolute paths in the text of /proc/net/unix, sorted, each once.
///
/// The kernel writes names as raw bytes, a newline in them included, so a line
/// that does not look like the start of an entry goes on with the name before
/// it. Abstract names start with `@`; relative ones cannot be resolved.
/// Source: net/unix/af_unix.c, unix_seq_show.
pub fn parse(table: &[u8]) -> Vec<PathBuf> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    for line in table.split(|byte| *byte == b'\n').skip(1) {
        match (name_of(line), names.last_mut()) {
            (Some(name), _) => names.push(name.to_vec()),
            (None, Some(open)) => {
                open.push(b'\n');
                open.extend_from_slice(line);
            }
            (None, None) => {}
        }
    }
    // The text ends with a newline: the last name has taken an empty line.
    if let Some(last) = names.last_mut().filter(|last| last.last() == Some(&b'\n')) {
        last.pop();
    }
    let paths: BTreeSet<PathBuf> =
        names.iter().filter(|name| name.starts_with(b"/")).map(|name| PathBuf::from(OsStr::from_bytes(name))).collect();
    paths.into_iter().collect()
}

/// The name in a line that starts an entry (empty for an unnamed socket), or
/// nothing when the line does not start one.
fn name_of(line: &[u8]) -> Option<&[u8]> {
    let mut rest = line;
    for field in 0..FIELDS {
        // The inode is padded with spaces on the left.
        let start = rest.iter().position(|byte| *byte != b' ')?;
        let length = rest[start..].iter().position(|byte| *byte == b' ').unwrap_or(rest.len() - start);
        let word = &rest[start..start + length];
        let digits = if field == 0 { word.strip_suffix(b":")? } else { word };
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        rest = &rest[start + length..];
    }
    Some(rest.strip_prefix(b" ").unwrap_or(rest))
}

/// True if the path is a socket now.
pub fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
}

/// Chooses what to cover: the directories of the sockets that `visible` says the
/// box could reach. `needed` are paths that must stay (mount targets, cwd, the
/// command); a directory that is one of them or above one is not covered.
///
/// Anyone on the host can put any text into the table (a name with a newline), and
/// a name stays there after its file is gone: a name counts only if a socket is
/// there now, else any local user could make every launch cover /usr/lib. Only
/// visible paths are looked at, so a stuck mount elsewhere is not touched.
pub fn dirs_to_cover(paths: &[PathBuf], visible: impl Fn(&Path) -> bool, needed: &[PathBuf]) -> Cover {
    choose(paths, |path| visible(path) && is_socket(path), needed)
}

fn choose(paths: &[PathBuf], counts: impl Fn(&Path) -> bool, needed: &[PathBuf]) -> Cover {
    let mut dirs: BTreeSet<&Path> = BTreeSet::new();
    let mut files: BTreeSet<&Path> = BTreeSet::new();
    for path in paths.iter().filter(|path| is_plain(path) && counts(path)) {
        match path.parent() {
            Some(dir) if dir.parent().is_some() && !needed.iter().any(|need| need.starts_with(dir)) => dirs.insert(dir),
            _ => files.insert(path),
        };
    }
    // Sorted, so a directory comes before everything below it.
    let mut top: Vec<PathBuf> = Vec::new();
    for dir in dirs {
        if !top.iter().any(|above| dir.starts_with(above)) {
            top.push(dir.to_owned());
        }
    }
    let files = files.into_iter().filter(|file| !top.iter().any(|dir| file.starts_with(dir)));
    Cover { files: files.map(Path::to_owned).collect(), dirs: top }
}

/// No `.` or `..` in the text: a process may bind through them, and covering
/// such a spelling would cover another directory than it names here.
fn is_plain(path: &Path) -> bool {
    path.as_os_str().as_bytes().split(|byte| *byte == b'/').skip(1).all(|part| !matches!(part, b"" | b"." | b".."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    const HEAD: &str = "Num       RefCount Protocol Flags    Type St Inode Path\n";

    fn line(name: &str) -> String {
        format!("0000000000000000: 00000002 00000000 00010000 0001 01  1234 {name}\n")
    }

    fn paths(list: &[&str]) -> Vec<PathBuf> {
        list.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn only_absolute_path_names_are_taken() {
        let unnamed = "ffff888003f5a000: 00000003 00000000 00000000 0001 03 12345\n";
        let table = [
            HEAD,
            &line("/run/b"),
            unnamed,
            &line("@abstract"),
            &line("relative"),
            &line("/run/a b"),
            &line("/run/b"),
            unnamed,
        ]
        .concat();
        assert_eq!(parse(table.as_bytes()), paths(&["/run/a b", "/run/b"]));
        assert_eq!(parse(HEAD.as_bytes()), paths(&[]));
        assert_eq!(parse(b""), paths(&[]));
    }

    #[test]
    fn a_newline_in_a_name_stays_in_the_name() {
        let table = [HEAD, &line("/tmp/a\nb c\n\nd"), &line("/tmp/z")].concat();
        assert_eq!(parse(table.as_bytes()), paths(&["/tmp/a\nb c\n\nd", "/tmp/z"]));
        let last = [HEAD, &line("/tmp/end\n")].concat();
        assert_eq!(parse(last.as_bytes()), paths(&["/tmp/end\n"]));
    }

    #[test]
    fn bytes_that_are_no_text_are_kept() {
        let mut table = HEAD.as_bytes().to_vec();
        table.extend_from_slice(b"0: 2 0 10000 1 1 9 /run/\xff\xfe\n");
        assert_eq!(parse(&table)[0].as_os_str().as_bytes(), b"/run/\xff\xfe");
    }

    #[test]
    fn a_real_socket_is_found_and_a_forged_name_is_not_there() {
        let dir = std::env::temp_dir().join(format!("sockets-{}", crate::ulid::ulid().unwrap()));
        std::fs::create_dir(&dir).unwrap();
        let path = dir.join("s\nx y");
        let listener = UnixListener::bind(&path).unwrap();
        assert!(read_host(false).unwrap().contains(&path));
        assert!(is_socket(&path) && !is_socket(&dir) && !is_socket(&dir.join("none")));
        let forged = [path.clone(), PathBuf::from("/usr/lib/none")];
        assert_eq!(dirs_to_cover(&forged, |_| true, &[]).dirs, std::slice::from_ref(&dir));
        drop(listener);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn directories_are_covered_once_and_never_over_what_the_box_needs() {
        let all = paths(&[
            "/s",
            "/opt/app/s1",
            "/opt/app/s2",
            "/opt/app/deep/s",
            "/home/u/x.sock",
            "/srv/s",
            "/opt/../etc/s",
        ]);
        let cover = choose(&all, |path| !path.starts_with("/srv"), &paths(&["/home/u/w"]));
        assert_eq!(cover.dirs, paths(&["/opt/app"]));
        assert_eq!(cover.files, paths(&["/home/u/x.sock", "/s"]));
        assert_eq!(choose(&all, |_| false, &[]), Cover::default());
    }

    #[test]
    fn a_needed_directory_itself_is_not_covered() {
        let cover = choose(&paths(&["/w/s", "/wide/s"]), |_| true, &paths(&["/w"]));
        assert_eq!((cover.dirs, cover.files), (paths(&["/wide"]), paths(&["/w/s"])));
    }
}
