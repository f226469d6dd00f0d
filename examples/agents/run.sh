#!/bin/sh
# Several agents share the issues of a repository that have a label: run.sh github://OWNER/REPO LABEL [AGENTS]
# They end when there is nothing left to do. Needs GITHUB_TOKEN.
if test $# -lt 2; then
    sed -n 's/^# //p' "$0" >&2
    exit 64
fi
cd "$(dirname "$0")" || exit 1
export LEASEHOLD_STORE="$1"
label=$2
agents=${3:-3}
pids=
for _ in $(seq "$agents"); do
    leasehold tasks work "$label" --until-empty -- python3 agent.py &
    pids="$pids $!"
done
trap 'kill $pids 2> /dev/null' INT TERM
failed=0
for pid in $pids; do
    wait "$pid" || failed=$?
done
leasehold tasks counts "$label"
exit $failed
