//! Compiles `seccomp/<arch>.toml` of the target into constants for `steps/seccomp.rs`.
//!
//! The policy is fixed when the launcher is built: at run time there is no file to
//! read, to miss or to replace. Any fault in the data stops the build.

#[path = "src/bpf.rs"]
mod bpf;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn main() {
    let arch = variable("CARGO_CFG_TARGET_ARCH");
    let source = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let generated =
        generate(&source.join("seccomp"), &arch).unwrap_or_else(|e| panic!("seccomp policy of {arch}: {e}"));
    let target = PathBuf::from(variable("OUT_DIR")).join("seccomp_filters.rs");
    std::fs::write(&target, generated).unwrap_or_else(|e| panic!("{}: {e}", target.display()));
    if is_bare(&arch) {
        link_nothing(&PathBuf::from(variable("OUT_DIR")));
    }
    println!("cargo::rustc-check-cfg=cfg(bare)");
    println!("cargo::rerun-if-env-changed={KEEP}");
    for path in ["build.rs", "seccomp", "src/bpf.rs", "src/bpf/policy.rs"] {
        println!("cargo::rerun-if-changed={path}");
    }
}

/// Set, the release build keeps the C library: for a Rust whose std wants a function that `src/rt` lacks.
const KEEP: &str = "STOCKADE_C_LIBRARY";

/// The release build stands on `src/rt` alone. Debug builds and the unit tests have
/// std's own start, so they keep the system's C library.
fn is_bare(arch: &str) -> bool {
    let gnu = variable("CARGO_CFG_TARGET_OS") == "linux" && variable("CARGO_CFG_TARGET_ENV") == "gnu";
    gnu && ["x86_64", "aarch64"].contains(&arch) && variable("PROFILE") == "release" && std::env::var_os(KEEP).is_none()
}

/// std asks for these libraries by name. Found first, and empty, they give nothing:
/// a C function that `src/rt` lacks is then an undefined symbol, and no program.
fn link_nothing(out: &Path) {
    let dir = out.join("no-libraries");
    std::fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    for name in ["c", "gcc", "gcc_eh", "m", "rt", "pthread", "util", "dl"] {
        let path = dir.join(format!("lib{name}.a"));
        std::fs::write(&path, "!<arch>\n").unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    println!("cargo::rustc-cfg=bare");
    println!("cargo::rustc-link-arg-bins=-nostartfiles");
    println!("cargo::rustc-link-arg-bins=-L{}", dir.display());
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn generate(dir: &Path, arch: &str) -> Result<String, String> {
    let numbers = bpf::policy::Numbers::parse(&read(&dir.join(format!("numbers-{arch}.toml")))?)?;
    let filters = bpf::policy::parse(&read(&dir.join(format!("{arch}.toml")))?, &numbers)?;
    let names: Vec<&str> = filters.iter().map(|filter| filter.name.as_str()).collect();
    let mut out = format!("pub const NAMES: &[&str] = &{names:?};\n");
    out += "pub static PROGRAMS: &[&[libc::sock_filter]] = &[\n";
    for filter in &filters {
        out += "&[";
        for bpf::Insn { code, jt, jf, k } in bpf::compile(filter)? {
            write!(out, "libc::sock_filter{{code:{code},jt:{jt},jf:{jf},k:{k}}},").expect("a string grows");
        }
        out += "],\n";
    }
    out += "];\n";
    out += &traced(&filters, &numbers);
    // A wrong number would allow another call than the reviewed one: let the
    // compiler compare the table with the libc crate, on each architecture.
    for (name, nr) in &numbers.in_libc {
        writeln!(out, "const _: () = assert!(libc::SYS_{name} == {nr});").expect("a string grows");
    }
    Ok(out)
}

/// Numbers and names of the calls that stop for the tracer, for the table of their arguments.
fn traced(filters: &[bpf::policy::Filter], numbers: &bpf::policy::Numbers) -> String {
    let stops = |call: &bpf::policy::Call| {
        call.action == bpf::policy::Action::Trace || call.rules.iter().any(|r| r.action == bpf::policy::Action::Trace)
    };
    let calls = filters.iter().flat_map(|filter| &filter.calls).filter(|(_, call)| stops(call));
    let wanted: Vec<u32> = calls.map(|(nr, _)| *nr).collect();
    let rows: Vec<(u32, &str)> =
        numbers.iter().filter(|(_, nr)| wanted.contains(nr)).map(|(name, nr)| (nr, name)).collect();
    format!("pub const TRACED: &[(u32, &str)] = &{rows:?};\n")
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}
