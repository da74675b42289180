//! Names of error numbers, for people and for records.
//!
//! Owns the table; a number that it lacks has no name and is shown as a number.
//! Source: include/uapi/asm-generic/errno-base.h and errno.h.

/// The kernel's name of an error number, for example `EACCES` for 13.
pub fn name(errno: i32) -> Option<&'static str> {
    NAMES.iter().find(|(number, _)| *number == errno).map(|(_, name)| *name)
}

/// The name, or `errno N` where there is none.
pub fn label(errno: i32) -> String {
    name(errno).map_or_else(|| format!("errno {errno}"), str::to_owned)
}

/// True for a shortage that can pass by itself: such an answer is never cached.
pub fn is_transient(errno: i32) -> bool {
    [libc::ENOMEM, libc::EMFILE, libc::ENFILE, libc::ENOSPC, libc::EAGAIN, libc::EDQUOT].contains(&errno)
}

macro_rules! names {
    ($($name:ident)*) => { &[$((libc::$name, stringify!($name))),*] };
}

const NAMES: &[(i32, &str)] = names! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT ENOTBLK EBUSY
    EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK
    EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP ENOMSG EIDRM ECHRNG EL2NSYNC EL3HLT
    EL3RST ELNRNG EUNATCH ENOCSI EL2HLT EBADE EBADR EXFULL ENOANO EBADRQC EBADSLT EBFONT ENOSTR ENODATA ETIME
    ENOSR ENONET ENOPKG EREMOTE ENOLINK EADV ESRMNT ECOMM EPROTO EMULTIHOP EDOTDOT EBADMSG EOVERFLOW ENOTUNIQ
    EBADFD EREMCHG ELIBACC ELIBBAD ELIBSCN ELIBMAX ELIBEXEC EILSEQ ERESTART ESTRPIPE EUSERS ENOTSOCK
    EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP EPFNOSUPPORT
    EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET ECONNABORTED ECONNRESET ENOBUFS EISCONN
    ENOTCONN ESHUTDOWN ETOOMANYREFS ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS ESTALE
    EUCLEAN ENOTNAM ENAVAIL EISNAM EREMOTEIO EDQUOT ENOMEDIUM EMEDIUMTYPE ECANCELED ENOKEY EKEYEXPIRED
    EKEYREVOKED EKEYREJECTED EOWNERDEAD ENOTRECOVERABLE ERFKILL EHWPOISON
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_from_1_to_133_but_the_two_unused_has_one_name() {
        for number in (1..=133).filter(|n| ![41, 58].contains(n)) {
            assert_eq!(NAMES.iter().filter(|(n, _)| *n == number).count(), 1, "{number}");
        }
        assert_eq!((name(13), name(11), name(95)), (Some("EACCES"), Some("EAGAIN"), Some("EOPNOTSUPP")));
        assert_eq!((name(0), name(512), label(512).as_str()), (None, None, "errno 512"));
    }

    #[test]
    fn shortages_are_transient_and_denials_are_not() {
        assert!(is_transient(libc::ENOMEM) && is_transient(libc::EDQUOT));
        assert!(!is_transient(libc::EACCES) && !is_transient(libc::EPERM) && !is_transient(libc::ENOSYS));
    }
}
