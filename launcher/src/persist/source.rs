//! One file on its way to quarantine.
//!
//! Owns the walk to the object that was judged, the rename, and between file
//! systems the copy. The box made the file and its directory: their modes are
//! lent what the move needs and get it back, holes stay holes, and what all
//! copies of a run may write together is bounded. Fails closed: a copy whose
//! original could not be taken away is removed again.

use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::quarantine::Left;
use super::walk::{open_root, Entry};
use super::{Change, Root};
use crate::sys;

/// Between file systems the content is copied: so much of it for one box, and no larger file.
pub const COPY_MAX_BYTES: u64 = 64 << 20;
const WRITE: libc::mode_t = 0o300;
const READ: libc::mode_t = 0o400;

/// One file that was judged, by the descriptor of its directory.
pub struct Source {
    dir: OwnedFd,
    name: CString,
    entry: Entry,
}

impl Source {
    /// The way there is walked anew from the root, and has to end at the object that was compared.
    pub fn open(root: &Root, change: &Change) -> Result<Self, Left> {
        let swapped = |_: io::Error| Left::Swapped;
        let top = open_root(&root.watched.root).map_err(swapped)?;
        if Entry::of(top.as_raw_fd(), c"").map_err(swapped)?.identity() != root.state.identity {
            return Err(Left::Swapped);
        }
        let path = &change.found.path;
        let at = path.iter().rposition(|byte| *byte == b'/');
        let (above, name) = at.map_or((&b"."[..], &path[..]), |at| (&path[..at], &path[at + 1..]));
        let cstring = |bytes: &[u8]| CString::new(bytes).map_err(|_| Left::Swapped);
        let resolve = sys::RESOLVE_BENEATH | sys::RESOLVE_NO_SYMLINKS | sys::RESOLVE_NO_MAGICLINKS;
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let dir = sys::openat2_c(top.as_raw_fd(), &cstring(above)?, flags, resolve).map_err(swapped)?;
        let source = Self { dir, name: cstring(name)?, entry: change.found.entry.ok_or(Left::Swapped)? };
        match source.is_same(source.dir.as_raw_fd(), &source.name) {
            true => Ok(source),
            false => Err(Left::Swapped),
        }
    }

    /// A rename changes the change time, so that is left out.
    fn is_same(&self, dir: RawFd, name: &CStr) -> bool {
        Entry::of(dir, name).is_ok_and(|now| now.is_same_content(&self.entry))
    }

    /// `budget`: the bytes that copies of this run may still write.
    pub fn move_to(&self, place: RawFd, name: &CStr, budget: &Cell<u64>) -> Result<(), Left> {
        let from = self.dir.as_raw_fd();
        // Until the end: an object that was swapped in has to go back.
        let _lent = Lent::to(from, WRITE);
        match sys::rename_to_free(from, &self.name, place, name) {
            Ok(()) => {}
            Err(e) if e.raw_os_error() == Some(libc::EXDEV) => return self.copy_to(place, name, budget),
            // A file system without RENAME_NOREPLACE.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => self.move_over_own(place, name)?,
            Err(_) => return Err(Left::Denied),
        }
        if self.is_same(place, name) {
            return Ok(());
        }
        // Somebody on the host put another object there meanwhile: it goes back, never over a third.
        // Where that cannot be, it stays here and the journal's line says so.
        let _ = sys::rename_to_free(place, name, from, &self.name);
        Err(Left::Swapped)
    }

    /// The only name that it replaces is one that it has just made.
    fn move_over_own(&self, place: RawFd, name: &CStr) -> Result<(), Left> {
        let denied = |_: io::Error| Left::Denied;
        let (_, own) = Fresh::file(place, name, 0o600).map_err(denied)?;
        sys::rename(self.dir.as_raw_fd(), &self.name, place, name).map_err(denied)?;
        own.stays();
        Ok(())
    }

    /// Whatever fails, the original is still where it was: then the copy, or half of it, goes.
    fn copy_to(&self, place: RawFd, name: &CStr, budget: &Cell<u64>) -> Result<(), Left> {
        let copy = self.copy(place, name, budget)?;
        if !self.is_same(self.dir.as_raw_fd(), &self.name) {
            return Err(Left::Swapped);
        }
        // The copy's name is on the disk before the original's is gone.
        let gone = sys::fsync(place).and_then(|()| sys::unlink(self.dir.as_raw_fd(), &self.name));
        gone.map_err(|_| Left::Denied)?;
        copy.stays();
        Ok(())
    }

    fn copy<'a>(&self, place: RawFd, name: &'a CStr, budget: &Cell<u64>) -> Result<Fresh<'a>, Left> {
        let denied = |_: io::Error| Left::Denied;
        if self.entry.is_link() {
            return self.copy_link(place, name).map_err(denied);
        }
        let source = self.readable().map_err(denied)?;
        if !Entry::of(source.as_raw_fd(), c"").map_err(denied)?.is_same_content(&self.entry) {
            return Err(Left::Swapped);
        }
        if self.entry.size() > COPY_MAX_BYTES {
            return Err(Left::TooLarge);
        }
        let mode = self.entry.permissions() & 0o700 | 0o600;
        let (copy, fresh) = Fresh::file(place, name, mode).map_err(denied)?;
        keep_owner(&source, &copy).map_err(denied)?;
        match copy_data(&source, &copy, self.entry.size(), budget).map_err(denied)? {
            true => Ok(fresh),
            false => Err(Left::TooLarge),
        }
    }

    fn copy_link<'a>(&self, place: RawFd, name: &'a CStr) -> io::Result<Fresh<'a>> {
        let target = CString::new(sys::link_target(self.dir.as_raw_fd(), &self.name)?)?;
        // SAFETY: both strings outlive the call.
        sys::check(i64::from(unsafe { libc::symlinkat(target.as_ptr(), place, name.as_ptr()) }))?;
        Ok(Fresh { place, name })
    }

    /// A program of mode 0100 is run by its owner, and cannot be read.
    fn readable(&self) -> io::Result<File> {
        let from = self.dir.as_raw_fd();
        let object = sys::openat(from, &self.name, libc::O_PATH, 0)?;
        let same = Entry::of(object.as_raw_fd(), c"")?.is_same_content(&self.entry);
        let _lent = same.then(|| Lent::to(object.as_raw_fd(), READ));
        sys::openat(from, &self.name, libc::O_RDONLY, 0).map(File::from)
    }
}

/// A name in quarantine that this call has made: it goes when what follows fails. One that was
/// there before has no such value, and stays.
struct Fresh<'a> {
    place: RawFd,
    name: &'a CStr,
}

impl<'a> Fresh<'a> {
    fn file(place: RawFd, name: &'a CStr, mode: u32) -> io::Result<(File, Self)> {
        let file = sys::openat(place, name, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, mode)?;
        Ok((File::from(file), Self { place, name }))
    }

    fn stays(self) {
        std::mem::forget(self);
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        let _ = sys::unlink(self.place, self.name);
    }
}

/// Copies what is data and leaves holes; false when the budget does not reach. A failed copy has
/// written as much as one that stays, so it is charged as well.
fn copy_data(source: &File, copy: &File, size: u64, budget: &Cell<u64>) -> io::Result<bool> {
    // Not io::copy: it would need more of the C library than is there.
    let mut piece = vec![0; 64 << 10];
    let mut at = 0;
    while let Some((start, end)) = extent(source, at).filter(|(start, _)| *start < size) {
        (at, _) = ((&*source).seek(SeekFrom::Start(start))?, (&*copy).seek(SeekFrom::Start(start))?);
        while let got @ 1.. = source.take(end.min(size) - at).read(&mut piece)? {
            let Some(left) = budget.get().checked_sub(got as u64) else { return Ok(false) };
            budget.set(left);
            (&*copy).write_all(&piece[..got])?;
            at += got as u64;
        }
        at = end;
    }
    // SAFETY: no pointers.
    sys::check(unsafe { libc::syscall(libc::SYS_ftruncate, copy.as_raw_fd(), size) })?;
    sys::fsync(copy.as_raw_fd())?;
    charge_holes(source, copy, budget)
}

/// Where the next data begins and ends, from an offset on. Where that cannot be told, all is data.
fn extent(file: &File, at: u64) -> Option<(u64, u64)> {
    let seek = |at: u64, what| {
        // SAFETY: no pointers.
        sys::check(unsafe { libc::lseek(file.as_raw_fd(), at as i64, what) })
    };
    let start = match seek(at, libc::SEEK_DATA) {
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => return None,
        other => other.map_or(at, |start| start as u64),
    };
    let end = seek(start, libc::SEEK_HOLE).map_or(u64::MAX, |end| end as u64);
    Some((start, if end > start { end } else { u64::MAX }))
}

/// A file system without holes (vfat) has written them as zeros: those count as well.
fn charge_holes(source: &File, copy: &File, budget: &Cell<u64>) -> io::Result<bool> {
    let blocks = |file: &File| sys::fstat(file.as_raw_fd()).map(|st| st.st_blocks as u64 * 512);
    // Two file systems round differently; that is no hole.
    let zeros = blocks(copy)?.saturating_sub(blocks(source)? + (64 << 10));
    let left = budget.get().checked_sub(zeros);
    budget.set(left.unwrap_or(0));
    Ok(left.is_some())
}

/// Permission bits that the box has taken away from an object of the caller, lent for a moment. It
/// goes by descriptor: no name is looked at again.
struct Lent {
    object: RawFd,
    mode: libc::mode_t,
}

impl Lent {
    /// None where nothing is missing, or the object is somebody else's.
    fn to(object: RawFd, need: libc::mode_t) -> Option<Self> {
        let st = sys::fstat(object).ok()?;
        // SAFETY: no pointers.
        let own = st.st_uid == unsafe { libc::geteuid() };
        let mode = st.st_mode & 0o7777;
        if !own || mode & need == need {
            return None;
        }
        let lent = Self { object, mode };
        lent.set(mode | need);
        Some(lent)
    }

    fn set(&self, mode: libc::mode_t) {
        // A failure shows in the call that needed it.
        let _ = sys::chmod_held(self.object, mode);
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.set(self.mode);
    }
}

/// A root caller's copy belongs to whom the original belongs.
fn keep_owner(source: &File, copy: &File) -> io::Result<()> {
    let st = sys::fstat(source.as_raw_fd())?;
    // SAFETY: no pointers.
    match unsafe { libc::geteuid() } {
        // SAFETY: as above.
        0 => sys::check(unsafe { libc::syscall(libc::SYS_fchown, copy.as_raw_fd(), st.st_uid, st.st_gid) }).map(drop),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A directory for quarantine, and another with one file, which was judged.
    struct Two(PathBuf);

    impl Two {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("source-{}", crate::ulid::ulid().unwrap()));
            std::fs::create_dir_all(path.join("place")).unwrap();
            std::fs::create_dir(path.join("tree")).unwrap();
            std::fs::write(path.join("tree/.envrc"), "new").unwrap();
            std::os::unix::fs::symlink("new", path.join("tree/.mcp.json")).unwrap();
            Self(path.canonicalize().unwrap())
        }

        fn place(&self) -> OwnedFd {
            open_root(self.0.join("place").to_str().unwrap()).unwrap()
        }

        fn source(&self, name: &CStr) -> Source {
            let dir = open_root(self.0.join("tree").to_str().unwrap()).unwrap();
            let entry = Entry::of(dir.as_raw_fd(), name).unwrap();
            Source { dir, name: name.to_owned(), entry }
        }

        fn text(&self, path: &str) -> Option<String> {
            std::fs::read_to_string(self.0.join(path)).ok()
        }
    }

    impl Drop for Two {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    /// Nobody, root included, takes a file out of /proc.
    #[test]
    fn a_copy_whose_original_cannot_be_taken_away_does_not_stay() {
        let two = Two::new();
        let (place, dir) = (two.place(), open_root("/proc").unwrap());
        let entry = Entry::of(dir.as_raw_fd(), c"version").unwrap();
        let source = Source { dir, name: c"version".to_owned(), entry };
        let budget = Cell::new(COPY_MAX_BYTES);
        source.copy(place.as_raw_fd(), c"0", &budget).map(Fresh::stays).unwrap();
        assert!(two.text("place/0").is_some());
        assert_eq!(source.copy_to(place.as_raw_fd(), c"1", &budget), Err(Left::Denied));
        assert!(two.text("place/1").is_none());
    }

    #[test]
    fn what_has_the_number_already_is_neither_removed_nor_replaced() {
        let two = Two::new();
        let (place, budget) = (two.place(), Cell::new(COPY_MAX_BYTES));
        std::fs::write(two.0.join("place/0"), "earlier").unwrap();
        for name in [c".envrc", c".mcp.json"] {
            let source = two.source(name);
            assert_eq!(source.copy_to(place.as_raw_fd(), c"0", &budget), Err(Left::Denied));
            assert_eq!(source.move_over_own(place.as_raw_fd(), c"0"), Err(Left::Denied));
            assert_eq!(source.move_to(place.as_raw_fd(), c"0", &budget), Err(Left::Denied));
            assert_eq!(two.text("place/0").as_deref(), Some("earlier"));
            assert!(Entry::of(source.dir.as_raw_fd(), name).is_ok());
        }
    }

    #[test]
    fn without_a_rename_that_keeps_names_a_free_one_is_taken() {
        let two = Two::new();
        let place = two.place();
        assert_eq!(two.source(c".envrc").move_over_own(place.as_raw_fd(), c"0"), Ok(()));
        assert_eq!((two.text("place/0").as_deref(), two.text("tree/.envrc")), (Some("new"), None));
        assert_eq!(two.source(c".mcp.json").move_over_own(place.as_raw_fd(), c"1"), Ok(()));
        assert_eq!(std::fs::read_link(two.0.join("place/1")).unwrap().to_str(), Some("new"));
        let gone = Source { name: c"gone".to_owned(), ..two.source(c"..") };
        assert_eq!(gone.move_over_own(place.as_raw_fd(), c"2"), Err(Left::Denied));
        assert!(two.text("place/2").is_none(), "what was made for it goes");
    }
}
