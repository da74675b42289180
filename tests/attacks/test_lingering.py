"""Descriptors that take their time to close, handed to the supervisor from inside: it closes none of them itself."""

from __future__ import annotations

import subprocess
import time

import pytest

from requirements import requirement
from support.actors import PYTHON, WAIT_S, Actor

LINGER_S = 300
# A connected TCP socket with unsent data: its last close sleeps (socket(7), SO_LINGER).
SOCKET = """
import array, os, socket, struct, sys, threading, time
keep = []
def lingering(seconds):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
    made.connect(listener.getsockname())
    keep.append((listener, listener.accept()[0]))
    made.setblocking(False)
    try:
        while True:
            made.send(b"x" * 65536)
    except BlockingIOError:
        return made
"""
BARE = SOCKET + """
made = lingering(2)
made.setblocking(True)
started = time.monotonic()
made.close()
print(time.monotonic() - started > 1)
"""
HAND_OVER = SOCKET + f"""
def send(link, data, *sockets):
    link.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [one.fileno() for one in sockets]).tobytes())])
way = sys.argv[1]
def tire():
    # While the supervisor rests, what is sent next waits, and is looked at together.
    for _ in range(130):
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.setblocking(False)
        try:
            link.connect("/run/stockade/box.sock")
            send(link, b"x", sys.stdin)
        except OSError:
            pass
        link.close()
for _ in range(3):
    made = lingering({LINGER_S})
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect("/run/stockade/box.sock")
    if way == "behind an empty one":
        tire()
        link.send(b"")
    if way == "behind one that is too long":
        link.send(b"y" * 9000)
    ask = way == "with a request"
    try:
        send(link, b"stockade.nest.v1\\n" if ask else b"hello", *([made] * (5 if ask else 1)))
    except OSError:
        pass  # the supervisor was quicker to close what says too much
    # The supervisor may have closed its copy before: then this is the last close, and it is this thread that sleeps.
    threading.Thread(target=os.close, args=(made.detach(),), daemon=True).start()
    keep.append(link)
print("handed over", flush=True)
time.sleep(1000)
"""


@requirement("proc.reaped")
def test_without_a_box_the_last_close_of_such_a_socket_takes_its_time(actor: Actor) -> None:
    assert actor.call([PYTHON, "-I", "-c", BARE]).stdout == b"True\n"


@requirement("proc.reaped")
@pytest.mark.parametrize("way", ["in a message", "behind one that is too long", "behind an empty one", "with a request"])
def test_a_box_ends_as_soon_as_it_is_asked_to(actor: Actor, way: str) -> None:
    with actor.live([PYTHON, "-I", "-c", HAND_OVER, way], tier="strict", stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"handed over\n"
        started = time.monotonic()
        child.terminate()
        try:
            child.wait(timeout=WAIT_S)
        finally:
            child.kill()
        assert time.monotonic() - started < LINGER_S / 2
