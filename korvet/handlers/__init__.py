"""The handlers, one file per API key: a wire message in, calls into the domain, a wire message out.

The four of delegation tokens, of which there are none, have one file. Each registers itself (registry.py) when it is
imported, which happens here. The head of a file has the errors that its API may answer, besides those for missing
rights, and for a Redis, or replicas of it, that are away.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
