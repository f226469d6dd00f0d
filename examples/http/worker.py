#!/usr/bin/env python3
"""A leasehold worker in Python, with nothing but the standard library.

    LEASEHOLD_URL=http://127.0.0.1:7420 LEASEHOLD_API_TOKEN=lh_... python3 worker.py sums

It leases tasks from a queue, renews all its leases with one heartbeat, and reports the result of each attempt.
With --until-empty it ends when no task is left; after Ctrl-C it returns its unfinished tasks to the queue.
"""

import http.client
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
    """A caller has cancelled the task, its lease was lost, or this worker is stopping."""


def handle(task, check):
    """The work itself: replace it. Call check() periodically; it raises Stopped when the attempt must end."""
    total = 0
    for done, number in enumerate(task["payload"]["numbers"], 1):
        check({"done": done, "of": len(task["payload"]["numbers"])})
        total += number
    return {"sum": total, "by": "python"}


def call(path, body=None):
    data = None if body is None else json.dumps(body).encode()  # without a body it is a GET
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"})
    if TOKEN:
        request.add_header("Authorization", "Bearer " + TOKEN)
    try:
        with urllib.request.urlopen(request, timeout=WAIT + 30) as answer:
            return json.load(answer)
    except (http.client.HTTPException, ValueError) as error:
        raise ConnectionError(f"the answer is not complete: {error!r}") from error


class Worker:
    def __init__(self, queue):
        self.queue = queue
        self.about = {"id": str(uuid.uuid4()), "host": socket.gethostname(), "pid": os.getpid(),
                      "version": "worker.py", "queues": [queue], "slots": SLOTS}
        self.held = {}  # id -> {"token", "progress", "stop"}
        self.ended = set()  # (id, token) of attempts that ended here and may not be settled
        self.in_doubt = False  # whether a lease request has failed: the server may have leased tasks
        self.lock = threading.Lock()
        self.free = threading.Semaphore(SLOTS)
        self.ending, self.over = threading.Event(), threading.Event()

    def heartbeat(self):
        """Sends a heartbeat for all leases every third of their ttl, so that one late heartbeat loses no lease."""
        while not self.over.wait(TTL / 3):
            with self.lock:
                tasks = [{"id": id, "token": held["token"], "progress": held["progress"]} for id, held in self.held.items()]
            try:
                answer = call("/api/v1/tasks/heartbeat", {"worker": self.about, "ttlSeconds": TTL, "tasks": tasks})
            except OSError as error:
                print("a heartbeat failed:", error, file=sys.stderr)
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
        except Exception as error:  # any error fails the attempt; the task is retried
            end, more = "fail", {"error": repr(error)}
        attempt = (task["id"], task["token"])
        self.ended.add(attempt)
        try:
            # The server refuses an old token: if another worker has the task now, this request changes nothing.
            call(f"/api/v1/tasks/{task['id']}/{end}", {"token": task["token"], **more})
            self.ended.discard(attempt)
        except urllib.error.HTTPError as error:
            print(task["id"], "was not settled:", json.load(error)["code"], file=sys.stderr)
        except OSError as error:
            print(task["id"], "was not settled and returns to the queue:", error, file=sys.stderr)
        finally:
            with self.lock:
                del self.held[task["id"]]
            self.free.release()

    def run(self, until_empty=False):
        threading.Thread(target=self.heartbeat, daemon=True).start()
        with ThreadPoolExecutor(SLOTS) as pool:
            try:
                while self.take(pool, 0 if until_empty else WAIT) or not until_empty or self.held or self.in_doubt:
                    pass
            except KeyboardInterrupt:
                self.ending.set()  # the pool waits for its tasks, and heartbeats continue
        self.over.set()

    def lease(self, room, wait):
        path = "/api/v1/queues/" + urllib.parse.quote(self.queue, safe="") + "/lease"
        about = {**self.about, "busy": SLOTS - room}
        return call(path, {"worker": about, "max": room, "ttlSeconds": TTL, "waitSeconds": wait})["tasks"]

    def find(self):
        """Finds the tasks of a lease whose answer was lost: otherwise each of them would lose an attempt."""
        beat = {"worker": self.about, "ttlSeconds": TTL}
        worker = call("/api/v1/tasks/heartbeat", beat)["worker"]  # with a token, the server changes the id
        with self.lock:
            known = set(self.held)
        query = urllib.parse.urlencode({"queue": self.queue, "state": "running", "worker": worker})
        tasks = [task for task in call("/api/v1/tasks?" + query)["tasks"]
                 if task["id"] not in known and (task["id"], task["token"]) not in self.ended]
        beat["tasks"] = [{"id": task["id"], "token": task["token"]} for task in tasks]
        answers = call("/api/v1/tasks/heartbeat", beat)["tasks"]
        return [task for task, answer in zip(tasks, answers) if answer["kept"]]

    def take(self, pool, wait):
        """Leases as many tasks as there are free slots, and starts them; returns their number."""
        self.free.acquire()
        room = 1
        while self.free.acquire(blocking=False):
            room += 1
        try:
            found = self.find()[:room] if self.in_doubt else []
            tasks = found or self.lease(room, wait)
            self.in_doubt = False
        except OSError as error:
            self.in_doubt = True
            print("no tasks could be leased:", error, file=sys.stderr)
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
