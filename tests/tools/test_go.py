"""go: a module of the proxy, cgo, go generate, a test."""

from __future__ import annotations

from requirements import requirement
from support.actors import Actor
from tools.support import TOKEN, Tool, Work, siege

MAIN = """package main

// int answer(void) { return 42; }
import "C"
import ("fmt"; "golang.org/x/text/width")

//go:generate sh loot.sh
func main() { fmt.Println("answer", C.answer(), width.Narrow.String("x")) }
"""
TEST = """package main

import ("os/exec"; "testing")

func TestLoot(t *testing.T) { if exec.Command("sh", "loot.sh").Run() != nil { t.Fail() } }
"""
FILES = {"go.mod": "module t\n\ngo 1.21\n\nrequire golang.org/x/text v0.14.0\n", "main.go": MAIN, "main_test.go": TEST}
COMMANDS = [["go", "generate", "./..."], ["go", "test", "-vet=off", "./..."], ["go", "run", "."]]


@requirement("E.packages")
def test_go_builds_and_tests_and_generate_and_test_get_nothing(actor: Actor, go: Tool) -> None:
    # The standard library is compiled once, bare: boxes find it in the user's build cache below their own.
    siege(actor, Work(
        files=FILES, commands=[["go", "mod", "tidy"], *COMMANDS], shows="answer 42 x", locks=["go.sum"], warm=COMMANDS,
        caches=["go"], tokens=[".netrc"], token_text=f"machine a.invalid password {TOKEN}\n", tool=go))
