"""What this host can keep, and where the calling process stands.

Owns: facts of the kernel, the probe with the real launcher, the kept answers, and the box around. Fails closed:
what cannot be read or tried is not there. Read next: ``facts.py`` (what is read), ``probe.py`` (what is tried with
the real launcher), ``active.py`` (outside a box, in one, or in somebody else's sandbox).
"""
