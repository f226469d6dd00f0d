#!/bin/sh
# `terraform apply` under a lock: one at a time per workspace, in the order of arrival.
#
# --wait 30m      waits in the queue for up to half an hour; then leasehold prints the holder and exits with 75.
# --kill-after 2m if the lease is lost, terraform gets SIGTERM, and SIGKILL two minutes later: time to write its state.
#                 terraform is dead before the lease can end, so the ttl must be longer than that.
# --with          a second lock: leasehold acquires both or none.
#
# The environment of terraform has the fencing token, as LEASEHOLD_TOKEN.
workspace=${1:?usage: apply.sh WORKSPACE [terraform arguments…]}
shift

exec leasehold run "terraform/$workspace" --with "deploy/$workspace" \
    --wait 30m --ttl 10m --kill-after 2m --reason "${REASON:-apply $workspace}" \
    -- terraform apply -input=false -auto-approve "$@"
