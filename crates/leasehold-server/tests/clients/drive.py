"""Drives a server with a client that was generated from its OpenAPI document.

The generated models parse every response: a missing field or a wrong type is an error.
"""

import sys
import uuid
from concurrent.futures import ThreadPoolExecutor

from leasehold_client import Client
from leasehold_client.api.health import readyz
from leasehold_client.api.locks import acquire_lock, check_fence, get_lock, list_locks, lock_history, release_lock, renew_lock
from leasehold_client.api.metrics import get_stats
from leasehold_client.api.tasks import add_tasks, complete_task, get_task, lease_tasks, list_queues, update_task
from leasehold_client.api.workflows import complete_execution, get_workflow_lock, lease_execution, start_workflow
from leasehold_client.models import (
    AcquireBody,
    CompleteExecutionBody,
    CompleteTaskBody,
    ExecutionEndState,
    FenceBody,
    LeaseBody,
    LeaseExecutionBody,
    LeaseTasksBody,
    NewTaskBody,
    RenewBody,
    StartBody,
    UpdateBody,
    WorkerBody,
)

client = Client(base_url=sys.argv[1], raise_on_unexpected_status=True)


def status(response, expected):
    """Returns the parsed response, which must have this status."""
    assert response.status_code == expected, (response.status_code, response.content)
    return response.parsed


def locks():
    name = "deploy/prod"
    request = AcquireBody(holder="ada", ttl_seconds=30)
    held = status(acquire_lock.sync_detailed(name, client=client, body=request), 200).lock
    assert (held.name, held.holder) == (name, "ada")
    lease = LeaseBody(lease_id=held.lease_id, token=held.token)

    refused = status(acquire_lock.sync_detailed(name, client=client, body=AcquireBody(holder="bob")), 409)
    assert refused.code == "LOCK_CONFLICT" and refused.holders[0].holder == "ada", refused

    renew = RenewBody(lease_id=held.lease_id, token=held.token)
    renewed = status(renew_lock.sync_detailed(name, client=client, body=renew), 200)
    assert renewed.lock.expires_at >= held.expires_at
    status(check_fence.sync_detailed(name, client=client, body=FenceBody(token=held.token)), 200)
    stale = status(check_fence.sync_detailed(name, client=client, body=FenceBody(token=held.token - 1)), 409)
    assert stale.code == "STALE_TOKEN"

    with ThreadPoolExecutor() as pool:
        wait = AcquireBody(holder="bob", wait_seconds=20)
        waiting = pool.submit(acquire_lock.sync_detailed, name, client=client, body=wait)
        while not status(get_lock.sync_detailed(name, client=client), 200).waiters:
            assert not waiting.done(), waiting.result()
        status(release_lock.sync_detailed(name, client=client, body=lease), 200)
        assert status(waiting.result(), 200).lock.token > held.token
    assert [lock.holder for lock in status(list_locks.sync_detailed(client=client, prefix="deploy/"), 200).locks] == ["bob"]
    kinds = [event.kind.value for event in status(lock_history.sync_detailed(name, client=client), 200).events]
    assert "acquired" in kinds and "released" in kinds, kinds
    gone = status(release_lock.sync_detailed(name, client=client, body=lease), 404)
    assert gone.code == "LOCK_NOT_HELD"


def tasks():
    new = NewTaskBody(payload={"video": "cat.mp4"}, key="cat", priority=5)
    added = status(add_tasks.sync_detailed("video", client=client, body=new), 201)
    again = status(add_tasks.sync_detailed("video", client=client, body=new), 200)
    assert again.duplicate and again.task.id == added.task.id
    other = NewTaskBody(payload={"video": "dog.mp4"}, key="cat")
    assert status(add_tasks.sync_detailed("video", client=client, body=other), 422).code == "KEY_REUSED"

    change = UpdateBody(priority=7)
    updated = status(update_task.sync_detailed(added.task.id, client=client, body=change, if_match='"1"'), 200)
    assert updated.task.priority == 7
    late = status(update_task.sync_detailed(added.task.id, client=client, body=change, if_match='"1"'), 412)
    assert late.current_version == updated.task.version

    worker = WorkerBody(id=uuid.uuid4(), queues=["video"], host="here")
    lease = LeaseTasksBody(max_=10, ttl_seconds=30, worker=worker)
    (task,) = status(lease_tasks.sync_detailed("video", client=client, body=lease), 200).tasks
    assert task.payload == {"video": "cat.mp4"} and task.attempt == 1
    done = CompleteTaskBody(token=task.token, result={"frames": 3})
    status(complete_task.sync_detailed(task.id, client=client, body=done), 200)
    seen = status(get_task.sync_detailed(task.id, client=client), 200)
    assert (seen.state, seen.result) == ("succeeded", {"frames": 3})
    lost = CompleteTaskBody(token=task.token - 1)
    assert status(complete_task.sync_detailed(task.id, client=client, body=lost), 409).code == "LEASE_LOST"
    assert [queue.queue for queue in status(list_queues.sync_detailed(client=client), 200).queues] == ["video"]


def workflows():
    body = StartBody(input_={"commit": "abc"})
    started = status(start_workflow.sync_detailed("deploy", client=client, body=body, idempotency_key="e1"), 201)
    again = status(start_workflow.sync_detailed("deploy", client=client, body=body, idempotency_key="e1"), 200)
    assert again.duplicate and again.execution_id == started.execution_id
    locked = status(start_workflow.sync_detailed("deploy", client=client, body=body, idempotency_key="e2"), 409)
    assert locked.code == "WORKFLOW_LOCKED" and locked.existing_execution_id == started.execution_id
    lease = LeaseExecutionBody(ttl_seconds=30)
    run = status(lease_execution.sync_detailed("deploy", client=client, body=lease), 200).execution
    assert status(get_workflow_lock.sync_detailed("deploy", client=client), 200).is_locked
    end = CompleteExecutionBody(state=ExecutionEndState.SUCCEEDED, token=run.token, result={"ok": True})
    status(complete_execution.sync_detailed(run.id, client=client, body=end), 200)
    assert not status(get_workflow_lock.sync_detailed("deploy", client=client), 200).is_locked


status(readyz.sync_detailed(client=client), 200)
locks()
tasks()
workflows()
assert status(get_stats.sync_detailed(client=client), 200).total_acquisitions > 0
print("driven")
