"""Files that are created once, by whoever comes first: how processes that share a folder agree on who does something."""

import os
import uuid
from pathlib import Path


def create_durably(path: Path, text: str) -> bool:
    """Create a file with its whole content, on disk when this returns; False where it exists already. Raises OSError.

    Nobody ever sees a part of it: the content is written under another name, and a link, unlike a rename, fails where the name
    is taken.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(draft, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return True
