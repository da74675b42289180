"""cargo: a crate of the registry, C compiled by a build script, a test."""

from __future__ import annotations

from requirements import requirement
from support.actors import Actor
from tools.support import TOKEN, Tool, Work, siege

MANIFEST = """[package]
name = "t"
version = "1.0.0"
edition = "2021"
[dependencies]
itoa = "=1.0.11"
[build-dependencies]
cc = "=1.0.83"
"""
BUILD = """fn main() {
    std::process::Command::new("sh").arg("loot.sh").status().unwrap();
    cc::Build::new().file("native.c").compile("native");
}
"""
MAIN = """extern "C" { fn answer() -> i32; }
fn main() { println!("answer {}", itoa::Buffer::new().format(unsafe { answer() })); }
#[test]
fn answers() { assert_eq!(unsafe { answer() }, 42); }
"""
FILES = {"Cargo.toml": MANIFEST, "build.rs": BUILD, "src/main.rs": MAIN, "native.c": "int answer(void) { return 42; }\n"}


@requirement("E.packages")
def test_cargo_builds_and_tests_and_a_build_script_gets_nothing(actor: Actor, rust: Tool) -> None:
    siege(actor, Work(
        files=FILES, commands=[["cargo", "test", "-q"], ["cargo", "run", "-q"]], shows="answer 42", clean=["target"],
        locks=["Cargo.lock"], caches=[".cargo/registry"], tokens=[".cargo/credentials.toml"],
        token_text=f"[registry]\ntoken = \"{TOKEN}\"\n", tool=rust))
