#!/usr/bin/env python3
"""A leasehold worker in Python, with nothing but the standard library.

    LEASEHOLD_URL=http://127.0.0.1:7420 LEASEHOLD_API_TOKEN=lh_... python3 worker.py sums

It takes tasks from a queue, keeps its leases alive with one request for all of them, and says how each attempt ended.
With --until-empty it ends when there is nothing left to do; with Ctrl-C it gives back what it has.
"""

import json
import os
import socket
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor

URL = os.environ.get("LEASEHOLD_URL", "http://127.0.0.1:7420")
TOKEN = os.environ.get("LEASEHOLD_API_TOKEN")
SLOTS, TTL, WAIT = 4, 30, 20


class Stopped(Exception):
    """Somebody wants the task stopped, or somebody else has it."""


def handle(task, check):
    """The work itself: replace it. Call check() now and then; it raises Stopped when there is no use in going on."""
    total = 0
    for done, number in enumerate(task["payload"]["numbers"], 1):
        check({"done": done, "of": len(task["payload"]["numbers"])})
        total += number
    return {"sum": total, "by": "python"}


def call(path, body):
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    if TOKEN:
        request.add_header("Authorization", "Bearer " + TOKEN)
    with urllib.request.urlopen(request, timeout=WAIT + 30) as answer:
        return json.load(answer)


class Worker:
    def __init__(self, queue):
        self.queue = queue
        self.about = {"id": str(uuid.uuid4()), "host": socket.gethostname(), "pid": os.getpid(),
                      "version": "worker.py", "queues": [queue], "slots": SLOTS}
        self.held = {}  # id -> {"token", "progress", "stop"}
        self.lock = threading.Lock()
        self.free = threading.Semaphore(SLOTS)
        self.ending, self.over = threading.Event(), threading.Event()

    def beat(self):
        """One request for all leases, three times in their life, so that one that is late costs nothing."""
        while not self.over.wait(TTL / 3):
            with self.lock:
                tasks = [{"id": id, "token": held["token"], "progress": held["progress"]} for id, held in self.held.items()]
            try:
                answer = call("/api/v1/tasks/heartbeat", {"worker": self.about, "ttlSeconds": TTL, "tasks": tasks})
            except OSError as error:
                print("a heartbeat did not get through:", error, file=sys.stderr)
                continue
            with self.lock:
                for task in answer["tasks"]:
                    held = self.held.get(task["id"])
                    if held and not task["kept"]:
                        held["stop"] = "lost"
                    elif held and "cancel" in task:
                        held["stop"] = "asked"

    def work(self, task):
        held = self.held[task["id"]]

        def check(progress=None):
            held["progress"] = progress or held["progress"]
            if held["stop"] or self.ending.is_set():
                raise Stopped()

        try:
            end, more = "complete", {"result": handle(task, check)}
        except Stopped:
            end, more = ("abort" if held["stop"] == "asked" else "release"), {}
        except Exception as error:  # whatever it is, it is tried again
            end, more = "fail", {"error": repr(error)}
        try:
            # Nothing is changed by an old token: whoever has the task now is safe from us.
            call(f"/api/v1/tasks/{task['id']}/{end}", {"token": task["token"], **more})
        except urllib.error.HTTPError as error:
            print(task["id"], "was not settled:", json.load(error)["code"], file=sys.stderr)
        except OSError as error:
            print(task["id"], "was not settled and comes back:", error, file=sys.stderr)
        finally:
            with self.lock:
                del self.held[task["id"]]
            self.free.release()

    def run(self, until_empty=False):
        threading.Thread(target=self.beat, daemon=True).start()
        with ThreadPoolExecutor(SLOTS) as pool:
            try:
                while self.take(pool, 0 if until_empty else WAIT) or not until_empty or self.held:
                    pass
            except KeyboardInterrupt:
                self.ending.set()  # and the pool waits, while heartbeats go on
        self.over.set()

    def take(self, pool, wait):
        """Takes as many tasks as there are free slots, and starts them; says how many."""
        self.free.acquire()
        room = 1
        while self.free.acquire(blocking=False):
            room += 1
        path = "/api/v1/queues/" + urllib.parse.quote(self.queue, safe="") + "/lease"
        about = {**self.about, "busy": SLOTS - room}
        try:
            tasks = call(path, {"worker": about, "max": room, "ttlSeconds": TTL, "waitSeconds": wait})["tasks"]
        except OSError as error:
            print("no tasks could be asked for:", error, file=sys.stderr)
            tasks = []
            self.ending.wait(1)
        for _ in range(room - len(tasks)):
            self.free.release()
        for task in tasks:
            with self.lock:
                self.held[task["id"]] = {"token": task["token"], "progress": None, "stop": None}
            pool.submit(self.work, task)
        return len(tasks)


if __name__ == "__main__":
    queues = [argument for argument in sys.argv[1:] if argument != "--until-empty"]
    if len(queues) != 1 or queues[0].startswith("-"):
        sys.exit("usage: worker.py QUEUE [--until-empty]")
    Worker(queues[0]).run(until_empty="--until-empty" in sys.argv)
