-- File of schema version 3, with a running task and a waiting task.
PRAGMA application_id = 0x6c736864;
PRAGMA user_version = 3;
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE locks (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, record TEXT NOT NULL, wake_at INTEGER,
    last_event INTEGER, tail TEXT NOT NULL DEFAULT '');
CREATE INDEX locks_wake_at ON locks (wake_at) WHERE wake_at IS NOT NULL;
CREATE TABLE events (seq INTEGER PRIMARY KEY, previous INTEGER, event TEXT NOT NULL);
INSERT INTO meta VALUES ('boot', '00000000-0000-0000-0000-000000000001'), ('clock_offset', 0), ('token_floor', 0),
    ('token_ceiling', 1700000060000000);
CREATE TABLE leasehold_queues (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, paused TEXT,
    scheduled INTEGER NOT NULL DEFAULT 0, blocked INTEGER NOT NULL DEFAULT 0,
    pending INTEGER NOT NULL DEFAULT 0, running INTEGER NOT NULL DEFAULT 0,
    succeeded INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0,
    aborted INTEGER NOT NULL DEFAULT 0);
CREATE TABLE leasehold_tasks (id BLOB NOT NULL PRIMARY KEY, queue INTEGER NOT NULL, state INTEGER NOT NULL,
    priority INTEGER NOT NULL, rank INTEGER NOT NULL, run_at INTEGER NOT NULL, ready_at INTEGER NOT NULL,
    key TEXT, fingerprint INTEGER NOT NULL, lock TEXT, attempt INTEGER NOT NULL, token INTEGER NOT NULL,
    version INTEGER NOT NULL, worker BLOB, leased_at INTEGER, lease_expires_at INTEGER, ttl INTEGER,
    created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, finished_at INTEGER,
    archived INTEGER NOT NULL, extra TEXT, payload TEXT, result TEXT);
CREATE INDEX leasehold_tasks_scheduled ON leasehold_tasks (queue, run_at, id) WHERE state = 0;
CREATE INDEX leasehold_tasks_blocked ON leasehold_tasks (lock, rank, run_at, id) WHERE state = 1;
CREATE INDEX leasehold_tasks_ready ON leasehold_tasks (queue, rank, run_at, id) WHERE state = 2;
CREATE INDEX leasehold_tasks_running ON leasehold_tasks (lease_expires_at, id) WHERE state = 3;
CREATE INDEX leasehold_tasks_over ON leasehold_tasks (archived, queue, state, id) WHERE state >= 4;
CREATE UNIQUE INDEX leasehold_tasks_head ON leasehold_tasks (lock)
    WHERE lock IS NOT NULL AND state IN (2, 3);
CREATE UNIQUE INDEX leasehold_tasks_key ON leasehold_tasks (queue, key) WHERE key IS NOT NULL;
CREATE INDEX leasehold_tasks_lock ON leasehold_tasks (lock, id) WHERE lock IS NOT NULL;
CREATE TABLE leasehold_payloads (id BLOB NOT NULL PRIMARY KEY, payload TEXT NOT NULL);
CREATE TABLE leasehold_workers (id BLOB NOT NULL PRIMARY KEY, info TEXT NOT NULL, started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE leasehold_docs (key TEXT NOT NULL PRIMARY KEY, version INTEGER NOT NULL, body TEXT NOT NULL,
    keep_until INTEGER);
CREATE INDEX leasehold_docs_until ON leasehold_docs (keep_until) WHERE keep_until IS NOT NULL;
INSERT INTO leasehold_queues (id, name, pending, running) VALUES (1, 'q', 1, 1);
INSERT INTO leasehold_tasks (id, queue, state, priority, rank, run_at, ready_at, fingerprint, attempt, token, version, worker,
    leased_at, lease_expires_at, ttl, created_at, updated_at, archived, payload) VALUES
    (x'00000000000000000000000000000001', 1, 3, 0, 1000, 1000, 1000, 0, 1, 1699999999000000, 2,
        x'00000000000000000000000000000007', 1699999999000000, 1700000029000000, 30000000, 1000, 1699999999000000, 0, '1'),
    (x'00000000000000000000000000000002', 1, 2, 0, 1000, 1000, 1000, 0, 0, 0, 1, NULL, NULL, NULL, NULL, 1000, 1000, 0, '2');
