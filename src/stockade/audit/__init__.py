"""The audit log: what was applied, in one chain that somebody else can check.

Read next: ``chain.py`` (one record), ``segments.py`` (files), ``log.py`` (writing), ``verify.py`` (checking).
"""
