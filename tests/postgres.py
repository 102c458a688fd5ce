"""A real PostgreSQL server for the tests: a private cluster in a temporary directory, reached by a socket there."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def server_programs() -> Path | None:
    """The directory of `initdb` and `postgres`; Debian keeps them out of PATH."""
    found = shutil.which("initdb")
    folders = (
        [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    )
    return next((folder for folder in folders if (folder / "postgres").exists()), None)


@contextmanager
def running_server(programs: Path) -> Iterator[str]:
    """Start a server and yield the URL of its database; stopped and deleted in the end."""
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # a socket's path may have about 100 characters
    identity = {}
    if os.geteuid() == 0:  # the server refuses to run as root
        user = next(name for name in ("postgres", "nobody") if name in {entry.pw_name for entry in pwd.getpwall()})
        identity = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
        shutil.chown(folder, user)
    common = {"cwd": folder, "stdout": subprocess.DEVNULL, **identity}
    data = folder / "data"
    subprocess.run(
        [programs / "initdb", "-D", data, "-U", "tuner", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale", "C"],
        check=True,
        **common,
    )
    log = (folder / "log").open("w")
    server = subprocess.Popen(
        [programs / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"],
        stderr=log,
        **common,
    )
    try:
        while not (folder / ".s.PGSQL.5432").exists():
            if server.poll() is not None:
                raise RuntimeError((folder / "log").read_text())
            time.sleep(0.05)
        yield f"postgresql://tuner@/postgres?host={folder}"
    finally:
        server.send_signal(signal.SIGINT)  # at once; SIGTERM waits for every client to leave
        server.wait()
        log.close()
        shutil.rmtree(folder)
