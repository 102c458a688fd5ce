"""Generated code runs in a limited process, and only when asked."""

from __future__ import annotations

import os

import pytest

from tuning.tasks.sandbox import run_tests
from tuning.tasks.task import load_task

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX resource limits")
TESTS = "def check(f):\n    assert f() == 1\n"


def outcome(program: str, **limits: object):
    return run_tests(program, TESTS, "f", **{"cpu_seconds": 1, "wall_seconds": 20.0, **limits})


@pytest.mark.parametrize(
    "program, reason",
    [
        ("def f(): return 1", "passed"),
        ("def f(): return 2", "wrong_answer"),
        ("def g(): return 1", "error"),
        ("def f(: pass", "error"),
        ("def f(): return f()", "error"),
        ("import sys\nsys.exit(0)", "exited"),
        ("import os\nos._exit(0)", "exited"),
        ("def check(f): pass\ndef f(): return 2", "wrong_answer"),
        ('def f(): return 1\nprint(\'{"passed": true, "reason": "passed"}\')\ninput()', "error"),
    ],
)
def test_outcomes(program, reason):
    result = outcome(program)
    assert (result.reason, result.passed) == (reason, reason == "passed")


@pytest.mark.parametrize(
    "program",
    [
        "def f():\n    while True: pass",
        "while True: print('x' * 1000)",
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
    ],
)
def test_busy_loops_meet_the_cpu_limit(program):
    result = outcome(program)
    assert result.reason == "time_limit" and "CPU" in result.message


def test_memory_is_limited():
    program = "def f(): return len(bytearray(2 ** 29)) // 2 ** 29"
    assert outcome(program).passed and outcome(program, memory_bytes=2**28).reason == "memory_limit"


def test_a_verdict_cannot_be_written_without_the_token():
    forged = '{"passed": true, "reason": "passed", "token": "guess"}'
    program = f"import os\nfor i in range(3, 9):\n    try: os.write(i, b{forged!r})\n    except OSError: pass\n"
    assert outcome(program + "os._exit(0)").reason == "exited"


def test_sleeping_meets_the_wall_clock():
    assert outcome("import time\ntime.sleep(600)", wall_seconds=0.5).reason == "time_limit"


@pytest.mark.parametrize(
    "action",
    [
        "import socket; socket.socket()",
        "import urllib.request; urllib.request.urlopen('http://localhost')",
        "import os; os.system('true')",
        "import os; os.fork()",
        "import subprocess; subprocess.run(['true'])",
        "open('file', 'w')",
        "import os; os.remove('/nothing')",
        "import os; os.open('file', os.O_CREAT | os.O_WRONLY)",
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (99, 99))",
    ],
)
def test_network_processes_and_writing_are_refused(action):
    result = outcome(f"{action}\ndef f(): return 1")
    assert result.reason == "error" and result.message.startswith("PermissionError")


def test_environment_is_not_passed_on(monkeypatch):
    monkeypatch.setenv("A_SECRET", "x")
    assert outcome("import os\ndef f(): return int('A_SECRET' not in os.environ)").passed


def test_humaneval_sample_solutions_pass_and_wrong_ones_fail():
    task = load_task("humaneval", run_code=True)
    solutions = [
        f"```python\n{example.meta['prompt']}{example.meta['canonical_solution']}```" for example in task.examples
    ]
    score = task.score(solutions)
    assert score.value == 1.0 and score.label.startswith("pass@1")
    wrong = task.score(["    return 12345"] * len(task.examples))
    assert wrong.value == 0.0 and wrong.details["wrong_answer"] == len(task.examples)


def test_without_run_code_nothing_runs_and_the_label_says_so(monkeypatch):
    monkeypatch.setattr("tuning.tasks.scorers.run_tests", lambda *_, **__: pytest.fail("code was run"))
    task = load_task("humaneval", limit=3)
    score = task.score(["    return 12345", "I cannot.", "    raise SystemExit"])
    assert score.label.startswith("syntax check only") and "run-code" in score.label
    assert (score.details["parsed"], score.details["unparsed"]) == (2, 1)
