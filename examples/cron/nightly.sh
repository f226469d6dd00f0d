#!/bin/sh
# A cron job on many hosts: one of them runs it, the others stay silent.
#
# In every host's crontab:
#   0 3 * * *  /usr/local/bin/nightly.sh
#
# --at-least 10m  keeps the lock for ten minutes from its taking, however short the job is: a host whose clock is a few
#                 minutes behind comes when it is still taken, and does not run the job a second time.
# -E 0            to find it taken is no failure: cron sends no mail.
# --ttl 1m        if this host dies, another run is possible a minute later; the lease is renewed while the job runs.
#
# Hosts that share nothing but a network need a store that is made for many machines; the processes of one machine
# (its users' crontabs, its containers with a common volume) can share a file.
: "${LEASEHOLD_STORE:=sqlite:/var/lib/leasehold/leasehold.db}"
export LEASEHOLD_STORE

exec leasehold run nightly-report --at-least 10m -E 0 --ttl 1m --reason "nightly report" -- "${JOB:-/usr/local/bin/make-report}"
