//! The box socket: what processes inside tell the record.
//!
//! Owns bounded, never blocking reading: at most 64 connections, 8 KB a message,
//! a budget of messages per second for each; a connection over its rate is
//! closed. P0 stamps run id and `origin: inside`, so nothing inside can write a
//! record that looks as if it came from outside.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

const CONNECTIONS_MAX: usize = 64;
const MESSAGE_MAX_BYTES: usize = 8 << 10;
const RATE_PER_SECOND: u32 = 100;
/// Per wake-up, so that one talker cannot hold the supervisor.
const BATCH: usize = 16;

struct Connection {
    fd: OwnedFd,
    since: Instant,
    count: u32,
}

#[derive(Default)]
pub struct Inside {
    listener: Option<OwnedFd>,
    connections: Vec<Connection>,
    pub received: u64,
}

impl Inside {
    pub fn listen(&mut self, listener: OwnedFd) {
        self.listener = Some(listener);
    }

    /// Every descriptor to wait for.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        // A full house waits in the backlog; not polling the listener keeps us from spinning.
        let listener = self.listener.as_ref().filter(|_| self.connections.len() < CONNECTIONS_MAX);
        listener.map(|l| l.as_raw_fd()).into_iter().chain(self.connections.iter().map(|c| c.fd.as_raw_fd()))
    }

    /// Takes what is there; each message goes to `record`.
    pub fn serve(&mut self, mut record: impl FnMut(&[u8])) {
        self.accept();
        let mut received = 0;
        self.connections.retain_mut(|connection| {
            connection.read(&mut |message| {
                received += 1;
                record(message);
            })
        });
        self.received += received;
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        while self.connections.len() < CONNECTIONS_MAX {
            let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            // SAFETY: null address pointers ask for no address.
            let fd = unsafe { libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags) };
            if fd < 0 {
                return;
            }
            // SAFETY: the kernel just gave us this descriptor.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            self.connections.push(Connection { fd, since: Instant::now(), count: 0 });
        }
    }
}

impl Connection {
    /// False when the connection is to be closed.
    fn read(&mut self, record: &mut impl FnMut(&[u8])) -> bool {
        let mut buffer = [0u8; MESSAGE_MAX_BYTES];
        for _ in 0..BATCH {
            // SAFETY: the buffer lives through the call. MSG_TRUNC gives the true length.
            let size = unsafe {
                let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
                libc::recv(self.fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags)
            };
            if size < 0 {
                return std::io::Error::last_os_error().kind() == std::io::ErrorKind::WouldBlock;
            }
            let size = size as usize;
            if size == 0 || size > MESSAGE_MAX_BYTES || !self.within_rate() {
                return false;
            }
            record(&buffer[..size]);
        }
        true
    }

    fn within_rate(&mut self) -> bool {
        if self.since.elapsed() > Duration::from_secs(1) {
            (self.since, self.count) = (Instant::now(), 0);
        }
        self.count += 1;
        self.count <= RATE_PER_SECOND
    }
}
