#!/bin/sh
# Starts a server on a free port, fires webhooks at it, and ends it.
cd "$(dirname "$0")" || exit 1
export STRIPE_SECRET=whsec_demo GITHUB_SECRET=demo
: "${LEASEHOLD_STORE:=memory:}"
export LEASEHOLD_STORE
folder=$(mktemp -d) || exit 1
leasehold --json serve --config leasehold.toml --open --listen 127.0.0.1:0 > "$folder/said" 2> "$folder/log" &
server=$!
trap 'kill $server; wait $server; rm -r "$folder"' EXIT
until address=$(sed -n 's/.*"listening":"\([^"]*\)".*/\1/p' "$folder/said") && test -n "$address" &&
    python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1])' "http://$address/readyz" 2> /dev/null; do
    kill -0 $server || { cat "$folder/log" >&2; exit 1; }
    sleep 0.1
done
python3 fire.py "http://$address"
