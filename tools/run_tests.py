#!/usr/bin/env python3
"""cargo test with a progress line, the ten slowest tests, and a floor under the number of tests.

    tools/run_tests.py [--floor NAME] [argument of cargo test ..] [-- argument of the test program ..]

A failed test is printed in full as soon as it fails. The exit code is 1 if a test fails, if a test program ends before its
last test, or if fewer tests pass than pgrx-tests/floor.txt requires of a run called NAME. A test that could not test, as
pgrx-tests/untested.txt permits, counts as ignored in the last line, but not as a loss against the floor.

The stable libtest has the times of tests only as JSON, and JSON only if RUSTC_BOOTSTRAP is set when a test program runs.
"""

import json
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

FLOORS = Path(__file__).resolve().parent.parent / "pgrx-tests" / "floor.txt"
RUNNER = """--config=target.'cfg(all())'.runner = ["env", "RUSTC_BOOTSTRAP=1"]"""
AS_JSON = ["-Zunstable-options", "--format=json", "--report-time"]
UNTESTED = "NOT TESTED: "
COUNTS = ["passed", "failed", "ignored", "measured", "filtered_out"]
PROGRESS_INTERVAL = 30  # seconds, if the output is no terminal
LONG = 60  # seconds after which the progress line names a test
SLOWEST = 10


class Run:
    """What the test programs have reported, line by line."""

    def __init__(self, out):
        self.out = out
        self.shows_line = out.isatty()
        self.began = self.printed = time.monotonic()
        self.expected = 0
        self.running = {}  # the time at which each test began
        self.times = []
        self.failures = []
        self.untested = []
        self.is_complete = True
        self.totals = dict.fromkeys(COUNTS, 0)

    def read(self, line):
        # A process of a test may have left a line without its end.
        printed, start, rest = line.partition('{ "type": ')
        try:
            report = json.loads(start + rest)
        except ValueError:
            printed, report = line, {}
        if printed.strip():
            if printed.startswith(UNTESTED):
                self.untested.append(printed.removeprefix(UNTESTED).strip())
            self.print(printed.rstrip("\n"))
        if report.get("type") == "suite":
            self.read_suite(report)
        elif report.get("type") == "test":
            self.read_test(report)

    def read_suite(self, report):
        self.is_complete = report["event"] != "started"
        if self.is_complete:
            for name in self.totals:
                self.totals[name] += report[name]
            return
        if self.expected == 0:  # until now, cargo has compiled
            self.began = self.printed = time.monotonic()
        self.expected += report["test_count"]

    def read_test(self, report):
        name, event = report["name"], report["event"]
        if event == "started":
            self.running[name] = time.monotonic()
        elif event == "ignored":
            self.running.pop(name, None)
            self.expected -= 1
        elif event in ("ok", "failed"):
            self.running.pop(name, None)
            self.times.append((report["exec_time"], name))
        if event == "failed":
            self.failures.append(name)
            self.print(f"\n---- {name} ----\n{report.get('stdout') or report.get('reason', '')}")

    def print(self, text):
        self.out.write(f"\r\x1b[K{text}\n" if self.shows_line else f"{text}\n")
        self.out.flush()

    def show_progress(self):
        now = time.monotonic()
        if not self.running or now - self.printed < (1 if self.shows_line else PROGRESS_INTERVAL):
            return
        self.printed = now
        passed = len(self.times) - len(self.failures)
        text = f"  {passed} of {self.expected} passed, {len(self.failures)} failed, {now - self.began:.0f} s"
        began, name = min((began, name) for name, began in self.running.items())
        if now - began > LONG:
            text += f"; running for {now - began:.0f} s: {name}"
        self.out.write(f"\r\x1b[K{text}" if self.shows_line else f"{text}\n")
        self.out.flush()

    def finish(self, exit_code, floor):
        """Prints the summary, and returns whether the run was good."""
        problems = []
        if self.expected == 0 and exit_code:
            problems.append(f"cargo test ended with exit code {exit_code} and ran no test")
        elif not self.is_complete:
            problems.append("the test program ended while these tests were running: " + ", ".join(sorted(self.running)))
        elif exit_code and not self.failures:
            problems.append(f"cargo test ended with exit code {exit_code}")
        ran = len(self.times) - len(self.failures)
        if floor is not None and ran < floor and not self.failures:
            problems.append(f"{ran} tests have passed, and {FLOORS.name} requires {floor}")

        self.print_list("the slowest tests", [f"{took:6.1f} s  {name}" for took, name in sorted(self.times)[: -SLOWEST - 1 : -1]])
        self.print_list("not tested", sorted(self.untested))
        self.print_list("failures", sorted(self.failures))
        for problem in problems:
            self.print(f"error: {problem}")
        is_good = not problems and not self.failures
        counts = self.totals | {"passed": ran - len(self.untested), "failed": len(self.failures)}
        counts["ignored"] += len(self.untested)
        counts = "; ".join(f"{counts[name]} {name.replace('_', ' ')}" for name in COUNTS)
        result = "ok" if is_good else "FAILED"
        self.print(f"\ntest result: {result}. {counts}; finished in {time.monotonic() - self.began:.2f}s")
        return is_good

    def print_list(self, heading, lines):
        if lines:
            self.print("\n" + "\n    ".join([f"{heading}:", *lines]))


def floor_of(name, path=FLOORS):
    floors = dict(line.split()[:2] for line in path.read_text().splitlines() if line and not line.startswith("#"))
    if name not in floors:
        sys.exit(f"error: {path} has no line for {name!r}")
    return int(floors[name])


def main(arguments, cargo=("cargo",), out=sys.stdout, floors=FLOORS):
    floor = None
    if arguments[:1] == ["--floor"]:
        floor, arguments = floor_of(arguments[1], floors), arguments[2:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    command = [*cargo, "test", RUNNER, *arguments[:split], "--", *AS_JSON, *arguments[split + 1 :]]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace")
    lines = queue.SimpleQueue()

    def pass_on():
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    run = Run(out)
    with process:
        threading.Thread(target=pass_on, daemon=True).start()
        line = ""
        while line is not None:
            try:
                line = lines.get(timeout=1)
                run.read(line or "")
            except queue.Empty:
                pass
            run.show_progress()
    return 0 if run.finish(process.returncode, floor) else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
