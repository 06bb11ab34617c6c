"""Engines with the reference job on them: this one, by element and over columns, and its peers.

``registry`` names them all; nothing is imported here, so that a process that runs one of them loads the libraries of
that one.
"""
