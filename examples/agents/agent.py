#!/usr/bin/env python3
"""Example of a coding agent: it reads an issue from stdin, works on it, and reports the result.

Exit code 0: success, and stdout is the result. 75: try later. 65: permanent failure. Any other code: this attempt failed.
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
    # Replace this by the real work. The resources that it writes to can refuse a token lower than the highest one they have seen.
    far = ["--done", str(number), "--of", str(len(steps)), "--note", step]
    subprocess.run(["leasehold", "tasks", "progress", *far], check=False)

if "impossible" in issue["title"].lower():
    print("there is nothing in the repository that this could mean", file=sys.stderr)
    sys.exit(65)
json.dump({"branch": f"issue-{issue['number']}", "by": f"attempt {attempt}"}, sys.stdout)
