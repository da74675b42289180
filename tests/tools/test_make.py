"""make and gcc: a library, a program, an install below the project; CMake has the same profile."""

from __future__ import annotations

from requirements import requirement
from support.actors import Actor
from tools.support import Work, siege

MAKEFILE = """all: loot app
loot: ; sh loot.sh
libanswer.so: answer.c ; $(CC) -shared -fPIC -o $@ $<
app: app.c libanswer.so ; $(CC) -o $@ app.c -L. -lanswer -lpthread -Wl,-rpath,'$$ORIGIN'
install: all ; mkdir -p out && install -m755 app libanswer.so out/
show: install ; out/app
.PHONY: all loot install show
"""
FILES = {"Makefile": MAKEFILE, "answer.c": "int answer(void) { return 42; }\n",
         "app.c": "#include <stdio.h>\nint answer(void);\nint main(void) { printf(\"answer %d\\n\", answer()); }\n"}


@requirement("E.builds")
def test_make_builds_and_installs_and_a_makefile_gets_nothing(actor: Actor) -> None:
    siege(actor, Work(
        files=FILES, commands=[["gcc", "-c", "-o", "answer.o", "answer.c"], ["make", "-j2"], ["make", "-s", "show"]],
        shows="answer 42", clean=["app", "libanswer.so", "answer.o", "out"]))
