//! One file per mechanism; the order in which they run is in `init.rs`.

pub mod beside;
pub mod caps;
pub mod dev;
pub mod env;
pub mod exec;
pub mod fds;
pub mod guards;
pub mod landlock;
pub mod limits;
pub mod mounts;
pub mod overlay;
pub mod record;
pub mod seccomp;
pub mod snapshot;
pub mod userns;
