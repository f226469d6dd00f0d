//! Tasks as an earlier version has stored them.

use leasehold::model::{
    AttemptResult, LeaseTasks, LockName, NewTask, QueueName, Settle, TaskState, Ttl, WorkerId,
};
use leasehold::store::redis::RedisStore;
use uuid::Uuid;

use super::support::{count, new_task, tasks};
use crate::engines::redis::server::Server;
use crate::engines::redis::support::options;

/// Script that rewrites the records to format 1, and replaces the heads of the queues by one head for
/// all queues of the lock `l`: the head of `q`.
const REVERT_TO_ONE_HEAD: &str = r"
local base = 'p:{t}:'
local tasks = base .. 'tasks'
for _, id in ipairs(redis.call('HKEYS', tasks)) do
  local record = redis.call('HGET', tasks, id)
  redis.call('HSET', tasks, id, '\1' .. string.sub(record, 2, -9))
end
local ready = redis.call('ZRANGE', base .. 'r:other', 0, -1, 'WITHSCORES')
local id = string.sub(ready[1], 9)
local record = redis.call('HGET', tasks, id)
redis.call('HSET', tasks, id, '\1\1' .. string.sub(record, 3))
redis.call('HINCRBY', base .. 'q:other', 2, -1)
redis.call('HINCRBY', base .. 'q:other', 1, 1)
redis.call('ZADD', base .. 'b:l', ready[2], ready[1])
redis.call('DEL', base .. 'r:other')
for _, queue in ipairs({ 'q', 'other' }) do
  local waiting = redis.call('ZRANGE', base .. 'c:1:l:' .. queue, 0, -1, 'WITHSCORES')
  for at = 1, #waiting, 2 do
    redis.call('ZADD', base .. 'b:l', waiting[at + 1], waiting[at])
  end
  redis.call('DEL', base .. 'c:1:l:' .. queue)
end
redis.call('HSET', base .. 'heads', 'l', redis.call('HGET', base .. 'chains', '1:l:q'))
redis.call('DEL', base .. 'chains')
return redis.call('ZCARD', base .. 'b:l')
";

#[tokio::test]
async fn tasks_of_an_earlier_version_wait_only_for_tasks_of_their_queue() {
    let server = Server::start(&[]).await;
    let store = RedisStore::connect(options(&server.url(), "p")).await.unwrap();
    let (lock, other) = (LockName::new("l").unwrap(), QueueName::new("other").unwrap());
    let here = || NewTask { lock: Some(lock.clone()), ..new_task() };
    let there = || NewTask { queue: other.clone(), ..here() };
    let new = [here(), here(), there(), there()];
    tasks(&store).enqueue(&new).await.unwrap();
    let waiting: u64 = server.command(&["EVAL", REVERT_TO_ONE_HEAD, "0"]).await.unwrap();
    assert_eq!(waiting, 3);
    let states = async || {
        let mut states = Vec::new();
        for new in &new {
            states.push(tasks(&store).get(new.id).await.unwrap().unwrap().state);
        }
        states
    };
    let (pending, blocked) = (TaskState::Pending, TaskState::Blocked);
    assert_eq!(states().await, [pending, blocked, pending, blocked]);
    assert_eq!((count(&store, pending).await, count(&store, blocked).await), (1, 1));
    let worker = WorkerId::from_uuid(Uuid::now_v7());
    let request = LeaseTasks::new(worker, vec![other], 10, Ttl::from_secs(30));
    for expected in &new[2..] {
        let leased = tasks(&store).lease(&request).await.unwrap().tasks;
        assert_eq!(leased.iter().map(|task| task.id).collect::<Vec<_>>(), [expected.id]);
        let (id, token) = (leased[0].id, leased[0].token);
        tasks(&store).settle(&[Settle { id, token, verdict: AttemptResult::Done(None) }]).await.unwrap();
    }
    assert_eq!(states().await[..2], [pending, blocked], "the other queue is unchanged");
}
