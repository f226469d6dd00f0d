"""procrastinate: jobs from its deferrers, drained by its worker with default settings and with higher concurrency."""

import asyncio
import json
import logging
import os
import time

import procrastinate

logging.disable(logging.CRITICAL)
TASKS = int(os.environ.get("PEER_TASKS", "10000"))
SECONDS = float(os.environ.get("PEER_SECONDS", "0.5"))
START_SECONDS = float(os.environ.get("PEER_START_SECONDS", "2"))
TIMEOUT = 8.0
INTERVAL = 0.02
NAMESPACE = f"peer_{os.getpid()}"

connector = procrastinate.PsycopgConnector(
    conninfo=os.environ["LEASEHOLD_BENCH_POSTGRES"],
    kwargs={"options": f"-c search_path={NAMESPACE}"},
    max_size=25,
)
app = procrastinate.App(connector=connector)
done = 0
waits = []


@app.task(name="noop")
async def noop(sent):
    global done
    if sent > 0:
        waits.append(time.monotonic() - sent)
    done += 1


async def rate(batch, call):
    """Repeats a call for a while; returns tasks per second."""
    await call()
    begun, calls = time.monotonic(), 0
    while time.monotonic() - begun < SECONDS:
        await call()
        calls += 1
    return calls * batch / (time.monotonic() - begun)


async def add_many():
    await noop.batch_defer_async(*[{"sent": 0}] * 100)


async def drained(**options):
    """Drains a backlog until the timeout; returns tasks per second."""
    for _ in range(TASKS // 100):
        await add_many()
    before, begun = done, time.monotonic()
    worker = asyncio.create_task(app.run_worker_async(install_signal_handlers=False, **options))
    while done - before < TASKS and time.monotonic() - begun < TIMEOUT:
        await asyncio.sleep(0.002)
    found = (done - before) / (time.monotonic() - begun)
    await end(worker)
    await connector.execute_query_async("DELETE FROM procrastinate_jobs")
    return found


async def end(worker):
    worker.cancel()
    await asyncio.wait([worker], timeout=5)


async def starts():
    """Returns the time from enqueue to start at 50 tasks per second, in milliseconds."""
    worker = asyncio.create_task(app.run_worker_async(install_signal_handlers=False, concurrency=20))
    await asyncio.sleep(0.5)
    ticks, begun = int(START_SECONDS / INTERVAL), time.monotonic()
    for tick in range(ticks):
        await asyncio.sleep(max(0, begun + tick * INTERVAL - time.monotonic()))
        await noop.defer_async(sent=time.monotonic())
    over = time.monotonic() + TIMEOUT
    while len(waits) < ticks and time.monotonic() < over:
        await asyncio.sleep(0.01)
    await end(worker)
    waits.sort()
    return waits[len(waits) // 2] * 1000, waits[int(len(waits) * 0.99)] * 1000


async def main():
    async with app.open_async():
        await connector.execute_query_async(f"CREATE SCHEMA {NAMESPACE}")
        try:
            await app.schema_manager.apply_schema_async()
            figures = {
                "enqueue": await rate(1, lambda: noop.defer_async(sent=0)),
                "bulk": await rate(100, add_many),
            }
            await connector.execute_query_async("DELETE FROM procrastinate_jobs")
            figures["drainDefault"] = await drained()
            figures["drainTuned"] = await drained(concurrency=20)
            figures["p50Millis"], figures["p99Millis"] = await starts()
        finally:
            await connector.execute_query_async(f"DROP SCHEMA {NAMESPACE} CASCADE")
    print(json.dumps(figures))


asyncio.run(main())
