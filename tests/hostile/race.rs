//! Races a guarded name: threads rename, exchange and replace it while others try to write
//! through it. Prints how often each step succeeded; behind a guard every count is zero.
//!
//! Usage: race DIRECTORY SECONDS, where DIRECTORY/.git/hooks is the target.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

type Step = fn(&PathBuf) -> std::io::Result<()>;

fn swap_git(root: &PathBuf) -> std::io::Result<()> {
    fs::rename(root.join(".git"), root.join("moved"))?;
    fs::rename(root.join("moved"), root.join(".git"))
}

fn swap_hooks(root: &PathBuf) -> std::io::Result<()> {
    fs::rename(root.join(".git/hooks"), root.join(".git/away"))?;
    fs::rename(root.join(".git/away"), root.join(".git/hooks"))
}

fn write_hook(root: &PathBuf) -> std::io::Result<()> {
    fs::write(root.join(".git/hooks/post-commit"), "#!/bin/sh\n")?;
    fs::remove_file(root.join(".git/hooks/post-commit"))
}

fn move_onto(root: &PathBuf) -> std::io::Result<()> {
    let fresh = root.join("fresh-config");
    fs::write(&fresh, "[core]\n")?;
    fs::rename(&fresh, root.join(".git/config"))
}

fn plain_rename(root: &PathBuf) -> std::io::Result<()> {
    fs::write(root.join("plain-a"), "x")?;
    fs::rename(root.join("plain-a"), root.join("plain-b"))
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let root = Arc::new(PathBuf::from(&args[1]));
    let seconds: f64 = args[2].parse().expect("seconds");
    let stop = Arc::new(AtomicBool::new(false));
    let steps: [(&str, Step); 5] = [
        ("swap_git", swap_git), ("swap_hooks", swap_hooks), ("write_hook", write_hook), ("move_onto", move_onto), ("ok_rename", plain_rename),
    ];
    let workers: Vec<_> = steps
        .into_iter()
        .map(|(name, step)| {
            let (root, stop) = (root.clone(), stop.clone());
            let count = Arc::new(AtomicU64::new(0));
            let seen = count.clone();
            let handle = std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if step(&root).is_ok() {
                        seen.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
            (name, count, handle)
        })
        .collect();
    std::thread::sleep(Duration::from_secs_f64(seconds));
    stop.store(true, Ordering::Relaxed);
    let mut parts = Vec::new();
    for (name, count, handle) in workers {
        handle.join().expect("a thread of the race");
        parts.push(format!("\"{name}\": {}", count.load(Ordering::Relaxed)));
    }
    println!("{{{}}}", parts.join(", "));
}
