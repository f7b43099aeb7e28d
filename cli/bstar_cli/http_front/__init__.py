"""The HTTP front as a process: ``bstar http``, and the child of a node (docs/http.md, ADR 35).

``plan`` is what a server is told, ``server`` serves it with uvicorn, ``command`` is the verb. ``node`` keeps
the process of a node's front alive, ``child`` is that process.
"""
