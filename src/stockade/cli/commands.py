"""Every command and option of this version, as records.

Owns: names, help texts and examples (a test runs the examples). The parser, ``--help`` and the
completion scripts all read these records. ``LATER`` are words of the product that this version
does not have; they are named so that the answer can say so. Read next: ``grammar.py``.
"""

from __future__ import annotations

from stockade.cli.grammar import JSON, Command, Option

LATER = ("mcp", "lint", "gateway", "app")

# What a box may be asked for; the same words for run, shell, explain and why.
BOX = (
    Option(name="--tier", metavar="TIER", complete="tier", help="off, standard, guarded, strict or auto"),
    Option(name="--as", metavar="CLASS", complete="class", help="who chose the command: operator, agent ..."),
    Option(name="--profile", metavar="P|FILE", repeat=True, complete="profile", help="defaults and grants of a tool"),
    Option(name="--cwd", metavar="DIR", complete="dir", help="working directory"),
    Option(name="--read", metavar="PATH", repeat=True, complete="file", help="show a path, read-only"),
    Option(name="--write", metavar="PATH", repeat=True, complete="file", help="make a path a write root"),
    Option(name="--hide", metavar="PATH", repeat=True, complete="file", help="hide a path; wins over every grant"),
    Option(name="--allow-socket", metavar="NAME|PATH", repeat=True, complete="socket", help="grant a socket"),
    Option(name="--allow", metavar="NAME", repeat=True, complete="allow", help="a named grant, such as git-config"),
    Option(name="--net", metavar="none|host", complete="net", help="the network of the box"),
    Option(name="--publish", metavar="PORT", repeat=True, help="refused: this version cannot publish a port"),
    Option(name="--env", metavar="NAME[=VALUE]", repeat=True, complete="env", help="pass a variable, or set one"),
    Option(name="--env-file", metavar="F", repeat=True, complete="file",
           help="NAME or NAME=VALUE on each line, taken as written"),
    Option(name="--timeout", metavar="TIME", help="wall clock, such as 30s or 5m; then status 124"),
    Option(name="--memory", metavar="SIZE", help="memory, such as 512M or 2G"),
    Option(name="--pids", metavar="N", help="processes and threads"),
    Option(name="--cpu-time", metavar="TIME", help="processor time of each process"),
    Option(name="--files", metavar="N", help="open files of each process"),
    Option(name="--tmp", metavar="memory[:SIZE]|disk", complete="tmp", help="where the private /tmp is"),
    Option(name="--cache", metavar="keep|ephemeral|off", complete="cache", help="caches of the profile"),
    Option(name="--on-persistence", metavar="report|quarantine|fail", complete="persistence",
           help="new places that run code later: say so, move them away, or fail the run"),
    Option(name="--device", metavar="D", repeat=True, complete="file", help="a device below /dev"),
    Option(name="--accept", metavar="TIER|PROMISE", repeat=True, complete="accept",
           help="what may be lost instead of a refusal"),
)

_TALK = (
    Option(name="--quiet", short="-q", help="nothing of Stockade on standard error but errors"),
    Option(name="--verbose", short="-v", help="say which values were used and where they came from"),
)
_RECEIPT = Option(name="--receipt", metavar="FILE|-|fd:N", complete="file",
                  help="what was proved: JSON to a file or descriptor, a table to standard output")
_DRY = Option(name="--dry-run", help="say what would be done, do nothing")

_RUN = Command(
    name="run", summary="run a command in a box", handler="run:run", words="CMD [ARG...]", runs=True,
    at_least=1, at_most=None, failure=125, complete="command", options=(*BOX, _RECEIPT, *_TALK),
    text="Ends as the command ended, also by the same signal. 124: the time limit. 125: every failure of "
         "Stockade itself. 126: not executable. 127: not found.",
    more=("On standard error, each line begins with 'stockade:'. Always: errors, what the box gives up or does not "
          "get, files of the home that are lost, and the hint after a git command that could not write its "
          "configuration. On a terminal also: the tier, limits that ended the box, new places that run code later, and "
          "a hint after a failure; elsewhere this process becomes the launcher at once and nothing stays to say them: "
          "--receipt FILE or stockade show last has them.",),
    examples=("stockade run -- sh -c 'echo in a box'", "stockade run --tier strict --receipt - true",
              "stockade run --on-persistence fail -- sh -c 'echo built > /tmp/out.txt'",
              "stockade run --tier strict --net host --env GREETING=hello --timeout 30s -- sh -c 'echo $GREETING'"))

_SHELL = Command(
    name="shell", summary="start your shell in a box", handler="run:shell", failure=125,
    options=(*BOX, _RECEIPT, *_TALK),
    text="The shell of $SHELL, else of the account. A tool that it starts has the shell's box: name the tool's "
         "profile for its caches and its network.",
    examples=("echo 'echo in a box' | stockade shell --quiet",
              "echo 'npm --version' | stockade shell --profile npm --quiet"))

_EXPLAIN = Command(
    name="explain", summary="the decision for a command, and where every value came from",
    handler="explain:explain", words="CMD [ARG...]", runs=True, at_least=1, at_most=None, complete="command",
    options=(*BOX, Option(name="--argv", help="print only the launcher line, usable any number of times"), JSON),
    text="Starts nothing. Status 0: it would run. 1: it would be refused (with --argv: said on standard error).",
    examples=("stockade explain -- git status", "stockade explain --json --tier strict -- true",
              "eval \"$(stockade explain --argv --tier strict -- true)\""))

_WHY = Command(
    name="why", summary="which rule allows or denies a path or host, and the grant that changes it",
    handler="why:why", words="PATH|HOST", at_least=1, at_most=1, complete="file",
    options=(Option(name="--write", help="ask whether it can be changed"), JSON,
             *(option for option in BOX if option.name != "--write")),
    text="Status 0: allowed. 1: denied. 2: cannot tell.",
    examples=("stockade why /usr/bin/env", "stockade why ~/.ssh/id_ed25519 || true",
              "stockade why --write --tier strict . ; stockade why --tier strict example.com || true"))

_LEARN = Command(
    name="learn", summary="run a command, watch what its box kept from it, propose the smallest profile",
    handler="learn:learn", words="CMD [ARG...]", runs=True, at_least=1, at_most=None, failure=125, complete="command",
    options=(*BOX, Option(name="--save", metavar="NAME", help="write or extend that profile of yours"), JSON),
    text="Ends as the command ended; 125: every failure of Stockade itself. The report goes to standard error, after "
         "the command's own lines; with --json the document goes to standard output and all else to standard error.",
    more=("Watching slows a command that names many files, and strace or gdb do not work inside meanwhile. What it "
          "proposes is what this one run asked for: read it before you keep it. Credential stores, places that run "
          "code later and control sockets are named apart, with the option that would grant them, never proposed.",),
    # In a throw-away home: an example that is typed must leave alone what a person has.
    examples=("HOME=$(mktemp -d) sh -c 'echo hi > ~/note.txt; stockade learn --tier strict cat ~/note.txt' || true",
              "HOME=$(mktemp -d) XDG_CONFIG_HOME= sh -c "
              "'echo hi > ~/n; stockade learn --tier strict --save mytool cat ~/n' || true",
              "stockade learn --tier strict --json -- true"))

_DOCTOR = Command(
    name="doctor", summary="what this host can keep, tried with real boxes, and the remedy", handler="doctor:doctor",
    options=(JSON, Option(name="--fix", help="print the remedy and, as root, apply what is safe"), _DRY,
             Option(name="--require", metavar="TIER", complete="tier", help="status 1 when the tier cannot be had")),
    examples=("stockade doctor", "stockade doctor --require standard --json", "stockade doctor --fix --dry-run"))

_PROVE = Command(
    name="prove", summary="attack what each tier promises, on this machine, and say what held", handler="prove:prove",
    options=(Option(name="--tier", metavar="TIER", complete="tier", help="standard, guarded or strict (default: all)"),
             Option(name="--against", metavar="TOOL", help="the same attacks in another sandbox beside it: bwrap, srt"),
             Option(name="--nested", help="the boxes are inside one of standard, built by its supervisor"), JSON),
    text="Makes a home, a project and a process of its own, attacks them without a box and then in a box of each tier, "
         "and removes them; your own files are not touched. Status 0: nothing broken. 1: a receipt called a promise "
         "kept and an attack worked. 2: cannot tell.",
    more=("kept 5/5: the receipt says so, and all five attacks that work without a box were stopped. not kept, waived: "
          "the receipt says so. not tried: no attack on it works here without a box, so none proves anything.",),
    examples=("stockade prove", "stockade prove --tier strict --json",
              "stockade prove --tier guarded --against bwrap || true"))

_PS = Command(name="ps", summary="boxes that live", handler="boxes:ps", options=(JSON,),
              examples=("stockade ps", "stockade ps --json"))

_STOP = Command(
    name="stop", summary="end a box: SIGTERM to its command, then everything", handler="boxes:stop", words="RUN",
    at_least=1, at_most=1, complete="run",
    options=(Option(name="--grace", metavar="TIME", help="how long the command has after SIGTERM (default 10s)"), JSON),
    text="RUN is a run id of stockade ps, or the unique beginning of one. Status 1: it did not live.",
    examples=("stockade stop 01J0000000000000000000000 || true",))

_SHOW = Command(
    name="show", summary="the receipt of a box", handler="boxes:show", words="RUN|last", at_least=1, at_most=1,
    complete="run", options=(JSON,),
    examples=("stockade run --quiet true; stockade show last", "stockade show --json last"))

_PLAN = Command(
    name="plan", summary="stored plans of launch lines", commands=(
        Command(name="list", summary="plans in the store", handler="plans:listing", options=(JSON,),
                examples=("stockade plan list",)),
        Command(name="show", summary="one plan, readable", handler="plans:show", words="DIGEST|PIN", at_least=1,
                at_most=1, complete="plan", options=(JSON,), examples=("stockade plan show 0123456789ab || true",)),
        Command(name="gc", summary="remove plans that nobody used for a while", handler="plans:collect",
                options=(Option(name="--older-than", metavar="TIME", help="default 30d"), _DRY, JSON),
                text="Pinned plans stay.", examples=("stockade plan gc --dry-run",))),
    examples=("stockade plan list",))

_CACHE = Command(
    name="cache", summary="caches that boxes keep", commands=(
        Command(name="list", summary="caches, whose they are, and their size", handler="caches:listing",
                options=(JSON,), examples=("stockade cache list",)),
        Command(name="clear", summary="remove caches", handler="caches:clear", words="ID", at_most=None,
                complete="cacheid", options=(Option(name="--all", help="every cache"), _DRY, JSON),
                text="A cache that a live box uses stays.", examples=("stockade cache clear --all --dry-run",))),
    examples=("stockade cache list",))

_PROFILE = Command(
    name="profile", summary="defaults and grants of tools", commands=(
        Command(name="list", summary="every profile and where it lies", handler="profiles:listing", options=(JSON,),
                examples=("stockade profile list",)),
        Command(name="show", summary="a profile with what it extends", handler="profiles:show", words="P|FILE",
                at_least=1, at_most=1, complete="profile", options=(JSON,), examples=("stockade profile show npm",)),
        Command(name="check", summary="tell whether a profile is valid", handler="profiles:check", words="P|FILE",
                at_least=1, at_most=1, complete="profile", options=(JSON,), examples=("stockade profile check npm",))),
    examples=("stockade profile list",))

_POLICY = Command(
    name="policy", summary="ceilings that no request can lift", commands=(
        Command(name="show", summary="each ceiling that holds here, and the file that set it", handler="policy:show",
                options=(JSON,), text="Status 2: a policy file is invalid, and every request is refused.",
                examples=("stockade policy show", "stockade policy show --json")),
        Command(name="check", summary="tell whether policy is valid", handler="policy:check", words="[FILE]", at_most=1,
                complete="file", options=(JSON,),
                text="Without FILE: all files that hold here, and whose they are. With one: its content, and of a file "
                     "in /etc/stockade whose it is. Status 1: invalid, with file, line and reason. 2: no such file.",
                examples=("stockade policy check",
                          "f=$(mktemp); echo 'min_tier = \"guarded\"' > $f; stockade policy check $f",
                          "f=$(mktemp); echo 'min_teir = 1' > $f; stockade policy check --json $f || true"))),
    examples=("stockade policy show", "stockade policy check"))

_TRUST = Command(
    name="trust", summary="let a project's .stockade.toml widen its box", handler="trust:trust", words="[DIR]",
    at_most=1, complete="dir",
    options=(Option(name="--yes", help="do not ask"), Option(name="--revoke", help="take trust back"), JSON),
    text="Shows what widens and what changed since it was trusted last. Trust is in the content: an edit ends it. "
         "Status 1: not trusted.",
    examples=("stockade trust || true", "stockade trust --revoke || true"))

# A log has no end, and tail -f none at all: each event is a document with a schema of its own.
_LINES = Option(name="--json", help="one JSON document with a schema field on each line")
_EVENTS = (
    Option(name="--since", metavar="TIME", help="1h, 2d ... before now, or a time in UTC: 2026-11-30T12:00"),
    Option(name="--until", metavar="TIME", help="as --since"),
    Option(name="--tier", metavar="TIER", complete="tier", help="the effective tier"),
    Option(name="--outcome", metavar="WORD", help="wrapped, refused, completed, failed ..."),
    Option(name="--type", metavar="WORD", help="spawn.started, spawn.finished, spawn.decided, inside.record ..."),
    Option(name="--app", metavar="NAME", help="the registered application"),
    Option(name="--plan", metavar="DIGEST", complete="plan", help="the plan, or the beginning of its digest"),
    Option(name="--run", metavar="RUN", complete="run", help="the run id"),
    Option(name="--downgrade", help="runs at a lower tier than they asked for"),
)

_AUDIT = Command(
    name="audit", summary="the log of what was applied", commands=(
        Command(name="tail", summary="the last events", handler="audit:tail",
                options=(Option(name="--lines", short="-n", metavar="N", help="how many (default 10)"),
                         Option(name="--follow", short="-f", help="go on with those that come"), _LINES),
                examples=("stockade run --quiet true; stockade audit tail -n 2",)),
        Command(name="query", summary="events by time, tier, outcome, plan, text", handler="audit:query",
                words="[TEXT...]", at_most=None, options=(*_EVENTS, _LINES), text="Status 1: none fits.",
                examples=("stockade audit query --outcome refused --since 1h --json || true",
                          "stockade audit query --tier strict /bin/true || true")),
        Command(name="verify", summary="tell whether the log is as it was written", handler="auditcheck:check",
                words="[DIR]", at_most=1, complete="dir",
                options=(Option(name="--key", metavar="FILE", complete="file", help="the public key of its heads"),
                         JSON),
                text="Status 0: whole. 1: damaged, with the first record that is and how. 2: cannot tell. DIR is a "
                     "copy of a log (the directory log of the state home's audit), to be checked with its public key "
                     "alone.",
                examples=("stockade audit verify", "stockade audit verify --json")),
        Command(name="stats", summary="events by type, outcome and tier", handler="audit:stats", words="[TEXT...]",
                at_most=None, options=(*_EVENTS, JSON), examples=("stockade audit stats --since 1d",)),
        Command(name="export", summary="events for other programs", handler="audit:export", words="[TEXT...]",
                at_most=None,
                options=(*_EVENTS,
                         Option(name="--format", metavar="json|csv", help="default json, one event on each line")),
                examples=("stockade audit export --format csv --since 1h",)),
        Command(name="anchor", summary="the newest head, to be kept where this account cannot write",
                handler="auditcheck:anchor",
                options=(Option(name="--to", metavar="FILE", complete="file", help="append it to a file"),),
                examples=("stockade run --quiet true; stockade audit anchor",))),
    examples=("stockade audit verify", "stockade audit tail"))

_COMPLETION = Command(
    name="completion", summary="completion script for a shell", handler="completion:completion", words="SHELL",
    at_least=1, at_most=1, complete="shell",
    text="SHELL is bash, zsh or fish. For bash, this line belongs into ~/.bashrc: eval \"$(stockade completion bash)\"",
    examples=("stockade completion bash | head -n 1", "stockade completion fish | head -n 1"))

_HELP = Command(
    name="help", summary="the help of a command: the same as its --help", words="[COMMAND...]", at_most=None,
    complete="subcommand", examples=("stockade help run", "stockade help plan gc"))

ROOT = Command(
    name="stockade", summary="run a command at the isolation tier you ask for, or be told why not",
    options=(Option(name="--version", help="print the version"),),
    commands=(_RUN, _SHELL, _EXPLAIN, _WHY, _LEARN, _DOCTOR, _PROVE, _PS, _STOP, _SHOW, _PLAN, _CACHE, _PROFILE,
              _POLICY, _TRUST, _AUDIT, _COMPLETION, _HELP),
    examples=("stockade run -- sh -c 'echo in a box'", "stockade doctor", "stockade --version"))
