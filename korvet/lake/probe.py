"""Whether a lake can be written: a small file in it, made and removed."""

from __future__ import annotations

import uuid
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from korvet.lake.files import filesystem
from korvet.lake.tables import Lake


def problem(lake: Lake) -> str:
    """Return in one line why `lake` cannot be written, "" where it can; a directory is made where it is missing."""
    name = f".korvet-doctor-{uuid.uuid4().hex}"
    try:
        if not urlsplit(lake.path).scheme:
            Path(lake.path).mkdir(parents=True, exist_ok=True)
        files = filesystem(lake.path, lake.storage_options)
        # As data files are written.
        pq.write_table(pa.table({"probe": [1]}), name, filesystem=files)
        files.delete_file(name)
    except (OSError, ValueError, DeltaError) as error:
        return " ".join(str(error).split())[:300]
    return ""
