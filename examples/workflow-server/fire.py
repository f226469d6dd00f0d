#!/usr/bin/env python3
"""Fires 50 signed webhooks at once, each event five times, and shows what comes back.

200 started, 200 duplicate, 202 queued (GitHub's wait) and 409 locked (Stripe's are sent again, as Stripe would).
usage: fire.py http://127.0.0.1:7420, with STRIPE_SECRET and GITHUB_SECRET in the environment
"""
import collections
import concurrent.futures
import hashlib
import hmac
import json
import os
import sys
import time
import urllib.error
import urllib.request

BASE = sys.argv[1]


def sign(secret, message):
    return hmac.new(os.environ[secret].encode(), message, hashlib.sha256).hexdigest()


def stripe(event):
    body = json.dumps({"id": event, "type": "payment_intent.succeeded"}).encode()
    now = str(int(time.time()))
    return "stripe", body, {"Stripe-Signature": f"t={now},v1=" + sign("STRIPE_SECRET", f"{now}.".encode() + body)}


def github(event):
    body = json.dumps({"ref": "refs/heads/main", "after": event}).encode()
    headers = {"X-GitHub-Event": "push", "X-GitHub-Delivery": event}
    return "github", body, {"X-Hub-Signature-256": "sha256=" + sign("GITHUB_SECRET", body), **headers}


def send(make, event):
    trigger, body, headers = make(event)
    request = urllib.request.Request(f"{BASE}/api/webhooks/{trigger}", body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request) as answer:
            said = json.load(answer)
            word = "duplicate" if said["duplicate"] else "queued" if answer.status == 202 else "started"
            return answer.status, word, trigger, event, said["executionId"]
    except urllib.error.HTTPError as error:
        said = json.load(error)
        return error.code, said["code"], trigger, event, said.get("existingExecutionId", "")


def show(answer):
    print("{} {:<24} {:<7} {:<10} {}".format(*answer), flush=True)
    return answer


def main():
    events = [(stripe, f"evt_{n}") for n in range(6)] + [(github, f"push_{n}") for n in range(4)]
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        sent = [pool.submit(send, make, event) for _ in range(5) for make, event in events]
        answers = [show(done.result()) for done in concurrent.futures.as_completed(sent)]
    tally = collections.Counter(f"{status} {word}" for status, word, *_ in answers)
    print("\n" + ", ".join(f"{count} × {what}" for what, count in sorted(tally.items())) + "\n")

    # A refused event has burnt nothing: sent again later, it starts.
    started = {event for _, word, _, event, _ in answers if word in ("started", "queued")}
    for make, event in events:
        while event not in started:
            answer = show(send(make, event))
            if answer[1] in ("started", "duplicate"):
                started.add(event)
            else:
                time.sleep(0.1)

    # Every event has started one execution, however often it came.
    def executions():
        with urllib.request.urlopen(f"{BASE}/api/v1/executions?limit=100") as answer:
            return json.load(answer)["executions"]

    while any(one["state"] in ("pending", "blocked", "running") for one in executions()):
        time.sleep(0.1)
    ended = collections.Counter(one["state"] for one in executions())
    print(f"\n{len(events)} events, {sum(ended.values())} executions: " + ", ".join(f"{n} {word}" for word, n in ended.items()))
    return 0 if ended == {"succeeded": len(events)} else 1


sys.exit(main())
