//! The box socket: what processes inside tell the record, and ask for.
//!
//! Owns bounded, never blocking reading: at most 64 connections, 8 KB a message,
//! one budget of messages and bytes for the box; a connection that goes over it
//! is closed and counted, and so are those that have stayed when others wait. P0 stamps run id and `origin: inside`, so nothing inside can write a
//! record that looks as if it came from outside. A message that asks for a box inside this one
//! takes its connection along (nested.rs).

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::nested::request::MAGIC;
use crate::nested::wire;

const CONNECTIONS_MAX: usize = 64;
/// How long a connection may stand in the way of others, whatever it says: who asks for a box does so at once.
const STAY: Duration = Duration::from_secs(1);
const MESSAGE_MAX_BYTES: usize = 8 << 10;
/// For the whole box: connections are free, so a budget of their own would be none.
const RATE_PER_SECOND: u32 = 100;
const SECOND: Duration = Duration::from_secs(1);
/// Between two attempts to close what could not be closed.
const RELIEF: Duration = Duration::from_millis(100);
const BYTES_PER_SECOND: usize = 64 << 10;
/// For the whole life of the box: what a log can be made to hold from inside.
const BYTES_MAX: usize = 16 << 20;
/// Per wake-up, so that one talker cannot hold the supervisor.
const BATCH: usize = 16;

/// Somebody inside asks for a box: the connection, and the descriptors that came.
pub struct Asked {
    pub link: OwnedFd,
    pub fds: Vec<OwnedFd>,
}

/// What the records of boxes inside may take of the log: at once, and for each second that the box lives.
const NESTED_BYTES: usize = 16 << 20;
const NESTED_BYTES_PER_SECOND: usize = 16 << 10;

/// What the box has sent in the current second, and ever.
struct Budget {
    since: Instant,
    /// Requests, and what was refused: neither is in the record, and each makes work.
    work: u32,
    count: u32,
    bytes: usize,
    total: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { since: Instant::now(), work: 0, count: 0, bytes: 0, total: 0 }
    }
}

impl Budget {
    /// False when a message of this size is too much. Only what is taken counts: what is refused costs the
    /// box a connection, and not its record for the rest of its life.
    fn spend(&mut self, size: usize) -> bool {
        self.begin_second();
        let (count, bytes, total) = (self.count + 1, self.bytes + size, self.total + size);
        if count > RATE_PER_SECOND || bytes > BYTES_PER_SECOND || total > BYTES_MAX {
            return false;
        }
        (self.count, self.bytes, self.total) = (count, bytes, total);
        true
    }

    fn begin_second(&mut self) {
        if self.since.elapsed() > SECOND {
            (self.since, self.work, self.count, self.bytes) = (Instant::now(), 0, 0, 0);
        }
    }

    fn work(&mut self) {
        self.begin_second();
        self.work += 1;
    }

    /// When there may be work again, if there was too much.
    fn tired(&self) -> Option<Instant> {
        (self.work >= RATE_PER_SECOND).then(|| self.since + SECOND)
    }
}

struct Connection {
    fd: OwnedFd,
    since: Instant,
}

#[derive(Default)]
pub struct Inside {
    listener: Option<OwnedFd>,
    /// In the order in which they came.
    connections: Vec<Connection>,
    budget: Budget,
    pub received: u64,
    pub asked: Vec<Asked>,
    /// Connections that were closed for saying too much.
    pub closed: u64,
    /// Those that were closed because others waited.
    pub crowded: u64,
    /// Until when nothing is taken.
    rests: Option<Instant>,
    /// Of records of the boxes inside: since the first, and how many bytes.
    nested: Option<(Instant, usize)>,
}

impl Inside {
    pub fn listen(&mut self, listener: OwnedFd) {
        self.listener = Some(listener);
    }

    /// Every descriptor to wait for.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        // A full house waits in the backlog; not polling the listener keeps us from spinning.
        let listener = self.listener.as_ref().filter(|_| !self.full());
        let all = listener.map(|l| l.as_raw_fd()).into_iter().chain(self.connections.iter().map(|c| c.fd.as_raw_fd()));
        all.filter(|_| self.rests.is_none())
    }

    fn full(&self) -> bool {
        self.connections.len() >= CONNECTIONS_MAX
    }

    /// When `serve` has to make room, if nothing happens before.
    pub fn until(&self) -> Option<Instant> {
        if self.rests.is_some() {
            return self.rests;
        }
        self.connections.first().filter(|_| self.full()).map(|oldest| oldest.since + STAY)
    }

    /// Takes what is there; each message goes to `record`. One request for a box at a time, and a rest when there
    /// was more to do than a box may give: what was said meanwhile waits in the socket.
    pub fn serve(&mut self, mut record: impl FnMut(&[u8])) {
        if self.resting() {
            return;
        }
        self.accept();
        let (mut open, mut gone) = (vec![], vec![]);
        let mut rest = std::mem::take(&mut self.connections).into_iter();
        for Connection { fd, since } in rest.by_ref() {
            let received = &mut self.received;
            let end = read(&fd, &mut self.budget, &mut |message| {
                *received += 1;
                record(message);
            });
            match end {
                End::Open => open.push(Connection { fd, since }),
                // An empty message looks the same, and another may wait behind it.
                End::Closed => {
                    self.budget.work();
                    gone.push(fd);
                }
                End::TooMuch(fds) => {
                    self.closed += 1;
                    gone.extend(fds);
                    gone.push(fd);
                }
                End::Asks(fds) => self.asked.push(Asked { link: fd, fds }),
            }
            if !self.asked.is_empty() || self.budget.tired().is_some() || gone.len() > wire::MAX_FDS {
                break;
            }
        }
        wire::discard(gone);
        self.resting();
        self.connections = open.into_iter().chain(rest).collect();
        self.make_room();
    }

    /// Records of boxes inside go to the same log.
    pub fn charge(&mut self, bytes: usize) {
        if bytes > 0 {
            self.nested.get_or_insert_with(|| (Instant::now(), 0)).1 += bytes;
        }
    }

    /// True while there may be no further box inside, for the sake of the log.
    pub fn spent(&self) -> bool {
        let over = |(since, bytes): (Instant, usize)| {
            bytes > NESTED_BYTES.saturating_add(since.elapsed().as_secs() as usize * NESTED_BYTES_PER_SECOND)
        };
        self.nested.is_some_and(over)
    }

    /// True while the box has had what it may of this second, or what it sent cannot be closed.
    fn resting(&mut self) -> bool {
        let tired = self.budget.tired().filter(|at| Instant::now() < *at);
        self.rests = tired.or_else(|| wire::burdened().then(|| Instant::now() + RELIEF));
        self.rests.is_some()
    }

    /// What they had said is read.
    fn make_room(&mut self) {
        if self.full() && self.rests.is_none() {
            let stayed = self.connections.iter().take_while(|c| c.since.elapsed() >= STAY).count();
            self.crowded += stayed as u64;
            wire::discard(self.connections.drain(..stayed).map(|c| c.fd).collect());
        }
    }

    fn accept(&mut self) {
        let Some(listener) = self.listener.as_ref().map(AsRawFd::as_raw_fd) else { return };
        while !self.full() {
            let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            // SAFETY: null address pointers ask for no address.
            let fd = unsafe { libc::accept4(listener, std::ptr::null_mut(), std::ptr::null_mut(), flags) };
            if fd < 0 {
                return;
            }
            // SAFETY: the kernel just gave us this descriptor.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            self.connections.push(Connection { fd, since: Instant::now() });
        }
    }
}

impl Drop for Inside {
    /// What waits in them is closed by the end of this process, which waits for nothing.
    fn drop(&mut self) {
        std::mem::forget(std::mem::take(&mut self.connections));
    }
}

enum End {
    Open,
    /// Nobody is left at the other end, as far as one can see.
    Closed,
    /// With what came with the message.
    TooMuch(Vec<OwnedFd>),
    Asks(Vec<OwnedFd>),
}

fn read(fd: &OwnedFd, budget: &mut Budget, record: &mut impl FnMut(&[u8])) -> End {
    let mut buffer = vec![0u8; MESSAGE_MAX_BYTES]; // a caller may have left us 32 KB of stack
    for _ in 0..BATCH {
        match wire::receive(fd.as_raw_fd(), &mut buffer) {
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return End::Open,
            Err(_) => return End::TooMuch(vec![]),
            Ok((0, fds)) if fds.is_empty() => return End::Closed,
            Ok((size, fds)) if size > MESSAGE_MAX_BYTES => return End::TooMuch(fds),
            // It holds no byte of the record, and has its own bound: the boxes that live (nested.rs).
            Ok((size, fds)) if &buffer[..size] == MAGIC => {
                budget.work();
                return End::Asks(fds);
            }
            Ok((size, fds)) if fds.is_empty() && budget.spend(size) => record(&buffer[..size]),
            Ok((_, fds)) => {
                budget.work();
                return End::TooMuch(fds);
            }
        }
    }
    End::Open
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_house_makes_room_for_others_after_a_while_and_a_house_with_room_sends_nobody_away() {
        let pairs: Vec<_> = (0..CONNECTIONS_MAX).map(|_| wire::pair().expect("sockets")).collect();
        let (mut here, ends): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let long_ago = Instant::now().checked_sub(STAY).expect("a clock that has run for a second");
        let mut inside = Inside::default();
        let last = here.pop().expect("one");
        inside.connections = here.into_iter().map(|fd| Connection { fd, since: long_ago }).collect();
        inside.serve(|_| ());
        assert_eq!((inside.connections.len(), inside.until()), (CONNECTIONS_MAX - 1, None));
        inside.connections.push(Connection { fd: last, since: Instant::now() + STAY });
        assert_eq!(inside.until(), Some(long_ago + STAY));
        wire::send(ends[0].as_raw_fd(), b"heard", &[], false).expect("room");
        let mut heard = vec![];
        inside.serve(|said| heard.push(said.to_vec()));
        assert_eq!((inside.connections.len(), inside.crowded), (1, CONNECTIONS_MAX as u64 - 1));
        assert_eq!((heard, inside.until()), (vec![b"heard".to_vec()], None));
    }

    #[test]
    fn one_request_for_a_box_is_taken_at_a_time_and_the_others_wait() {
        let pairs: Vec<_> = (0..3).map(|_| wire::pair().expect("sockets")).collect();
        let (here, ends): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let mut inside = Inside::default();
        inside.connections = here.into_iter().map(|fd| Connection { fd, since: Instant::now() }).collect();
        ends.iter().for_each(|end| wire::send(end.as_raw_fd(), MAGIC, &[], false).expect("room"));
        for left in [2, 1, 0] {
            inside.serve(|_| panic!("a request is no record"));
            assert_eq!((inside.asked.len(), inside.connections.len()), (1, left));
            inside.asked.clear();
        }
    }

    #[test]
    fn requests_and_what_is_refused_have_a_budget_and_then_nothing_is_taken() {
        let (here, end) = wire::pair().expect("sockets");
        let mut inside = Inside::default();
        inside.connections.push(Connection { fd: here, since: Instant::now() });
        (0..RATE_PER_SECOND).for_each(|_| inside.budget.work());
        wire::send(end.as_raw_fd(), b"later", &[], false).expect("room");
        inside.serve(|_| panic!("taken"));
        assert_eq!((inside.descriptors().count(), inside.until().is_some()), (0, true));
        inside.budget.since = Instant::now().checked_sub(SECOND * 2).expect("a clock that has run for two seconds");
        inside.budget.begin_second();
        let mut heard = 0;
        inside.serve(|_| heard += 1);
        assert_eq!((heard, inside.descriptors().count(), inside.until()), (1, 1, None));
    }

    #[test]
    fn records_of_boxes_inside_are_bounded_at_once_and_by_the_second() {
        let mut inside = Inside::default();
        inside.charge(NESTED_BYTES);
        assert!(!inside.spent());
        inside.charge(1);
        assert!(inside.spent());
        let since = Instant::now().checked_sub(SECOND * 2).expect("a clock that has run for two seconds");
        inside.nested = inside.nested.map(|(_, bytes)| (since, bytes));
        assert!(!inside.spent());
    }

    #[test]
    fn a_connection_that_seems_closed_is_not_closed_by_the_supervisor_alone() {
        let (here, end) = wire::pair().expect("sockets");
        let mut inside = Inside::default();
        inside.connections.push(Connection { fd: here, since: Instant::now() });
        wire::send(end.as_raw_fd(), b"", &[], false).expect("room");
        inside.serve(|_| panic!("an empty message is no record"));
        assert_eq!((inside.connections.len(), inside.budget.work), (0, 1));
    }

    #[test]
    fn a_second_and_a_life_have_a_budget_however_many_connections() {
        let mut budget = Budget::default();
        assert!((0..RATE_PER_SECOND).all(|_| budget.spend(1)));
        assert!(!budget.spend(1));
        let mut budget = Budget::default();
        assert!(budget.spend(BYTES_PER_SECOND) && !budget.spend(1));
        let mut budget = Budget { total: BYTES_MAX, ..Budget::default() };
        assert!(!budget.spend(1));
    }
}
