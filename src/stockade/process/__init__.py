"""Start commands and report how they ended.

Read next: ``api.py`` (run, Popen, wrap, decide), ``_exec.py`` (the only module that creates
a process), ``receipt.py`` (what the launcher proved).
"""
