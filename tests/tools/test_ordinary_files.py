"""Modes, links, owners, the temp directory on disk, and a data base server that checks all of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from requirements import requirement
from support.actors import Actor
from tools.ordinary import Job, at_work, script
from tools.support import Tool

EVERY = ("strict", "guarded", "standard")
# Everything tar and cp keep: modes, times, links of both kinds, a FIFO, sparse content, a directory that passes its group on.
TREE = """mkdir -p from/sub; echo text > from/file; chmod 640 from/file; ln from/file from/hard; ln -s file from/soft; mkfifo from/pipe
truncate -s 1M from/sparse; chmod SUB from/sub; touch -d '2001-02-03 04:05:06' from/file"""
SHOW = "cd {0}; find . -mindepth 1 ! -name sub -printf '%P %m %n %y %l %TY\\n' | sort; test file -ef hard; find . -name sub -printf '%P %m\\n'"
SHOWN = "file 640 2 f  2001\nhard 640 2 f  2001\npipe 644 1 p  {0}\nsoft 777 1 l file {0}\nsparse 644 1 f  {0}\nsub SUB\n".format(time.gmtime().tm_year)


def _copied(actor: Actor, tool: str, copy: str, place: str) -> None:
    """For root without the bit that ``test_a_directory_that_passes_its_group_on`` is about."""
    text = f"umask 022; {TREE}; {copy}; {SHOW.format(place)}"
    sub = "775" if actor.is_root else "2775"
    at_work(actor, Job(tool=tool, argv=script(text.replace("SUB", sub)), shows=SHOWN.replace("SUB", sub), tiers=EVERY))


@requirement("E.files")
def test_tar_keeps_modes_links_and_times(actor: Actor) -> None:
    _copied(actor, "tar -xp", "tar -cf t.tar from; mkdir to; tar -xpf t.tar -C to", "to/from")


@requirement("E.files")
def test_cp_keeps_modes_links_and_times(actor: Actor) -> None:
    _copied(actor, "cp -a", "cp -a from to", "to")


@requirement("E.files")
def test_a_directory_that_passes_its_group_on(actor: Actor) -> None:
    gaps = {("root", tier): "root-setgid" for tier in EVERY}
    at_work(actor, Job(tool="setgid directories", argv=script("mkdir d; chmod g+s d; mkdir d/e; chmod g+w d/e; stat -c %A d d/e"), tiers=EVERY,
                       shows="drwxr-sr-x\ndrwxrwsr-x\n", gaps=gaps, says="Operation not permitted"))


@requirement("E.files")
def test_git_shares_a_repository_in_a_directory_that_passes_its_group_on(actor: Actor) -> None:
    who = {f"GIT_{role}_{what}": text for role in ("AUTHOR", "COMMITTER") for what, text in (("NAME", "t"), ("EMAIL", "t@x.invalid"))}
    text = ("umask 022; git init -q --shared=group made; git -C made commit -q --allow-empty -m shared; git -C made config core.sharedRepository; "
            "stat -c %A made/.git/objects; git clone -q --bare made bare.git; git -C bare.git log --format=%s")
    at_work(actor, Job(tool="git init --shared", argv=script(text), shows="1\ndrwxrwsr-x\nshared\n", tiers=EVERY, lay="chmod 2775 .", env=who,
                       grants={"profile": ["git"]}, gaps={("root", tier): "root-setgid-git" for tier in EVERY}, says="writable by group"))


@requirement("E.files")
def test_a_temp_directory_on_disk_holds_more_than_memory_would(actor: Actor) -> None:
    """Sockets, links, programs and a file larger than the share of the memory; nothing of it stays."""
    text = ("cd /tmp; dd if=/dev/zero of=large bs=1M count=64 status=none; stat -c %s large; cp /bin/echo here; ./here program; ln large again; "
            "python3 -c \"import socket; s = socket.socket(socket.AF_UNIX); s.bind('/tmp/s'); print('socket')\"; mktemp > /dev/null; df --output=fstype /tmp | tail -1 >&2")
    at_work(actor, Job(tool="--tmp disk", argv=script(f"{text}; rm -f /tmp/large /tmp/again /tmp/here /tmp/s"), shows="67108864\nprogram\nsocket\n", tiers=EVERY,
                       grants={"tmp": "disk"}, check=_no_temp_left))


def _no_temp_left(actor: Actor, tree: str) -> None:
    state = actor.host(f"{actor.home}/.local/state/stockade")
    left = [str(path) for path in state.rglob("tmp-*")] if state.exists() else []
    assert left == [], left


@requirement("E.servers")
def test_postgres_is_set_up_started_asked_and_stopped(user: Actor, debian: Callable[..., Tool]) -> None:
    """The server wants a directory of mode 0700, shared memory, semaphores, sockets, and an account that is not root."""
    debian("/usr/lib/postgresql/15/bin/initdb", "postgresql-15")
    port = 54000 + os.getpid() % 1000
    ask = "create table if not exists t (n int); insert into t select generate_series(1, 1000); select count(*) from t"
    text = ("initdb -D data -A trust -U t --no-sync > log 2>&1 || { cat log; exit 1; }\n"
            "echo \"unix_socket_directories = '$PWD'\" >> data/postgresql.conf\n"
            f"pg_ctl -D data -o '-p {port}' -l log -w start > started || {{ cat log; exit 1; }}\n"
            f"for host in $PWD 127.0.0.1; do psql -h $host -p {port} -U t -qAtc '{ask}' postgres; done\npg_ctl -D data -m fast stop > /dev/null && echo stopped")
    at_work(user, Job(tool="postgres", argv=script(text), shows="1000\n2000\nstopped\n", tiers=EVERY, uses=Tool(path=("/usr/lib/postgresql/15/bin",))))
