"""Compile a resolved request into a plan: rows, guards, promises, canonical bytes.

Owns nothing at import. Fails closed: what cannot be expressed is a typed refusal, never
a weaker plan. Read next: ``compile.py`` (the order of things), ``rows.py`` (the vocabulary).
"""
