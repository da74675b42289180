//! On which processor a new process begins.
//!
//! By itself a new child or thread waits in the queue of its maker's processor until
//! that sleeps: to a guest of KVM an idle processor looks taken (vcpu_is_preempted,
//! asked by select_idle_sibling in kernel/sched/fair.c). Two processors then do the
//! work of one, which is a tenth of a start. Fails closed: a task that could not be
//! let go again is an error.

use std::io;

use crate::sys::check;

/// One bit for each, up to 1024 as in glibc; on a larger machine nothing is done.
type Set = [u64; 16];

/// Has a task that does not run yet begin on another processor than ours, then lets it go
/// wherever we may. Source: sched_setaffinity(2).
pub fn start_elsewhere(task: libc::pid_t) -> io::Result<()> {
    let Some((ours, others)) = choice() else { return Ok(()) };
    if set(task, &others).is_err() {
        return Ok(()); // not to be had, or it is over already
    }
    // All is no wish at all: where the machine's set is widened later (cpuset(7)), the task's is too.
    set(task, &[u64::MAX; 16])?;
    match get(task)? == ours {
        true => Ok(()),
        false => set(task, &ours), // we have a wish ourselves
    }
}

/// Where we may run, and the same without where we do; None where there is nothing to choose.
fn choice() -> Option<(Set, Set)> {
    let mut here = 0u32;
    // SAFETY: the number lives through the call.
    check(unsafe { libc::syscall(libc::SYS_getcpu, &mut here, 0, 0) }).ok()?;
    let ours = get(0).ok()?;
    let mut others = ours;
    *others.get_mut(here as usize / 64)? &= !(1 << (here % 64));
    (others != [0; 16]).then_some((ours, others))
}

fn get(task: libc::pid_t) -> io::Result<Set> {
    let mut set: Set = [0; 16];
    // SAFETY: the set lives through the call.
    check(unsafe { libc::syscall(libc::SYS_sched_getaffinity, task, size_of::<Set>(), set.as_mut_ptr()) })?;
    Ok(set)
}

fn set(task: libc::pid_t, set: &Set) -> io::Result<()> {
    // SAFETY: as above.
    check(unsafe { libc::syscall(libc::SYS_sched_setaffinity, task, size_of::<Set>(), set.as_ptr()) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_let_go_wherever_its_maker_may_run() {
        let ours = get(0).unwrap();
        let child = std::process::Command::new("sleep").arg("60").spawn();
        let mut child = child.unwrap();
        start_elsewhere(child.id() as libc::pid_t).unwrap();
        assert_eq!(get(child.id() as libc::pid_t).unwrap(), ours);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(start_elsewhere(child.id() as libc::pid_t).is_ok(), "a task that is over is no error");
    }

    #[test]
    fn a_maker_with_a_wish_of_its_own_passes_it_on() {
        std::thread::spawn(|| {
            let ours = get(0).unwrap();
            let first = ours.iter().position(|word| *word != 0).unwrap();
            let mut one: Set = [0; 16];
            one[first] = 1 << ours[first].trailing_zeros();
            set(0, &one).unwrap();
            let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
            start_elsewhere(child.id() as libc::pid_t).unwrap();
            assert_eq!(get(child.id() as libc::pid_t).unwrap(), one);
            child.kill().unwrap();
            child.wait().unwrap();
        })
        .join()
        .unwrap();
    }
}
