//! The terminal: handing it to the box's process group and taking it back.
//!
//! Owns job control on the caller's side. The command starts in the foreground
//! when we are a shell's foreground job that writes to the terminal; else it gets the terminal when it
//! first asks for it (SIGTTIN, SIGTTOU), so that in `stockade run a | less` the
//! pager keeps it. Source: credentials(7), "Sessions and process groups";
//! tcsetpgrp(3); termios(3).

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub struct Terminal {
    tty: Option<OwnedFd>,
    /// Ours: where the terminal goes back to.
    group: libc::pid_t,
    /// The box holds the terminal now.
    pub handed: bool,
    before: Option<libc::termios>,
}

impl Terminal {
    pub fn open() -> Terminal {
        // SAFETY: the path is static; the descriptor is owned at once.
        let tty = unsafe {
            let fd = libc::open(c"/dev/tty".as_ptr(), libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
        };
        // SAFETY: no failure.
        let group = unsafe { libc::getpgrp() };
        let mut terminal = Terminal { tty, group, handed: false, before: None };
        terminal.before = terminal.attributes();
        terminal
    }

    /// Nothing to hand over.
    pub fn none() -> Terminal {
        Terminal { tty: None, group: 0, handed: false, before: None }
    }

    /// The terminal for the command to take at its start, if it should.
    pub fn hand_over_at_start(&mut self) -> Option<&OwnedFd> {
        // SAFETY: no pointers.
        let writes_to_it = unsafe { libc::isatty(libc::STDOUT_FILENO) == 1 };
        self.handed = self.is_job() && writes_to_it && self.in_foreground();
        self.tty.as_ref().filter(|_| self.handed)
    }

    /// True when a shell with job control made us the leader of a job on a terminal.
    pub fn is_job(&self) -> bool {
        // SAFETY: no failure.
        self.tty.is_some() && unsafe { libc::getpid() } == self.group
    }

    /// True when our own group holds the terminal.
    fn in_foreground(&self) -> bool {
        self.is_with(self.group)
    }

    /// True when that group holds the terminal.
    pub fn is_with(&self, group: libc::pid_t) -> bool {
        // SAFETY: the descriptor is ours.
        self.tty.as_ref().is_some_and(|tty| unsafe { libc::tcgetpgrp(tty.as_raw_fd()) } == group)
    }

    /// Hands the terminal to `group` when it is ours to give.
    pub fn hand_over(&mut self, group: libc::pid_t) -> bool {
        if self.in_foreground() {
            self.handed = self.set_group(group);
        }
        self.handed
    }

    fn set_group(&self, group: libc::pid_t) -> bool {
        // SAFETY: the descriptor is ours; SIGTTOU is blocked, so a background caller may do this.
        self.tty.as_ref().is_some_and(|tty| unsafe { libc::tcsetpgrp(tty.as_raw_fd(), group) } == 0)
    }

    /// Takes the terminal back and returns the settings that the box left.
    pub fn take_back(&mut self) -> Option<libc::termios> {
        if !std::mem::take(&mut self.handed) {
            return None;
        }
        let theirs = self.attributes();
        self.set_group(self.group);
        self.restore(self.before);
        theirs
    }

    fn attributes(&self) -> Option<libc::termios> {
        let tty = self.tty.as_ref()?;
        // SAFETY: termios is plain data that lives through the call.
        unsafe {
            let mut settings: libc::termios = std::mem::zeroed();
            (libc::tcgetattr(tty.as_raw_fd(), &mut settings) == 0).then_some(settings)
        }
    }

    pub fn restore(&self, settings: Option<libc::termios>) {
        if let (Some(tty), Some(settings)) = (&self.tty, settings) {
            // SAFETY: the settings live through the call.
            unsafe { libc::tcsetattr(tty.as_raw_fd(), libc::TCSADRAIN, &settings) };
        }
    }
}
