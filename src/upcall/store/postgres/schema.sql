-- The tables of a log in PostgreSQL, in a schema of their own. Everything that a model can word is bytea: a text
-- would refuse the character zero.

CREATE SCHEMA upcall;

-- 'version' of this schema; 'offset' is added to transaction ids, so that positions rise after a restored dump.
CREATE TABLE upcall.meta (name text PRIMARY KEY, value bigint NOT NULL);
INSERT INTO upcall.meta VALUES ('version', 3), ('offset', 0);

CREATE SEQUENCE upcall.epochs;

CREATE TABLE upcall.sessions (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    root bigint NOT NULL,
    parent bigint,
    seq bigint NOT NULL DEFAULT 0,
    base bigint NOT NULL DEFAULT 0,
    epoch bigint NOT NULL DEFAULT 0,
    created double precision NOT NULL,
    updated double precision NOT NULL,
    id text COLLATE "C" NOT NULL UNIQUE,
    agent text NOT NULL,
    kind text NOT NULL,
    status text NOT NULL DEFAULT 'idle',
    owner text NOT NULL DEFAULT '',
    in_queue boolean NOT NULL DEFAULT false, -- it has a row in the table `queue`
    tags bytea,
    title bytea,
    folder bytea,
    roots bytea
) WITH (fillfactor = 70);
CREATE INDEX sessions_by_parent ON upcall.sessions (parent) WHERE parent IS NOT NULL;
CREATE INDEX sessions_by_root ON upcall.sessions (root) WHERE parent IS NOT NULL;
CREATE INDEX sessions_running ON upcall.sessions (n) WHERE parent IS NULL AND status = 'running';
CREATE INDEX sessions_by_folder ON upcall.sessions (folder, n) WHERE folder IS NOT NULL;

CREATE TABLE upcall.events (
    n bigint NOT NULL,
    pos bigint NOT NULL,
    time double precision NOT NULL,
    seq integer NOT NULL,
    append bigint,    -- the number of an append with a claim
    by_others uuid,   -- the id of an append without a claim
    body bytea NOT NULL,
    PRIMARY KEY (n, seq)
);
CREATE UNIQUE INDEX events_by_pos ON upcall.events (pos);
CREATE INDEX events_by_others ON upcall.events (pos) WHERE by_others IS NOT NULL;

CREATE TABLE upcall.callbacks (
    root bigint NOT NULL,
    n bigint NOT NULL,
    raised integer NOT NULL,
    settled integer,
    pos bigint NOT NULL,
    created double precision NOT NULL,
    expires double precision,
    version integer NOT NULL DEFAULT 1,
    rank integer NOT NULL,
    delivered boolean NOT NULL DEFAULT false,
    awaited boolean NOT NULL DEFAULT false, -- its session is parked and waits for it
    id text COLLATE "C" PRIMARY KEY,
    status text NOT NULL,
    target text NOT NULL,
    hook_of text COLLATE "C", -- an on_callback hook asks it, which was called for the callback of this id
    message bytea,
    path bytea NOT NULL
) WITH (fillfactor = 80);
CREATE INDEX callbacks_waiting ON upcall.callbacks (rank, created, pos) WHERE status = 'open' AND target = 'user';
CREATE INDEX callbacks_by_root ON upcall.callbacks (root, pos);
CREATE INDEX callbacks_due ON upcall.callbacks
    ((CASE WHEN status = 'open' AND target = 'user' THEN expires ELSE 0 END), root) WHERE awaited;

CREATE TABLE upcall.tags (name bytea, value bytea, root bigint, PRIMARY KEY (name, value, root));
CREATE INDEX tags_by_root ON upcall.tags (root);

CREATE TABLE upcall.blobs (hash text COLLATE "C" PRIMARY KEY, body bytea NOT NULL);
CREATE TABLE upcall.blob_uses (root bigint, hash text COLLATE "C", PRIMARY KEY (root, hash));
CREATE INDEX blob_uses_by_hash ON upcall.blob_uses (hash);

CREATE TABLE upcall.queue (
    root bigint PRIMARY KEY, due double precision NOT NULL DEFAULT 0, rank integer NOT NULL DEFAULT -1,
    turn integer NOT NULL DEFAULT 0, queued integer NOT NULL DEFAULT 0, ready boolean NOT NULL DEFAULT false,
    taken boolean NOT NULL DEFAULT false, agent text NOT NULL, tenant text NOT NULL DEFAULT ''
) WITH (fillfactor = 80);
CREATE INDEX queue_ready ON upcall.queue (rank, tenant, agent, root) WHERE ready AND due = 0;
CREATE INDEX queue_due ON upcall.queue (due) WHERE ready AND due > 0;
CREATE INDEX queue_taken ON upcall.queue (agent, tenant, root) WHERE taken;
CREATE TABLE upcall.takes (at double precision NOT NULL, agent text NOT NULL, tenant text NOT NULL);
CREATE INDEX takes_by_time ON upcall.takes (at, agent, tenant);
CREATE TABLE upcall.pauses (name text PRIMARY KEY, until double precision NOT NULL);

CREATE TABLE upcall.processes (
    id text PRIMARY KEY, name text NOT NULL, machine text NOT NULL, pid bigint NOT NULL, born text NOT NULL,
    lease double precision NOT NULL, beat double precision NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE upcall.tokens (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, role text NOT NULL,
    digest text NOT NULL UNIQUE, created double precision NOT NULL, revoked double precision
);
CREATE UNIQUE INDEX tokens_valid ON upcall.tokens (name) WHERE revoked IS NULL;
CREATE TABLE upcall.refusals (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, time double precision NOT NULL, principal text NOT NULL,
    action text NOT NULL, target text NOT NULL, reason text NOT NULL, address text NOT NULL
);
