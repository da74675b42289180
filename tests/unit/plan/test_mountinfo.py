"""Mount tables: submounts, escapes, and a second spelling of one directory."""

from __future__ import annotations

import re
from pathlib import Path

from stockade.plan import mountinfo

TEXT = r"""
20 1 254:0 / / rw,relatime - ext4 /dev/vda rw
21 20 0:20 / /home/u/My\040Disk rw - ext4 /dev/vdb rw
22 21 0:21 / /home/u/My\040Disk/inner rw - tmpfs t rw
23 20 254:0 /home/u/src /mnt/alias ro,nosuid - ext4 /dev/vda rw
24 20 0:22 / /proc rw - proc proc rw
broken line
"""


def test_escaped_names_are_undone_and_broken_lines_are_skipped() -> None:
    points = [mount.point for mount in mountinfo.parse(TEXT)]
    assert points == ["/", "/home/u/My Disk", "/home/u/My Disk/inner", "/mnt/alias", "/proc"]


def test_only_the_top_most_submounts_are_given() -> None:
    assert mountinfo.submounts(mountinfo.parse(TEXT), "/home/u") == ("/home/u/My Disk",)


def test_a_bind_mount_gives_an_alias_of_what_lies_below_it() -> None:
    mounts = mountinfo.parse(TEXT)
    paths = ("/home/u/src/.env", "/home/u/other", "/mnt/alias/x")
    assert mountinfo.aliases(mounts, paths) == (
        ("/home/u/src/.env", "/mnt/alias/.env"), ("/mnt/alias/x", "/home/u/src/x"))


def test_the_table_of_this_process_has_a_root() -> None:
    assert any(mount.point == "/" for mount in mountinfo.read())


def test_the_root_is_no_mount_below_itself() -> None:
    assert "/" not in mountinfo.submounts(mountinfo.parse(TEXT), "/")


def test_what_a_bind_shows_has_a_place_in_the_rest_of_its_file_system() -> None:
    assert mountinfo.sources(mountinfo.parse(TEXT)) == (("/mnt/alias", "/home/u/src"),)


def test_mounts_that_others_answer_for_are_known_by_their_type_here_and_in_the_launcher() -> None:
    text = "30 20 0:40 / /home/u/away rw - fuse.sshfs host: rw\n31 20 0:41 / /home/u/share rw - nfs4 host:/x rw\n"
    assert [mount.distant for mount in mountinfo.parse(text)] == [True, True]
    assert not any(mount.distant for mount in mountinfo.parse(TEXT))
    source = (Path(__file__).resolve().parents[3] / "launcher/src/persist/distant.rs").read_text(encoding="utf-8")
    names = source.partition("const DISTANT")[2].partition("= [")[2].partition("]")[0]
    assert re.findall(r'"([^"]+)"', names) == sorted(mountinfo.DISTANT)
