"""Run a generated program against its unit tests, in a child process with limits.

The child has a CPU, wall-clock and memory limit, an empty temporary directory, and an audit hook (PEP 578) that refuses
sockets, other processes and changes to files. This guards against accidents of a language model, not against an
attacker who knows the guard: run hostile code in a container or a virtual machine.

The file is both sides, so it imports the standard library only: the child runs it by path, isolated (`python -I`).
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass

FORBIDDEN = (
    "socket.",
    "subprocess.",
    "shutil.",
    "pty.",
    "urllib.",
    "ftplib.",
    "http.client.",
    "smtplib.",
    "webbrowser.",
    "os.system",
    "os.exec",
    "os.fork",
    "os.spawn",
    "os.posix_spawn",
    "os.startfile",
    "os.kill",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "os.chown",
    "os.chflags",
    "os.utime",
    "os.chdir",
    "resource.setrlimit",
    "resource.prlimit",
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True)
class SandboxResult:
    """`passed`, and why not: wrong_answer, error, time_limit, memory_limit or exited; `message` is the exception's."""

    passed: bool
    reason: str
    message: str = ""


def run_tests(
    program: str,
    tests: str,
    entry_point: str,
    *,
    cpu_seconds: int = 5,
    wall_seconds: float = 10.0,
    memory_bytes: int = 1 << 30,
) -> SandboxResult:
    """Run `program`, then `tests`, then check(<entry_point>), which must return for the outcome to be passed.

    A program that leaves early (`sys.exit(0)`, `os._exit(0)`) has not passed: the child has to report a token that the
    program is not given. Raises RuntimeError on systems without POSIX resource limits.
    """
    if os.name != "posix":
        raise RuntimeError("running generated code needs POSIX resource limits; without run_code the syntax is checked")
    token = secrets.token_hex(16)
    job = json.dumps(
        {
            "program": program,
            "tests": tests,
            "entry_point": entry_point,
            "token": token,
            "cpu_seconds": cpu_seconds,
            "memory_bytes": memory_bytes,
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen(
            [sys.executable, "-I", "-B", os.path.abspath(__file__)],
            cwd=folder,
            start_new_session=True,
            text=True,
            env={"HOME": folder, "PATH": os.defpath, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        try:
            reply, _ = child.communicate(job, timeout=wall_seconds)
        except subprocess.TimeoutExpired:
            return SandboxResult(False, "time_limit", f"more than {wall_seconds:g} s")
        finally:
            _kill_group(child)
    if child.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return SandboxResult(False, "time_limit", f"more than {cpu_seconds} CPU seconds")
    try:
        verdict = json.loads(reply)
        if verdict.pop("token") == token:
            return SandboxResult(**verdict)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return SandboxResult(False, "exited", f"the process ended with status {child.returncode} before the tests did")


def _kill_group(child: subprocess.Popen[str]) -> None:
    """End the child and whatever it started; it leads a session of its own, so nothing else is in the group."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.communicate()


def _refuse(event: str, args: tuple[object, ...]) -> None:
    if event.startswith(FORBIDDEN) or (event == "open" and isinstance(args[2], int) and args[2] & WRITING):
        raise PermissionError(f"{event} is not allowed here")


def _child() -> None:
    import resource  # POSIX only: the parent has checked

    job = json.load(sys.stdin)
    reply = os.dup(1)  # the program may print without end: its stdout goes nowhere, the verdict to the old one
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    limits = {
        resource.RLIMIT_CPU: job["cpu_seconds"],
        resource.RLIMIT_AS: job["memory_bytes"],
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        try:
            resource.setrlimit(kind, (limit, limit + 1 if kind == resource.RLIMIT_CPU else limit))
        except (ValueError, OSError):  # macOS refuses RLIMIT_AS; the wall clock still holds
            pass
    token = job.pop("token")
    sys.addaudithook(_refuse)
    verdict: dict[str, object] = {"passed": True, "reason": "passed"}
    try:
        scope: dict[str, object] = {"__name__": "candidate"}
        exec(compile(job["program"], "<program>", "exec"), scope)
        exec(compile(job["tests"], "<tests>", "exec"), scope)
        scope["check"](scope[job["entry_point"]])  # type: ignore[operator]
    except BaseException as error:  # SystemExit and KeyboardInterrupt fail the tests like any other
        reasons = {AssertionError: "wrong_answer", MemoryError: "memory_limit", SystemExit: "exited"}
        verdict = {
            "passed": False,
            "reason": reasons.get(type(error), "error"),
            "message": f"{type(error).__name__}: {str(error)[:300]}",
        }
    os.write(reply, json.dumps({**verdict, "token": token}).encode())
    os._exit(0)  # threads of the program must not hold the process


if __name__ == "__main__":
    _child()
