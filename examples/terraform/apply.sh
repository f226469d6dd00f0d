#!/bin/sh
# `terraform apply` under a lock: one at a time per workspace, in the order of arrival.
#
# --wait 30m      stands in line for half an hour; then it says who has the lock and until when, and exits with 75.
# --kill-after 2m terraform gets SIGTERM and two minutes to write its state before it is killed, should the lease be lost;
#                 all of it is over before the lease can end, so the ttl is longer than that.
# --with          a second lock that must not be held by anybody else: taken together or not at all.
#
# The token is in LEASEHOLD_TOKEN for whatever wants to check it.
workspace=${1:?usage: apply.sh WORKSPACE [terraform arguments…]}
shift

exec leasehold run "terraform/$workspace" --with "deploy/$workspace" \
    --wait 30m --ttl 10m --kill-after 2m --reason "${REASON:-apply $workspace}" \
    -- terraform apply -input=false -auto-approve "$@"
