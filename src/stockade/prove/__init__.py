"""``stockade prove``: the attacks of every promise, repeated on this machine.

Owns: nothing by itself; see ``run.py`` (the order of events), ``catalogue.py`` (which attack shows
which promise), ``stage.py`` (the fixtures: a private directory and a process of its own, removed at
the end), ``sessions.py`` (without a box, in a box, in another sandbox). Fails closed: an attack that
does not work without a box proves nothing, and a promise is ``kept`` only when the receipt says so
and every attack that works without a box was stopped in it.
"""
