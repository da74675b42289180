//! Terminals: settings and the foreground group.
//!
//! Owns the difference between C's `struct termios` and the kernel's.
//! Source: ioctl_tty(2), TCGETS, TIOCGPGRP.

use std::ptr::addr_of_mut;

use libc::{c_int, c_uint, pid_t, termios};

use super::calls;

/// `struct termios` of asm-generic/termbits.h: fewer characters, the speed in the flags.
#[repr(C)]
#[derive(Default)]
struct Settings {
    flags: [c_uint; 4],
    line: u8,
    characters: [u8; 19],
}

/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn tcgetattr(fd: c_int, to: *mut termios) -> c_int {
    let mut now = Settings::default();
    // SAFETY: the structure lives through the call.
    let ret = unsafe { calls::ioctl(fd, libc::TCGETS, addr_of_mut!(now).cast()) };
    if ret == 0 {
        // SAFETY: the caller's structure.
        let to = unsafe { &mut *to };
        [to.c_iflag, to.c_oflag, to.c_cflag, to.c_lflag] = now.flags;
        to.c_line = now.line;
        to.c_cc[..19].copy_from_slice(&now.characters);
    }
    ret
}

/// `when` is TCSANOW, TCSADRAIN or TCSAFLUSH: the requests follow each other alike.
///
/// # Safety
/// As for the C function of this name.
#[cfg_attr(bare, no_mangle)]
unsafe extern "C" fn tcsetattr(fd: c_int, when: c_int, from: *const termios) -> c_int {
    // SAFETY: the caller's structure.
    let from = unsafe { &*from };
    let flags = [from.c_iflag, from.c_oflag, from.c_cflag, from.c_lflag];
    let mut new = Settings { flags, line: from.c_line, ..Settings::default() };
    new.characters.copy_from_slice(&from.c_cc[..19]);
    // SAFETY: the structure lives through the call.
    unsafe { calls::ioctl(fd, libc::TCSETS + when as libc::c_ulong, addr_of_mut!(new).cast()) }
}

#[cfg_attr(bare, no_mangle)]
extern "C" fn isatty(fd: c_int) -> c_int {
    let mut now = Settings::default();
    // SAFETY: the structure lives through the call.
    c_int::from(unsafe { calls::ioctl(fd, libc::TCGETS, addr_of_mut!(now).cast()) } == 0)
}

#[cfg_attr(bare, no_mangle)]
extern "C" fn tcgetpgrp(fd: c_int) -> pid_t {
    let mut group = 0;
    // SAFETY: the number lives through the call.
    match unsafe { calls::ioctl(fd, libc::TIOCGPGRP, addr_of_mut!(group).cast()) } {
        0 => group,
        _ => -1,
    }
}

#[cfg_attr(bare, no_mangle)]
extern "C" fn tcsetpgrp(fd: c_int, mut group: pid_t) -> c_int {
    // SAFETY: the number lives through the call.
    unsafe { calls::ioctl(fd, libc::TIOCSPGRP, addr_of_mut!(group).cast()) }
}

#[cfg(test)]
mod tests {
    use super::super::shaped::open;
    use super::*;

    #[test]
    fn terminal_settings_are_those_of_the_c_library() {
        // SAFETY: structures are plain data that live through the calls; the descriptor is closed at the end.
        unsafe {
            let terminal = open(c"/dev/ptmx".as_ptr(), libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC, 0);
            let (mut ours, mut theirs): (termios, termios) = (std::mem::zeroed(), std::mem::zeroed());
            assert_eq!(
                (isatty(terminal), tcgetattr(terminal, &mut ours), libc::tcgetattr(terminal, &mut theirs)),
                (1, 0, 0)
            );
            let flags = |t: &termios| [t.c_iflag, t.c_oflag, t.c_cflag & !libc::CIBAUD, t.c_lflag];
            assert_eq!((flags(&ours), &ours.c_cc[..19]), (flags(&theirs), &theirs.c_cc[..19]));
            ours.c_lflag ^= libc::ECHO;
            ours.c_cc[libc::VINTR] = 7;
            assert_eq!(tcsetattr(terminal, libc::TCSADRAIN, &ours), 0);
            assert_eq!(libc::tcgetattr(terminal, &mut theirs), 0);
            assert_eq!((flags(&ours), theirs.c_cc[libc::VINTR]), (flags(&theirs), 7));
            calls::close(terminal);
            let null = open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC, 0);
            assert_eq!((isatty(null), tcgetpgrp(null), tcgetattr(null, &mut ours)), (0, -1, -1));
            calls::close(null);
        }
    }
}
