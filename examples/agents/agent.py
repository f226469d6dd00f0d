#!/usr/bin/env python3
"""Stands in for a coding agent: gets an issue on stdin, works on it, and says what came of it.

Exit code 0: done, and stdout is the result. 75: not now. 65: this cannot be done. Anything else: try again.
"""
import json
import os
import subprocess
import sys

issue = json.load(sys.stdin)
attempt, token = os.environ["LEASEHOLD_ATTEMPT"], os.environ["LEASEHOLD_TOKEN"]
print(f"#{issue['number']} {issue['title']} (attempt {attempt}, token {token})", file=sys.stderr)

steps = ["reading", "changing", "testing"]
for number, step in enumerate(steps, start=1):
    # Here the real work is done. Whatever it writes to can refuse an older token than the newest it has seen.
    far = ["--done", str(number), "--of", str(len(steps)), "--note", step]
    subprocess.run(["leasehold", "tasks", "progress", *far], check=False)

if "impossible" in issue["title"].lower():
    print("there is nothing in the repository that this could mean", file=sys.stderr)
    sys.exit(65)
json.dump({"branch": f"issue-{issue['number']}", "by": f"attempt {attempt}"}, sys.stdout)
