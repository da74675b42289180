"""What this host can keep, and where the calling process stands.

Read next: ``facts.py`` (what is read), ``probe.py`` (what is tried with the real launcher),
``active.py`` (outside a box, in one, or in somebody else's sandbox).
"""
