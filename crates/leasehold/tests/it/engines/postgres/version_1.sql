CREATE SCHEMA SCHEMA_NAME;
-- Facts about the store itself.
CREATE TABLE SCHEMA_NAME.meta (key text PRIMARY KEY, value text NOT NULL);
INSERT INTO SCHEMA_NAME.meta VALUES ('schema_version', '0'), ('pruned_to', '0');
-- One row per lock, for ever, with its token. If `held` is not null, the columns say who holds the lock (or did last),
-- and nobody waits; else `record` has the whole state. Times are in microseconds since 1970. `wake_at` is never later
-- than the next end of a lease or a ticket; it may be earlier, so that the hot path need not touch its index. Room is
-- left in each page, so that a row is changed where it is.
CREATE TABLE SCHEMA_NAME.locks (
    name text COLLATE "C" PRIMARY KEY, token bigint NOT NULL, version bigint NOT NULL, held boolean,
    lease_id uuid, holder text, shared boolean, slots integer, ttl bigint, extra text,
    acquired_at bigint, renewed_at bigint, expires_at bigint, renewals bigint,
    changed_at bigint, wake_at bigint, record text) WITH (fillfactor = 50);
CREATE INDEX locks_wake_at ON SCHEMA_NAME.locks (wake_at) WHERE wake_at IS NOT NULL;
-- Append only.
CREATE TABLE SCHEMA_NAME.events (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, lock text COLLATE "C" NOT NULL, at bigint NOT NULL,
    kind text NOT NULL, token bigint NOT NULL, lease_id uuid NOT NULL, holder text NOT NULL, shared boolean NOT NULL,
    slots integer NOT NULL, after_micros bigint NOT NULL, renewals bigint NOT NULL, rest text);
CREATE INDEX events_of_lock ON SCHEMA_NAME.events (lock, seq);
UPDATE SCHEMA_NAME.meta SET value = '1' WHERE key = 'schema_version';
INSERT INTO SCHEMA_NAME.locks (name, token, version, held) VALUES ('old', 7, 1, false);
