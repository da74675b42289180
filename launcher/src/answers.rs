//! What the probe found this host to allow, and a start that finds otherwise.
//!
//! Owns taking it back: the file of kept answers (`src/stockade/host/answers.py`) is removed when the
//! kernel refuses what a plan was made for, so that the next start asks. The line is drawn by the same
//! codes there. All answers go: which one this start was given is not known here, and another costs a probe.
//! Fails closed: the refusal stays one, whether the file could be removed or not. Next: launch.rs.

use std::ffi::CStr;
use std::io;
use std::os::fd::AsRawFd;

use crate::report::Refusal;
use crate::sys;

/// The kernel, not a path of the request, said no.
const OF_THE_HOST: [&str; 15] = [
    "userns_denied",
    "map_denied",
    "namespace_denied",
    "mount_denied",
    "overlay_denied",
    "proc_denied",
    "dev_denied",
    "pivot_denied",
    "nnp_denied",
    "keyring_denied",
    "caps_denied",
    "landlock_unavailable",
    "landlock_denied",
    "seccomp_denied",
    "promise_not_kept",
];
const NAME: &CStr = c"host-probe.json";
const HINT: &str = "what was kept of this host did not hold and is dropped: the next start asks anew, and so does a \
                    new launch line";

/// A shortage passes by itself, and says nothing of the host.
fn is_of_the_host(refusal: &Refusal) -> bool {
    OF_THE_HOST.contains(&refusal.code) && !refusal.transient
}

/// The refusal of a start that was made with an answer from this state home, if any.
pub fn taken_back(mut refusal: Refusal, state_home: Option<&str>) -> Refusal {
    let kept = state_home.filter(|_| is_of_the_host(&refusal));
    if kept.is_some_and(|home| remove(home).is_ok()) {
        refusal.hint = format!("{}; {HINT}", refusal.hint);
    }
    refusal
}

fn remove(state_home: &str) -> io::Result<()> {
    let home = sys::open_dir(libc::AT_FDCWD, &sys::cstr(state_home)?)?;
    sys::unlink(home.as_raw_fd(), NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_word_of_the_host_that_stays_takes_answers_back() {
        let home = std::env::temp_dir().join(format!("stockade-answers-{}", std::process::id()));
        std::fs::create_dir_all(&home).expect("temp dir");
        let (path, home) = (home.join(NAME.to_str().expect("text")), home.to_str().expect("text"));
        let denied = Refusal::new("userns_denied", "clone").errno(libc::EPERM);
        let others = [
            Refusal::new("userns_denied", "clone").errno(libc::ENOMEM),
            Refusal::new("source_denied", "/x").errno(libc::EACCES),
            Refusal::new("not_found", "x"),
        ];
        std::fs::write(&path, "{}").expect("file");
        for refusal in others {
            assert_eq!(taken_back(refusal.clone(), Some(home)), refusal);
        }
        assert_eq!(taken_back(denied.clone(), None), denied);
        assert!(path.exists());
        assert!(taken_back(denied.clone(), Some(home)).hint.ends_with(HINT) && !path.exists());
        assert_eq!(taken_back(denied.clone(), Some(home)), denied, "nothing was kept");
        std::fs::remove_dir_all(home).expect("ours");
    }
}
