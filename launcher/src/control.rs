//! The line between P0 and P1: one SEQPACKET socket pair, small typed messages.
//!
//! Owns the encoding, descriptor passing and the translation of P2's pid (the
//! kernel rewrites SCM_CREDENTIALS into the reader's pid namespace). A message
//! that does not parse is an error: only our own two processes hold the ends.
//! Source: unix(7), "Ancillary messages".

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// P1 to P0.
#[derive(Debug, PartialEq)]
pub enum Event {
    /// The box's socket listens. Its descriptor comes along, and those of the private
    /// places that are counted at the end, with what is in them before the command runs.
    Listening(Vec<Used>),
    /// The command was forked; its pid on the host comes along.
    Forked,
    /// The same, from a P1 that sees the pids of the host.
    ForkedAs(i32),
    Stopped(i32),
    Continued,
    /// The raw wait status of the command, and whether nothing else of the box is left but P1.
    Ended(i32, bool),
    /// The guard of this number is no longer in place.
    GuardLost(u32),
    MemoryLimit,
    CpuLimit,
    ProcessLimit,
    /// The home is a list of binds, not an overlay.
    Snapshot,
    /// The box's namespaces come along, in the order of `SPACES`.
    Lent,
}

/// What a process joins that is to stand in the box; namespaces(7).
pub const SPACES: [&str; 4] = ["user", "mnt", "pid", "net"];

/// What a file system holds: statfs(2), blocks and inodes that are not free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    pub blocks: u64,
    pub inodes: u64,
}

impl Used {
    fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.blocks.to_le_bytes());
        bytes[8..].copy_from_slice(&self.inodes.to_le_bytes());
        bytes
    }

    fn parse(bytes: [u8; 16]) -> Used {
        let [blocks, inodes] = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|offset| bytes[at + offset])));
        Used { blocks, inodes }
    }
}

/// P0 to P1.
#[derive(Debug, PartialEq)]
pub enum Order {
    /// Ids are mapped: build.
    Build,
    /// A part of what to cover and to guard, as JSON (`cover::Covers`); `last` ends it.
    Cover { part: Vec<u8>, last: bool },
    /// What must be known before the command runs is known: start it.
    Start,
    /// The command is watched: let it go on.
    Traced,
    /// Send a signal to the command, or to its whole process group.
    Signal { number: i32, group: bool },
    /// The guard of this number was put back.
    Restored(u32),
    /// Nothing stands at the guard of this number; look for it.
    Gone(u32),
    /// Somebody inside asks for a box: hand out the namespaces of this one.
    Lend,
}

const SIZE: usize = 6;

fn encode(tag: u8, value: i32, flag: u8) -> [u8; SIZE] {
    let v = value.to_le_bytes();
    [tag, flag, v[0], v[1], v[2], v[3]]
}

fn decode(bytes: &[u8]) -> io::Result<(u8, i32, bool)> {
    match bytes {
        [tag, flag, a, b, c, d] => Ok((*tag, i32::from_le_bytes([*a, *b, *c, *d]), *flag != 0)),
        _ => Err(io::Error::from(io::ErrorKind::InvalidData)),
    }
}

impl Event {
    fn bytes(&self) -> Vec<u8> {
        let fixed = match *self {
            Event::Listening(ref used) => {
                let used = used.iter().flat_map(|used| used.bytes());
                return [b'L'].into_iter().chain(used).collect();
            }
            Event::Forked => encode(b'f', 0, 0),
            Event::ForkedAs(pid) => encode(b'F', pid, 0),
            Event::Stopped(signal) => encode(b's', signal, 0),
            Event::Continued => encode(b'c', 0, 0),
            Event::Ended(status, alone) => encode(b'e', status, u8::from(alone)),
            Event::GuardLost(index) => encode(b'g', index as i32, 0),
            Event::MemoryLimit => encode(b'm', 0, 0),
            Event::CpuLimit => encode(b't', 0, 0),
            Event::ProcessLimit => encode(b'p', 0, 0),
            Event::Snapshot => encode(b'n', 0, 0),
            Event::Lent => encode(b'd', 0, 0),
        };
        fixed.to_vec()
    }

    fn parse(bytes: &[u8]) -> io::Result<Event> {
        if let [b'L', used @ ..] = bytes {
            let whole: Option<Vec<Used>> = used.chunks(16).map(|used| used.try_into().ok().map(Used::parse)).collect();
            return whole.map(Event::Listening).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData));
        }
        Ok(match decode(bytes)? {
            (b'f', ..) => Event::Forked,
            (b'F', pid, _) => Event::ForkedAs(pid),
            (b's', signal, _) => Event::Stopped(signal),
            (b'c', ..) => Event::Continued,
            (b'e', status, alone) => Event::Ended(status, alone),
            (b'g', index, _) => Event::GuardLost(index as u32),
            (b'm', ..) => Event::MemoryLimit,
            (b't', ..) => Event::CpuLimit,
            (b'p', ..) => Event::ProcessLimit,
            (b'n', ..) => Event::Snapshot,
            (b'd', ..) => Event::Lent,
            _ => return Err(io::Error::from(io::ErrorKind::InvalidData)),
        })
    }
}

impl Order {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Order::Build => encode(b'b', 0, 0).to_vec(),
            Order::Start => encode(b's', 0, 0).to_vec(),
            Order::Traced => encode(b't', 0, 0).to_vec(),
            Order::Lend => encode(b'd', 0, 0).to_vec(),
            Order::Signal { number, group } => encode(b'k', *number, u8::from(*group)).to_vec(),
            Order::Restored(index) => encode(b'r', *index as i32, 0).to_vec(),
            Order::Gone(index) => encode(b'x', *index as i32, 0).to_vec(),
            Order::Cover { part, last } => [if *last { b"{" } else { b"+" }, part.as_slice()].concat(),
        }
    }

    fn parse(bytes: &[u8]) -> io::Result<Order> {
        if let [tag @ (b'{' | b'+'), part @ ..] = bytes {
            return Ok(Order::Cover { part: part.to_vec(), last: *tag == b'{' });
        }
        Ok(match decode(bytes)? {
            (b'b', ..) => Order::Build,
            (b's', ..) => Order::Start,
            (b't', ..) => Order::Traced,
            (b'd', ..) => Order::Lend,
            (b'k', number, group) => Order::Signal { number, group },
            (b'r', index, _) => Order::Restored(index as u32),
            (b'x', index, _) => Order::Gone(index as u32),
            _ => return Err(io::Error::from(io::ErrorKind::InvalidData)),
        })
    }
}

/// The two ends; P0's reports the sender's pid with each message.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the array lives through the call; both descriptors are owned at once.
    let (outer, inner) = unsafe {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        crate::sys::check(i64::from(libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr())))?;
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    };
    let on: i32 = 1;
    // SAFETY: the option value lives through the call.
    let ret = unsafe {
        let size = std::mem::size_of::<i32>() as libc::socklen_t;
        libc::setsockopt(outer.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PASSCRED, std::ptr::addr_of!(on).cast(), size)
    };
    crate::sys::check(i64::from(ret))?;
    Ok((outer, inner))
}

/// Room for the descriptors of one message and one set of credentials, aligned for cmsghdr.
#[repr(align(8))]
struct Ancillary([u8; ANCILLARY]);
const ANCILLARY: usize = 256;

pub fn send_order(fd: RawFd, order: &Order) -> io::Result<()> {
    send(fd, &order.bytes(), None, 0)
}

/// What to cover, in as many messages as it takes: a tree may hold thousands of names to guard.
pub fn send_covers(fd: RawFd, text: &[u8]) -> io::Result<()> {
    let mut rest = text;
    while rest.len() > PART_BYTES {
        let (part, more) = rest.split_at(PART_BYTES);
        send_order(fd, &Order::Cover { part: part.to_vec(), last: false })?;
        rest = more;
    }
    send_order(fd, &Order::Cover { part: rest.to_vec(), last: true })
}

/// The whole of it; None when P0 is gone or sent something else.
pub fn receive_covers(fd: RawFd) -> io::Result<Option<Vec<u8>>> {
    let mut text = Vec::new();
    loop {
        let Some(Order::Cover { part, last }) = receive_order(fd, true)? else { return Ok(None) };
        text.extend_from_slice(&part);
        if last {
            return Ok(Some(text));
        }
    }
}

pub fn send_event(fd: RawFd, event: &Event) -> io::Result<()> {
    send(fd, &event.bytes(), None, 0)
}

/// For what the box causes at will: with a P0 that does not read (a stopped one) it is
/// left out, so that P1 keeps to its other duties, the wall clock among them.
pub fn send_if_room(fd: RawFd, event: &Event) -> io::Result<()> {
    send(fd, &event.bytes(), None, libc::MSG_DONTWAIT)
}

/// `Listening`, with the socket and the private places.
pub fn send_listener(fd: RawFd, listener: RawFd, places: &[RawFd], used: Vec<Used>) -> io::Result<()> {
    let fds: Vec<u8> = [listener].iter().chain(places).flat_map(|fd| fd.to_ne_bytes()).collect();
    send(fd, &Event::Listening(used).bytes(), Some((libc::SCM_RIGHTS, &fds)), 0)
}

/// `Lent`, with P1's own namespaces: to nobody else can they be shown, since P1 cannot be looked at.
pub fn send_spaces(fd: RawFd) -> io::Result<()> {
    let open = |name: &&str| std::fs::File::open(format!("/proc/self/ns/{name}"));
    let spaces = SPACES.iter().map(open).collect::<io::Result<Vec<_>>>()?;
    let fds: Vec<u8> = spaces.iter().flat_map(|space| space.as_raw_fd().to_ne_bytes()).collect();
    send(fd, &Event::Lent.bytes(), Some((libc::SCM_RIGHTS, &fds)), 0)
}

/// `Forked`, with the pid as credentials. Needs CAP_SYS_ADMIN over the pid
/// namespace (kernel: scm_check_creds), so before P1 drops its capabilities.
pub fn send_forked(fd: RawFd, pid: libc::pid_t) -> io::Result<()> {
    // SAFETY: get*id have no failure; ucred is plain data.
    let (creds, size) =
        unsafe { (libc::ucred { pid, uid: libc::getuid(), gid: libc::getgid() }, std::mem::size_of::<libc::ucred>()) };
    // SAFETY: the slice covers exactly the plain data of `creds`, which outlives it.
    let bytes = unsafe { std::slice::from_raw_parts(std::ptr::addr_of!(creds).cast::<u8>(), size) };
    send(fd, &Event::Forked.bytes(), Some((libc::SCM_CREDENTIALS, bytes)), 0)
}

fn send(fd: RawFd, bytes: &[u8], ancillary: Option<(i32, &[u8])>, flags: i32) -> io::Result<()> {
    let mut room = Ancillary([0; ANCILLARY]);
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    if ancillary.is_some_and(|(_, data)| data.len() + 32 > ANCILLARY) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: msghdr is plain data; every pointer in it outlives sendmsg, and the
    // control header is written inside `room`: what does not fit is refused first.
    unsafe {
        let mut msg: libc::msghdr = std::mem::zeroed();
        msg.msg_iov = &mut iov;
        msg.msg_iovlen = 1;
        if let Some((kind, data)) = ancillary {
            msg.msg_control = room.0.as_mut_ptr().cast();
            msg.msg_controllen = libc::CMSG_SPACE(data.len() as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&msg);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = kind;
            (*header).cmsg_len = libc::CMSG_LEN(data.len() as u32) as _;
            std::ptr::copy_nonoverlapping(data.as_ptr(), libc::CMSG_DATA(header), data.len());
        }
        crate::sys::check(libc::sendmsg(fd, &msg, libc::MSG_NOSIGNAL | flags) as i64).map(drop)
    }
}

/// What P0 reads: the event, the descriptors that came, the sender's pid.
pub struct Received {
    pub event: Event,
    pub fds: Vec<OwnedFd>,
    pub pid: libc::pid_t,
}

/// `Listening` with one count for each private place.
const EVENT_MAX_BYTES: usize = 1 << 10;

/// The next event; None when P1 is gone.
pub fn receive_event(fd: RawFd) -> io::Result<Option<Received>> {
    let mut bytes = [0u8; EVENT_MAX_BYTES];
    let mut room = Ancillary([0; ANCILLARY]);
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let (mut fds, mut pid) = (vec![], 0);
    // SAFETY: all buffers outlive recvmsg; control data is read only within the
    // headers that the kernel wrote; a received descriptor is owned at once.
    let size = unsafe {
        let mut msg: libc::msghdr = std::mem::zeroed();
        msg.msg_iov = &mut iov;
        msg.msg_iovlen = 1;
        msg.msg_control = room.0.as_mut_ptr().cast();
        msg.msg_controllen = room.0.len() as _;
        let size = crate::sys::check(libc::recvmsg(fd, &mut msg, libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as i64)?;
        let mut header = libc::CMSG_FIRSTHDR(&msg);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header);
            match (*header).cmsg_type {
                libc::SCM_RIGHTS => {
                    let size = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                    let got = (0..size / std::mem::size_of::<RawFd>())
                        .map(|at| OwnedFd::from_raw_fd(std::ptr::read_unaligned(data.cast::<RawFd>().add(at))));
                    fds.extend(got);
                }
                libc::SCM_CREDENTIALS => pid = std::ptr::read_unaligned(data.cast::<libc::ucred>()).pid,
                _ => {}
            }
            header = libc::CMSG_NXTHDR(&msg, header);
        }
        size as usize
    };
    if size == 0 {
        return Ok(None);
    }
    Ok(Some(Received { event: Event::parse(&bytes[..size])?, fds, pid }))
}

/// unix(7): a SEQPACKET message is bounded by the send buffer (208 KiB where nobody changed it).
const PART_BYTES: usize = 64 << 10;
const ORDER_MAX_BYTES: usize = PART_BYTES + 1;

/// The next order; None when P0 is gone. `wait` false does not block.
pub fn receive_order(fd: RawFd, wait: bool) -> io::Result<Option<Order>> {
    let flags = if wait { 0 } else { libc::MSG_DONTWAIT };
    let mut small = [0u8; 16];
    // SAFETY: the buffer outlives the call. MSG_TRUNC returns the true length of the message that stays queued.
    let peek =
        unsafe { libc::recv(fd, small.as_mut_ptr().cast(), small.len(), flags | libc::MSG_PEEK | libc::MSG_TRUNC) };
    let size = crate::sys::check(peek as i64)? as usize;
    if size > ORDER_MAX_BYTES {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    let mut bytes = vec![0u8; size];
    // SAFETY: the buffer outlives the call.
    let size =
        crate::sys::check(unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags) } as i64)? as usize;
    if size == 0 {
        return Ok(None);
    }
    Order::parse(&bytes[..size]).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_survives_the_way() {
        for event in [
            Event::Listening(vec![]),
            Event::Listening(vec![Used { blocks: 7, inodes: 1 << 40 }, Used { blocks: 0, inodes: 2 }]),
            Event::Stopped(20),
            Event::Continued,
            Event::Ended(9, true),
            Event::Ended(0, false),
            Event::GuardLost(7),
            Event::MemoryLimit,
            Event::Lent,
        ] {
            assert_eq!(Event::parse(&event.bytes()).unwrap(), event);
        }
        for order in [
            Order::Build,
            Order::Start,
            Order::Traced,
            Order::Lend,
            Order::Signal { number: 15, group: true },
            Order::Restored(3),
            Order::Cover { part: b"{}".to_vec(), last: true },
            Order::Cover { part: Vec::new(), last: false },
        ] {
            assert_eq!(Order::parse(&order.bytes()).unwrap(), order);
        }
        assert!(Event::parse(b"Lx").is_err() && Event::parse(b"").is_err() && Order::parse(b"zzzzzz").is_err());
    }
}
