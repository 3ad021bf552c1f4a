"""spot.py over small scripts: make lint. It needs pgspot, which make venv installs."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SPOT = Path(__file__).parent / "spot.py"
REASON = "-- pgspot: no search_path, because it commits.\n"


def function(name, options="", body="PERFORM pg_catalog.now();"):
    return f"CREATE FUNCTION {name}() RETURNS void LANGUAGE plpgsql {options} AS $$ BEGIN {body} END $$;\n"


class Spot(unittest.TestCase):
    def assert_spotted(self, script, problem):
        with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
            file.write("CREATE SCHEMA app;\n" + script)
            file.flush()
            spot = [sys.executable, str(SPOT), "--append", "--ignore", "PS002", file.name]
            run = subprocess.run(spot, capture_output=True, text=True)
        output = run.stdout + run.stderr
        self.assertEqual(run.returncode, 0 if problem is None else 1, output)
        self.assertIn(problem or "Errors: 0", output)

    def test_a_function_needs_a_search_path(self):
        self.assert_spotted(function("app.f"), "PS005")
        self.assert_spotted(function("app.f", "SECURITY DEFINER"), "PS003")
        self.assert_spotted(function("app.f", "SET search_path = pg_catalog, pg_temp"), None)

    def test_it_may_do_without_for_a_reason_above_it(self):
        before = "-- Größe in µs.\n" + function("app.e", "SET search_path = pg_catalog, pg_temp")
        for comment in (REASON, "-- First.\n" + REASON + "--\n-- Last.\n"):
            self.assert_spotted(comment + function("app.f"), None)
            self.assert_spotted(comment + function("app.f", "SECURITY DEFINER"), None)
            self.assert_spotted(before + comment + function("@extschema@.f"), None)

    def test_the_reason_is_for_one_function(self):
        self.assert_spotted(REASON + function("app.f") + function("app.g"), "search_path: app.g()")
        self.assert_spotted(REASON + "SELECT 1;\n" + function("app.f"), "PS005")

    def test_a_reason_is_given(self):
        self.assert_spotted("-- pgspot: no search_path\n" + function("app.f"), "PS005")
        self.assert_spotted("-- pgspot: no search_path, because \n" + function("app.f"), "PS005")

    def test_a_body_without_a_search_path_names_everything_in_full(self):
        self.assert_spotted(REASON + function("app.f", body="PERFORM now();"), "PS016")

    def test_a_reason_above_a_function_with_a_search_path_is_out_of_date(self):
        with_path = function("app.f", "SET search_path = pg_catalog, pg_temp")
        self.assert_spotted(REASON + with_path, "Not without a search_path: app.f()")


if __name__ == "__main__":
    unittest.main()
