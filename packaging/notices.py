#!/usr/bin/python3
"""notices.py PG: the crates that are compiled into the extension and the relay, with their licenses."""
import json
import pathlib
import subprocess
import sys

selection = ["--package", "webhook", "--package", "webhook-relay", "--features", f"webhook/pg{sys.argv[1]}"]
tree = ["cargo", "tree", "--locked", "--no-default-features", *selection, "--edges", "normal,no-proc-macro",
        "--prefix", "none", "--format", "{p}"]
used = {tuple(line.split()[:2]) for line in subprocess.check_output(tree, text=True).splitlines() if line}
first = {}  # text of a license: who has it already
metadata = json.loads(subprocess.check_output(["cargo", "metadata", "--format-version", "1", "--locked"]))

for crate in sorted(metadata["packages"], key=lambda crate: crate["name"]):
    if crate["source"] is None or (crate["name"], "v" + crate["version"]) not in used:
        continue
    print("=" * 78)
    print(crate["name"], crate["version"], "-", crate["license"] or crate["license_file"])
    print(crate["repository"] or "")
    directory = pathlib.Path(crate["manifest_path"]).parent
    for path in sorted(directory.iterdir()):
        if path.is_file() and path.name.upper().startswith(("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE")):
            text = path.read_text(errors="replace")
            name = first.setdefault(text, f"{crate['name']} {crate['version']}, {path.name}")
            is_new = name.startswith(f"{crate['name']} {crate['version']},")
            print("\n---", path.name, "\n\n" + text if is_new else "as that of " + name)
