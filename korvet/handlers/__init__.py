"""The handlers, one file per API key: a wire message in, calls into the domain, a wire message out.

The four APIs of delegation tokens, which are not supported, share one file. This module imports all files, and each
registers its handlers (registry.py). The head of a file lists the errors of its API, except errors for missing rights
and for a Redis or replicas that are down.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
