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
    for path in ["build.rs", "seccomp", "src/bpf.rs", "src/bpf/policy.rs"] {
        println!("cargo::rerun-if-changed={path}");
    }
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
    // A wrong number would allow another call than the reviewed one: let the
    // compiler compare the table with the libc crate, on each architecture.
    for (name, nr) in &numbers.in_libc {
        writeln!(out, "const _: () = assert!(libc::SYS_{name} == {nr});").expect("a string grows");
    }
    Ok(out)
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}
