"""What starting Spark leaves in the user's cache directory, `$XDG_CACHE_HOME/esker`.

    java-…/bin/java     a Java that Spark can start, see java.py
    spark-…/            the installed Spark, without its second copy of the Python modules
    classes-….jsa       Java classes as an earlier session had them in memory

All of it can be deleted while no session runs, and is made again. A name holds a digest of what the
content depends on and the content never changes, so any number of processes can share it, and a new
version of Java or Spark gets files of its own. Nothing of a store lies here: this is no business of
`storage/files.py`, and nothing has to survive a loss of power.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path


def root() -> Path:
    """The directory, which need not be there."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "esker"


def digest(*parts: object) -> str:
    """A short name for all of these together."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:12]


def tree(kind: str, scripts: Mapping[str, str], links: Mapping[str, Path]) -> Path:
    """A directory with these executables and these symbolic links in it.

    It is put together under another name and renamed, so that nobody sees half of it.
    """
    path = root() / f"{kind}-{digest(*sorted(scripts.items()), *sorted(links.items()))}"
    if path.is_dir():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{kind}-", dir=path.parent))
    try:
        for name, text in scripts.items():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            (made / name).write_text(text, encoding="utf-8")
            (made / name).chmod(0o755)
        for name, target in links.items():
            (made / name).symlink_to(target)
        made.chmod(0o755)
        with contextlib.suppress(OSError):  # another process was faster: its tree is the same
            made.rename(path)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return path


def holds(path: Path) -> bool:
    """Whether this file is there."""
    return path.is_file()


def unfinished(path: Path) -> Path:
    """Where this process may write what becomes `path`. Removes what dead processes left there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f"*{path.name}.*"):
        pid = left.suffix.removeprefix(".")
        if not pid.isdigit() or not Path(f"/proc/{pid}").exists():
            left.unlink(missing_ok=True)
    return path.with_name(f"{path.name}.{os.getpid()}")


def finish(made: Path, path: Path) -> bool:
    """Give what was made its name; false if nothing was made."""
    try:
        made.replace(path)
    except FileNotFoundError:
        return False
    return True


def forget(path: Path) -> None:
    """Remove a file that may be there."""
    path.unlink(missing_ok=True)
