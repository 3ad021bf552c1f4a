"""run_tests.py over programs that report as cargo test does: make unit."""

import io
import json
import sys
import tempfile
import unittest
from pathlib import Path

import run_tests


def started(*names):
    return [{"type": "test", "event": "started", "name": name} for name in names]


def ended(name, event="ok", took=0.5, **more):
    return {"type": "test", "name": name, "event": event, "exec_time": took, **more}


def suite(*tests, passed, failed=0):
    begin = {"type": "suite", "event": "started", "test_count": passed + failed}
    end = {"type": "suite", "event": "failed" if failed else "ok", "passed": passed, "failed": failed}
    return [begin, *tests, end | {"ignored": 1, "measured": 0, "filtered_out": 3, "exec_time": 2.0}]


def as_line(report):
    # libtest separates the braces from what is inside them.
    return report if isinstance(report, str) else "{ " + json.dumps(report)[1:-1] + " }\n"


class RunTests(unittest.TestCase):
    def run_reports(self, reports, exit_code=0, arguments=()):
        """Returns the exit code, what was printed, and the arguments that cargo got."""
        with tempfile.TemporaryDirectory() as directory:
            directory = Path(directory)
            (directory / "reports").write_text("".join(map(as_line, reports)))
            (directory / "floors").write_text("# a comment\nserver 2\n")
            (directory / "cargo").write_text(
                "import pathlib, sys\n"
                "here = pathlib.Path(__file__).parent\n"
                "(here / 'arguments').write_text('\\n'.join(sys.argv[1:]))\n"
                "sys.stdout.write((here / 'reports').read_text())\n"
                f"sys.exit({exit_code})\n"
            )
            out = io.StringIO()
            cargo = [sys.executable, str(directory / "cargo")]
            code = run_tests.main(list(arguments), cargo, out, directory / "floors")
            return code, out.getvalue(), (directory / "arguments").read_text().splitlines()

    def test_a_run_ends_with_the_slowest_tests_and_the_line_of_libtest(self):
        names = [f"a::t{number}" for number in range(12)]
        tests = [ended(name, took=float(number)) for number, name in enumerate(names)]
        code, printed, _ = self.run_reports(suite(*started(*names), *tests, passed=12))
        self.assertEqual(code, 0)
        self.assertIn("the slowest tests:\n      11.0 s  a::t11\n      10.0 s  a::t10\n", printed)
        self.assertIn("a::t2\n", printed)
        self.assertNotIn("a::t1\n", printed)
        self.assertIn("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in", printed)

    def test_a_failure_is_printed_in_full_and_listed(self):
        tests = [ended("a::good"), ended("a::bad", "failed", stdout="left: 1\nright: 2\n")]
        code, printed, _ = self.run_reports(suite(*tests, passed=1, failed=1), exit_code=101)
        self.assertEqual(code, 1)
        self.assertIn("---- a::bad ----\nleft: 1\nright: 2\n", printed)
        self.assertIn("failures:\n    a::bad\n", printed)
        self.assertIn("test result: FAILED. 1 passed; 1 failed;", printed)

    def test_a_test_that_could_not_test_is_listed_and_counts_as_ignored(self):
        reports = suite("NOT TESTED: a::b: no server\n", ended("a::b"), ended("a::c"), passed=2)
        code, printed, _ = self.run_reports(reports, arguments=["--floor", "server"])
        self.assertEqual(code, 0)
        self.assertIn("not tested:\n    a::b: no server\n", printed)
        self.assertIn("test result: ok. 1 passed; 0 failed; 2 ignored;", printed)

    def test_fewer_tests_than_the_floor_fail(self):
        reports = suite(ended("a::b"), passed=1)
        code, printed, _ = self.run_reports(reports, arguments=["--floor", "server"])
        self.assertEqual(code, 1)
        self.assertIn("error: 1 tests have passed, and floor.txt requires 2\n", printed)
        self.assertIn("test result: FAILED. 1 passed; 0 failed;", printed)
        self.assertEqual(self.run_reports(reports)[0], 0)

    def test_a_run_without_a_line_in_the_floors_is_refused(self):
        with self.assertRaisesRegex(SystemExit, "no line for 'moon'"):
            self.run_reports([], arguments=["--floor", "moon"])

    def test_a_program_that_ends_before_its_last_test_fails(self):
        reports = suite(*started("a::b", "a::c"), ended("a::b"), passed=2)[:-1]
        for exit_code in (0, 101):
            code, printed, _ = self.run_reports(reports, exit_code)
            self.assertEqual(code, 1)
            self.assertIn("error: the test program ended while these tests were running: a::c\n", printed)

    def test_a_build_that_fails_is_no_run(self):
        code, printed, _ = self.run_reports([], exit_code=101)
        self.assertEqual(code, 1)
        self.assertIn("error: cargo test ended with exit code 101 and ran no test\n", printed)

    def test_output_without_its_end_hides_no_report(self):
        reports = suite("half a line", ended("a::b"), "{ no JSON\n", passed=1)
        code, printed, _ = self.run_reports(reports)
        self.assertEqual(code, 0)
        self.assertIn("half a line\n", printed)
        self.assertIn("{ no JSON\n", printed)
        self.assertIn("1 passed", printed)

    def test_an_ignored_test_is_not_running(self):
        run = run_tests.Run(io.StringIO())
        for report in [suite(passed=2)[0], *started("a::b", "a::c"), {"type": "test", "name": "a::b", "event": "ignored"}]:
            run.read(as_line(report))
        run.printed -= run_tests.PROGRESS_INTERVAL
        run.running["a::c"] -= 61
        run.show_progress()
        self.assertRegex(run.out.getvalue(), r"^  0 of 1 passed, 0 failed, \d+ s; running for 61 s: a::c\n$")

    def test_arguments_reach_cargo_and_the_test_program(self):
        arguments = ["--floor", "server", "--package", "p", "--", "breaker::", "--test-threads=4"]
        _, _, given = self.run_reports([], arguments=arguments)
        self.assertEqual(given[0], "test")
        self.assertEqual(given[2:5], ["--package", "p", "--"])
        self.assertEqual(given[-2:], ["breaker::", "--test-threads=4"])


if __name__ == "__main__":
    unittest.main()
