-- The functions of a log in PostgreSQL. They are replaced when the schema is upgraded.
--
-- Every write is one statement: a call of one of these functions, which checks, locks, numbers and inserts. So no
-- transaction ever waits for a client, and a write works the same through a transaction pooler.
--
-- Whoever writes to a run tree first locks it, by an advisory lock on its root's id. Several trees are locked in the
-- order of their keys. Only then does the transaction get its id, on which positions are built: so positions rise in
-- the order in which a tree's events are written, and no transaction with an id waits for such a lock. Other locks:
-- 7513 for bodies (shared by those who store some, exclusive for who deletes), 7514 for the limit of the queue,
-- 7515 for limits on what is taken.

CREATE OR REPLACE FUNCTION upcall.clock() RETURNS double precision LANGUAGE sql VOLATILE AS
$$ SELECT extract(epoch FROM clock_timestamp())::double precision $$;

-- When the server was started: while it was down nobody could send a heartbeat.
CREATE OR REPLACE FUNCTION upcall.started() RETURNS double precision LANGUAGE sql STABLE AS
$$ SELECT extract(epoch FROM pg_postmaster_start_time())::double precision $$;

CREATE OR REPLACE FUNCTION upcall.tree_key(root text) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT hashtextextended(root, 7513) $$;

-- Claims are not synced to disk: after a power cut the sequence may repeat a number, and the rest tells them apart.
CREATE OR REPLACE FUNCTION upcall.next_epoch() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (nextval('upcall.epochs') << 16) + floor(random() * 65536)::bigint $$;

CREATE OR REPLACE FUNCTION upcall.alive(process text) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT EXISTS (SELECT 1 FROM upcall.processes p WHERE p.id = process
        AND upcall.clock() - greatest(p.beat, upcall.started()) <= p.lease)
$$;

-- The first position that may still be committed: events below it can be read by position. STABLE, so that it sees
-- what the statement that calls it sees: of a later snapshot it would let positions through above one that is missing.
CREATE OR REPLACE FUNCTION upcall.horizon() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT (pg_snapshot_xmin(pg_current_snapshot())::text::bigint
        + (SELECT value FROM upcall.meta WHERE name = 'offset')) << 16
$$;

-- In a restored dump positions are above this server's transaction ids: continue above them.
CREATE OR REPLACE FUNCTION upcall.continue_positions() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    newest bigint := (SELECT max(pos) >> 16 FROM upcall.events);
    next bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint
        + (SELECT value FROM upcall.meta WHERE name = 'offset');
BEGIN
    IF newest >= next THEN
        UPDATE upcall.meta SET value = value + newest - next + 1 WHERE name = 'offset';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION upcall.beat(
    me text, my_name text, my_machine text, my_pid bigint, my_birth text, my_lease double precision
) RETURNS void LANGUAGE sql AS $$
    INSERT INTO upcall.processes VALUES (me, my_name, my_machine, my_pid, my_birth, my_lease, upcall.clock())
    ON CONFLICT (id) DO UPDATE SET beat = excluded.beat, lease = excluded.lease
$$;

-- Why these turns can't be queued; NULL if they can.
CREATE OR REPLACE FUNCTION upcall.queue_problem(one upcall.sessions, turns jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    last integer := coalesce((SELECT turn FROM upcall.queue WHERE root = one.n), 0); x integer;
BEGIN
    IF one.n <> one.root THEN RETURN 'child'; END IF;
    FOR x IN SELECT (t->>0)::integer FROM jsonb_array_elements(turns) t LOOP
        IF x <= last THEN RETURN 'turn ' || x; END IF;
        last := x;
    END LOOP;
    RETURN NULL;
END $$;

-- Apply an append to a root's place in the queue; the status that the session gets. As `rules.queue_after` does.
CREATE OR REPLACE FUNCTION upcall.update_queue(one upcall.sessions, effects jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    place upcall.queue; x jsonb; status text; retry double precision := coalesce((effects->>'retry')::double precision, 0);
BEGIN
    INSERT INTO upcall.queue (root, agent) VALUES (one.n, one.agent) ON CONFLICT DO NOTHING;
    SELECT q.* INTO place FROM upcall.queue q WHERE q.root = one.n;
    FOR x IN SELECT * FROM jsonb_array_elements(effects->'queued') LOOP
        place.turn := (x->>0)::integer; place.rank := (x->>1)::integer; place.tenant := x->>2;
        place.queued := place.queued + 1;
    END LOOP;
    place.queued := greatest(0, place.queued - coalesce((effects->>'begun')::integer, 0));
    IF effects ? 'unqueued' THEN place.queued := 0; END IF;
    status := coalesce(effects->>'status', one.status);
    IF effects ? 'status' THEN
        place.due := retry;
        place.taken := place.taken AND status = 'running';
    END IF;
    IF retry > 0 THEN
        status := 'queued';
    ELSIF status NOT IN ('running', 'waiting') THEN
        IF effects ? 'unqueued' AND one.status = 'queued' THEN
            place.due := 0; status := 'cancelled';
        ELSIF place.queued > 0 THEN
            status := 'queued';
        END IF;
    END IF;
    UPDATE upcall.queue q SET tenant = place.tenant, rank = place.rank, turn = place.turn, queued = place.queued,
        due = place.due, taken = place.taken, ready = (status = 'queued') WHERE q.root = one.n;
    RETURN status;
END $$;

-- Roots that are ready for another reason than that a turn is queued; some may be owned.
CREATE OR REPLACE FUNCTION upcall.ready_roots() RETURNS SETOF bigint LANGUAGE plpgsql AS $$
DECLARE
    now double precision := upcall.clock();
BEGIN
    RETURN QUERY
    SELECT n FROM upcall.sessions WHERE parent IS NULL AND status = 'running'
    UNION
    SELECT k.root FROM upcall.callbacks k
    WHERE awaited AND CASE WHEN status = 'open' AND target = 'user' THEN expires ELSE 0 END <= now
        AND NOT (status = 'open' AND target <> 'user' AND coalesce(expires > now, true) AND coalesce(
            -- one search for each: as EXISTS it would be one scan of all callbacks
            (SELECT true FROM upcall.callbacks h WHERE h.root = k.root AND h.status = 'open' AND h.hook_of = k.id LIMIT 1),
            false))
    UNION
    SELECT root FROM upcall.queue WHERE ready AND due > 0 AND due <= now;
END $$;

-- Claim the tree that comes next: see `Store.take`. What it reads must not grow with the queue, and the tables grow
-- faster than the planner's statistics. So it has no choice: sessions are looked up one by one (a subquery, or LATERAL
-- with a limit or a lock), and the queue is read in the order of its index, which needs a range and not an equality.
CREATE OR REPLACE FUNCTION upcall.take(
    me text, my_name text, my_machine text, my_pid bigint, my_birth text, my_lease double precision, beat boolean,
    agents text[], skip text[], limits jsonb, counted boolean
) RETURNS TABLE (id text, epoch bigint, seq bigint, base bigint, orphaned boolean) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    now double precision := upcall.clock(); one record; found upcall.sessions; living text[];
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    IF jsonb_array_length(limits) > 0 THEN PERFORM pg_advisory_xact_lock(7515); END IF;
    SELECT coalesce(array_agg(p.id), '{}') INTO living FROM upcall.processes p
    WHERE now - greatest(p.beat, upcall.started()) <= p.lease;
    FOR one IN
        WITH RECURSIVE
        groups (rank, tenant, agent, root) AS (
            (SELECT rank, tenant, agent, root FROM upcall.queue WHERE ready AND due = 0
                ORDER BY rank, tenant, agent, root LIMIT 1)
            UNION ALL
            SELECT x.* FROM groups g CROSS JOIN LATERAL (
                SELECT rank, tenant, agent, root FROM upcall.queue q WHERE ready AND due = 0
                AND (q.rank, q.tenant, q.agent) > (g.rank, g.tenant, g.agent)
                ORDER BY rank, tenant, agent, root LIMIT 1) x
        ),
        running AS (
            SELECT q.agent, q.tenant, count(*) AS trees FROM upcall.queue q
            WHERE q.taken AND (SELECT s.owner FROM upcall.sessions s WHERE s.n = q.root) = ANY (living) GROUP BY 1, 2
        ),
        recent AS (SELECT agent, tenant, count(*) AS trees FROM upcall.takes WHERE at > now - 60 GROUP BY 1, 2),
        full_limits AS (
            SELECT x FROM jsonb_array_elements(limits) x WHERE
            (SELECT coalesce(sum(trees), 0) FROM running r WHERE upcall.covers(x, r.agent, r.tenant))
                >= (x->>'running')::integer
            OR (SELECT coalesce(sum(trees), 0) FROM recent r WHERE upcall.covers(x, r.agent, r.tenant))
                >= (x->>'per_minute')::integer
        ),
        candidates AS (
            SELECT rank, tenant, agent, root, true AS is_group FROM groups
            UNION ALL
            SELECT coalesce(q.rank, -1), coalesce(q.tenant, ''), s.agent, s.n, false
            FROM upcall.ready_roots() x (n)
            CROSS JOIN LATERAL (SELECT * FROM upcall.sessions WHERE n = x.n LIMIT 1) s
            LEFT JOIN LATERAL (SELECT * FROM upcall.queue WHERE root = x.n LIMIT 1) q ON true
            WHERE s.status IN ('running', 'waiting', 'queued') AND s.owner <> ALL (living) AND s.id <> ALL (skip)
        )
        SELECT c.* FROM candidates c WHERE (agents IS NULL OR c.agent = ANY (agents))
        AND NOT EXISTS (SELECT 1 FROM full_limits f WHERE upcall.covers(f.x, c.agent, c.tenant))
        ORDER BY c.rank,
            (SELECT coalesce(sum(trees), 0) FROM running r WHERE r.tenant = c.tenant), c.root
    LOOP
        LOOP
            IF one.is_group THEN
                SELECT s.* INTO found FROM upcall.queue q CROSS JOIN LATERAL (
                    SELECT * FROM upcall.sessions WHERE n = q.root AND owner <> ALL (living) AND id <> ALL (skip)
                    FOR UPDATE SKIP LOCKED) s
                WHERE q.ready AND q.due = 0 AND (q.rank, q.tenant, q.agent) >= (one.rank, one.tenant, one.agent)
                    AND (q.rank, q.tenant, q.agent) <= (one.rank, one.tenant, one.agent)
                ORDER BY q.rank, q.tenant, q.agent, q.root LIMIT 1;
            ELSE
                SELECT s.* INTO found FROM upcall.sessions s WHERE s.n = one.root AND s.owner <> ALL (living)
                    AND s.id <> ALL (skip) AND s.status IN ('running', 'waiting', 'queued') FOR UPDATE SKIP LOCKED;
            END IF;
            EXIT WHEN found.n IS NULL
                OR (NOT upcall.alive(found.owner) AND pg_try_advisory_xact_lock(upcall.tree_key(found.id)));
            skip := skip || found.id; -- it was taken since this began
        END LOOP;
        CONTINUE WHEN found.n IS NULL;
        IF beat THEN PERFORM upcall.beat(me, my_name, my_machine, my_pid, my_birth, my_lease); END IF;
        orphaned := found.owner NOT IN ('', me);
        UPDATE upcall.sessions s SET epoch = upcall.next_epoch(), owner = me, in_queue = true WHERE s.n = found.n
        RETURNING s.id, s.epoch, s.seq, s.base INTO id, epoch, seq, base;
        INSERT INTO upcall.queue (root, agent, taken) VALUES (found.n, found.agent, true)
        ON CONFLICT (root) DO UPDATE SET taken = true;
        IF counted THEN
            DELETE FROM upcall.takes WHERE at <= now - 60;
            INSERT INTO upcall.takes SELECT now, agent, tenant FROM upcall.queue WHERE root = found.n;
        END IF;
        RETURN NEXT;
        RETURN;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION upcall.covers(one_limit jsonb, its_agent text, its_tenant text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT (jsonb_array_length(one_limit->'agents') = 0 OR one_limit->'agents' ? its_agent)
        AND (one_limit->>'tenant' IS NULL OR one_limit->>'tenant' = its_tenant)
$$;

CREATE OR REPLACE FUNCTION upcall.create_session(p jsonb, bodies bytea[], now double precision)
RETURNS upcall.sessions LANGUAGE plpgsql AS $$
DECLARE
    new jsonb := p->'new'; one upcall.sessions; number bigint := nextval('upcall.sessions_n_seq');
BEGIN
    INSERT INTO upcall.sessions (n, id, agent, parent, root, kind, created, updated, tags, title, folder, roots)
    OVERRIDING SYSTEM VALUE VALUES (
        number, p->>'s', new->>'agent', (SELECT n FROM upcall.sessions WHERE id = new->>'parent'),
        coalesce((SELECT n FROM upcall.sessions WHERE id = new->>'root'), number), new->>'kind', now, now,
        bodies[(new->>'tags')::integer], bodies[(new->>'title')::integer], bodies[(new->>'folder')::integer],
        bodies[(new->>'roots')::integer]
    ) RETURNING * INTO one;
    INSERT INTO upcall.tags SELECT bodies[(x->>0)::integer], bodies[(x->>1)::integer], one.root
    FROM jsonb_array_elements(new->'tag_rows') x ON CONFLICT DO NOTHING;
    RETURN one;
END $$;

-- The rows of callbacks, and bodies that a hook replaced.
CREATE OR REPLACE FUNCTION upcall.apply_effects(
    one upcall.sessions, effects jsonb, bodies bytea[], now double precision, start bigint, first bigint
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    x jsonb;
BEGIN
    IF effects ? 'status' AND one.status = 'waiting' THEN
        UPDATE upcall.callbacks SET awaited = false WHERE root = one.root AND n = one.n AND awaited;
    END IF;
    FOR x IN SELECT * FROM jsonb_array_elements(effects->'drop') LOOP
        UPDATE upcall.events SET body = bodies[(x->>1)::integer] WHERE n = one.n AND seq = (x->>0)::integer;
    END LOOP;
    FOR x IN SELECT * FROM jsonb_array_elements(effects->'raised') LOOP
        INSERT INTO upcall.callbacks
            (root, n, raised, settled, pos, created, expires, rank, awaited, id, status, target, hook_of, message, path)
        VALUES (
            one.root, one.n, first + (x->>'at')::integer, first + (x->>'settled')::integer,
            start + (x->>'at')::integer, now, (x->>'expires')::double precision, (x->>'rank')::integer,
            (x->>'awaited')::boolean, x->>'id', x->>'status', x->>'target', x->>'hook_of',
            bodies[(x->>'message')::integer], bodies[(x->>'path')::integer]
        );
    END LOOP;
    FOR x IN SELECT * FROM jsonb_array_elements(effects->'changed') LOOP
        UPDATE upcall.callbacks SET status = x->>'status', target = x->>'target',
            message = bodies[(x->>'message')::integer], path = bodies[(x->>'path')::integer],
            expires = (x->>'expires')::double precision, settled = first + (x->>'settled')::integer,
            delivered = delivered AND NOT x ? 'reopened', version = version + 1
        WHERE id = x->>'id';
    END LOOP;
    IF effects ? 'delivered' THEN
        UPDATE upcall.callbacks SET delivered = true
        WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(effects->'delivered')));
    END IF;
    IF effects ? 'waits' THEN
        UPDATE upcall.callbacks SET awaited = true
        WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(effects->'waits')));
    END IF;
END $$;

-- Only who deletes bodies has the lock on them alone: a body that is there stays until this commits.
CREATE OR REPLACE FUNCTION upcall.put_blobs(tree bigint, blobs jsonb, bodies bytea[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO upcall.blobs SELECT x->>0, bodies[(x->>1)::integer] FROM jsonb_array_elements(blobs) x
    WHERE NOT EXISTS (SELECT 1 FROM upcall.blobs b WHERE b.hash = x->>0) ORDER BY 1 ON CONFLICT DO NOTHING;
    INSERT INTO upcall.blob_uses SELECT tree, x->>0 FROM jsonb_array_elements(blobs) x ON CONFLICT DO NOTHING;
END $$;

-- Write several jobs in one transaction; each is written whole or not at all. `jobs` says what to do, everything that
-- a model can word is in `bodies`. A row without a problem says how the events of one part of a job were stamped.
CREATE OR REPLACE FUNCTION upcall.write(jobs jsonb, bodies bytea[], lazy boolean)
RETURNS TABLE (job integer, part integer, first bigint, start bigint, at double precision, problem text, detail text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    keys bigint[]; key bigint; failed text[] := '{}'; notify boolean := false;
    each jsonb[] := ARRAY(SELECT jsonb_array_elements(jobs)); -- `jobs->n` would copy all of them each time
    parts jsonb[]; j jsonb; p jsonb; claimed text; k bigint; others uuid; at_root bigint; tree bigint; held bigint;
    found_rows upcall.sessions[]; one upcall.sessions; owned upcall.sessions; root_id text; jn integer; pn integer; number integer; wrong text; why text;
    now double precision; place bigint; count integer; new_status text;
BEGIN
    IF lazy THEN PERFORM set_config('synchronous_commit', 'off', true); END IF;
    IF jsonb_path_exists(jobs, '$[*].blobs[0]') THEN PERFORM pg_advisory_xact_lock_shared(7513); END IF;
    IF jsonb_path_exists(jobs, '$[*].queue_limit') THEN PERFORM pg_advisory_xact_lock(7514); END IF;
    SELECT array_agg(DISTINCT upcall.tree_key(t.root) ORDER BY upcall.tree_key(t.root)) INTO keys FROM (
        SELECT x->>'claim' AS root FROM jsonb_array_elements(jobs) x WHERE x ? 'claim'
        UNION ALL
        SELECT coalesce((SELECT r.id FROM upcall.sessions s JOIN upcall.sessions r ON r.n = s.root WHERE s.id = y->>'s'),
            y->'new'->>'root', y->>'s')
        FROM jsonb_array_elements(jobs) x, jsonb_array_elements(x->'parts') y WHERE NOT x ? 'k'
    ) t;
    FOREACH key IN ARRAY keys LOOP PERFORM pg_advisory_xact_lock(key); END LOOP;
    now := upcall.clock();

    <<each_job>>
    FOR jn IN 0 .. cardinality(each) - 1 LOOP
        job := jn; j := each[jn + 1]; parts := ARRAY(SELECT jsonb_array_elements(j->'parts')); claimed := j->>'claim'; k := (j->>'k')::bigint; others := (j->>'id')::uuid;
        part := 0; first := NULL; start := NULL; at := NULL; problem := NULL; detail := NULL; at_root := NULL;
        tree := NULL; held := NULL; one := NULL;
        IF j ? 'again' THEN -- an earlier attempt may have written it
            number := 0;
            FOR pn IN 0 .. cardinality(parts) - 1 LOOP
                part := pn;
                SELECT e.seq, e.pos, e.time INTO first, start, at FROM upcall.sessions s JOIN upcall.events e ON e.n = s.n
                WHERE s.id = parts[pn + 1]->>'s' AND (e.append = k OR e.by_others = others)
                ORDER BY e.n DESC, e.seq DESC LIMIT 1;
                IF FOUND THEN
                    count := jsonb_array_length(parts[pn + 1]->'b');
                    first := first - count + 1; start := start - count + 1;
                    number := number + 1; RETURN NEXT;
                END IF;
            END LOOP;
            CONTINUE each_job WHEN number > 0;
            part := 0;
        END IF;

        IF claimed IS NOT NULL THEN
            SELECT s.* INTO owned FROM upcall.sessions s WHERE s.id = claimed;
            tree := owned.n; held := owned.epoch;
            IF NOT FOUND OR held <> (j->>'epoch')::bigint THEN
                problem := 'taken'; failed := failed || claimed; RETURN NEXT; CONTINUE;
            END IF;
            IF claimed = ANY (failed) THEN problem := 'failed'; RETURN NEXT; CONTINUE; END IF;
            IF k IS NOT NULL THEN at_root := tree; END IF;
        END IF;
        -- check everything before anything is written
        IF (j->>'before')::double precision <= now THEN problem := 'stale'; RETURN NEXT; CONTINUE; END IF;
        IF j ? 'expect' THEN
            IF EXISTS (
                SELECT 1 FROM jsonb_array_elements(j->'expect') x LEFT JOIN upcall.callbacks b ON b.id = x->>0
                WHERE b.version IS DISTINCT FROM (x->>1)::integer
            ) THEN
                problem := 'stale'; RETURN NEXT; CONTINUE;
            END IF;
        END IF;
        found_rows := '{}'; wrong := NULL;
        FOR pn IN 0 .. cardinality(parts) - 1 LOOP
            p := parts[pn + 1]; why := NULL;
            IF p->>'s' = claimed THEN
                one := owned;
            ELSE
                SELECT s.* INTO one FROM upcall.sessions s WHERE s.id = p->>'s';
            END IF;
            IF one.n IS NULL THEN
                IF NOT p ? 'new' OR at_root IS NOT NULL AND claimed <> coalesce(p->'new'->>'root', p->>'s') THEN
                    why := 'absent';
                ELSE
                    SELECT x INTO why FROM jsonb_array_elements_text(p->'new'->'needs') x
                    WHERE NOT EXISTS (SELECT 1 FROM upcall.sessions s WHERE s.id = x)
                    ORDER BY x LIMIT 1;
                    why := 'needs ' || why;
                END IF;
            ELSIF (p->>'seq')::bigint <> one.seq THEN
                why := 'stale';
            ELSIF p ? 'new' THEN
                why := 'present';
            ELSIF at_root IS NULL THEN
                IF NOT (p->>'foreign')::boolean THEN why := 'present'; END IF;
                SELECT r.id INTO root_id FROM upcall.sessions r WHERE r.n = one.root;
                IF NOT upcall.tree_key(root_id) = ANY (keys) THEN -- it was created while this waited for a lock
                    RAISE serialization_failure USING MESSAGE = 'the session was just created';
                END IF;
            ELSIF one.root <> at_root THEN
                why := 'present';
            END IF;
            IF why IS NULL AND p ? 'turns' THEN
                why := upcall.queue_problem(one, p->'turns');
            END IF;
            IF why IS NOT NULL AND wrong IS NULL THEN wrong := why; part := pn; END IF;
            found_rows[pn] := one;
        END LOOP;
        IF wrong IS NULL AND j ? 'queue_limit' THEN
            SELECT count(*) INTO number FROM upcall.queue WHERE ready;
            IF number + (j->>'queues')::integer > (j->>'queue_limit')::integer THEN wrong := 'full'; END IF;
        END IF;
        IF wrong IS NOT NULL THEN
            IF wrong = 'stale' THEN
                problem := 'stale';
            ELSE
                problem := 'refused'; detail := wrong;
                IF at_root IS NOT NULL THEN failed := failed || claimed; END IF;
            END IF;
            RETURN NEXT; CONTINUE;
        END IF;

        IF place IS NULL THEN
            SELECT (pg_current_xact_id()::text::bigint + value) << 16 INTO place FROM upcall.meta WHERE name = 'offset';
        END IF;
        at := now;
        FOR pn IN 0 .. cardinality(parts) - 1 LOOP
            part := pn; p := parts[pn + 1]; one := found_rows[pn];
            IF one.n IS NULL THEN one := upcall.create_session(p, bodies, now); END IF;
            first := one.seq + 1; start := place + 1;
            count := jsonb_array_length(p->'b');
            INSERT INTO upcall.events (n, pos, time, seq, append, by_others, body)
            SELECT one.n, place + x.i, now, one.seq + x.i, k, others, bodies[x.b::integer]
            FROM jsonb_array_elements_text(p->'b') WITH ORDINALITY x (b, i);
            place := place + count;
            IF p->'effects' ?| '{drop,raised,changed,delivered,waits}' OR p->'effects' ? 'status' AND one.status = 'waiting' THEN
                PERFORM upcall.apply_effects(one, p->'effects', bodies, now, start, first);
            END IF;
            new_status := coalesce(p->'effects'->>'status', one.status);
            IF one.n = one.root AND (one.in_queue AND p ? 'effects' OR p ? 'turns') THEN
                new_status := upcall.update_queue(one, p->'effects');
                one.in_queue := true;
            END IF;
            UPDATE upcall.sessions SET seq = one.seq + count, updated = now, status = new_status, in_queue = one.in_queue,
                base = coalesce((p->'effects'->>'base')::bigint, first + (p->'effects'->>'base_at')::bigint, base),
                owner = CASE WHEN n = at_root AND (j->>'release')::boolean THEN '' ELSE owner END
            WHERE n = one.n AND (n IS DISTINCT FROM at_root OR epoch = held);
            IF NOT FOUND THEN RAISE serialization_failure USING MESSAGE = 'the tree was taken just now'; END IF;
            IF one.n = one.root THEN
                notify := notify OR new_status = 'queued' OR new_status = 'running' AND (j->>'release')::boolean;
            END IF;
            IF one.n = at_root THEN at_root := NULL; END IF;
            RETURN NEXT;
        END LOOP;
        IF at_root IS NOT NULL AND (j->>'release')::boolean THEN -- only other sessions of the tree were written
            UPDATE upcall.sessions SET owner = '' WHERE n = at_root AND epoch = held;
        END IF;
        IF j ? 'blobs' THEN PERFORM upcall.put_blobs(coalesce(one.root, tree), j->'blobs', bodies); END IF;
        notify := notify OR j ? 'notify';
    END LOOP;
    IF notify THEN PERFORM pg_notify('upcall', ''); END IF;
END $$;

-- Become the owner of a tree. `gone`: an owner that is known to have ended.
CREATE OR REPLACE FUNCTION upcall.claim(wanted text, me text, take_over boolean, gone text) RETURNS TABLE (problem text, epoch bigint, seq bigint, base bigint, orphaned boolean,
    owner text, name text, machine text, pid bigint, born text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    found upcall.sessions; p upcall.processes;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true); -- after a crash of the server no claim counts
    PERFORM pg_advisory_xact_lock(upcall.tree_key(wanted));
    SELECT s.* INTO found FROM upcall.sessions s WHERE s.id = wanted AND s.n = s.root FOR UPDATE;
    IF found.n IS NULL THEN
        problem := CASE WHEN EXISTS (SELECT 1 FROM upcall.sessions WHERE id = wanted) THEN 'child' ELSE 'unknown' END;
        RETURN NEXT; RETURN;
    END IF;
    IF NOT take_over AND found.owner NOT IN ('', me, gone) AND upcall.alive(found.owner) THEN
        SELECT x.* INTO p FROM upcall.processes x WHERE x.id = found.owner;
        problem := 'busy'; owner := p.id; name := p.name; machine := p.machine; pid := p.pid; born := p.born;
        RETURN NEXT; RETURN;
    END IF;
    orphaned := NOT take_over AND found.owner NOT IN ('', me);
    UPDATE upcall.sessions s SET epoch = upcall.next_epoch(), owner = me WHERE s.n = found.n
    RETURNING s.epoch, s.seq, s.base INTO epoch, seq, base;
    RETURN NEXT;
END $$;

-- Become the owner of several trees; the values are those of `upcall.claim`, for each tree.
CREATE OR REPLACE FUNCTION upcall.claim_all(
    wanted text[], me text, my_name text, my_machine text, my_pid bigint, my_birth text, my_lease double precision,
    beat boolean, take_over boolean[], gone text[]
) RETURNS TABLE (place integer, problem text, epoch bigint, seq bigint, base bigint, orphaned boolean,
    owner text, name text, machine text, pid bigint, born text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    one record;
BEGIN
    FOR one IN SELECT x.* FROM unnest(wanted, take_over, gone) WITH ORDINALITY x (root, over, dead, n)
        ORDER BY upcall.tree_key(x.root), x.n
    LOOP
        place := one.n;
        SELECT c.* INTO problem, epoch, seq, base, orphaned, owner, name, machine, pid, born
        FROM upcall.claim(one.root, me, one.over, one.dead) c;
        RETURN NEXT;
    END LOOP;
    IF beat THEN PERFORM upcall.beat(me, my_name, my_machine, my_pid, my_birth, my_lease); END IF;
END $$;

-- Send a heartbeat, release claims that failed here, and return the trees of these claims that others own now.
CREATE OR REPLACE FUNCTION upcall.renew(
    me text, my_name text, my_machine text, my_pid bigint, my_birth text, my_lease double precision,
    roots text[], epochs bigint[]
) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM upcall.beat(me, my_name, my_machine, my_pid, my_birth, my_lease);
    RETURN (SELECT coalesce(array_agg(x.root), '{}') FROM unnest(roots, epochs) x (root, epoch)
        WHERE NOT EXISTS (SELECT 1 FROM upcall.sessions s WHERE s.id = x.root AND s.epoch = x.epoch));
END $$;

CREATE OR REPLACE FUNCTION upcall.release(wanted text, held bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM pg_advisory_xact_lock(upcall.tree_key(wanted));
    UPDATE upcall.sessions SET owner = '' WHERE id = wanted AND epoch = held;
END $$;

-- Delete whole trees that nobody owns, with the bodies that nothing else uses. `gone`: owners that have ended.
CREATE OR REPLACE FUNCTION upcall.remove(wanted text[], gone text[], again boolean)
RETURNS TABLE (problem text, session text, owner text, deleted bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    trees bigint[]; names text[]; key bigint; one text; tree record;
BEGIN
    PERFORM pg_advisory_xact_lock(7513);
    FOR key IN SELECT DISTINCT upcall.tree_key(r.id) FROM upcall.sessions s JOIN upcall.sessions r ON r.n = s.root
        WHERE s.id = ANY (wanted) ORDER BY 1
    LOOP PERFORM pg_advisory_xact_lock(key); END LOOP;
    FOREACH one IN ARRAY wanted LOOP
        SELECT r.n, r.owner INTO tree FROM upcall.sessions s JOIN upcall.sessions r ON r.n = s.root WHERE s.id = one
        FOR UPDATE OF r;
        IF NOT FOUND THEN
            CONTINUE WHEN again;
            problem := 'unknown'; session := one; RETURN NEXT; RETURN;
        END IF;
        IF tree.owner <> '' AND tree.owner <> ALL (gone) AND upcall.alive(tree.owner) THEN
            problem := 'busy'; session := one; owner := tree.owner; RETURN NEXT; RETURN;
        END IF;
        trees := trees || tree.n;
    END LOOP;
    SELECT array_agg(DISTINCT hash) INTO names FROM upcall.blob_uses WHERE root = ANY (trees);
    DELETE FROM upcall.blob_uses WHERE root = ANY (trees);
    DELETE FROM upcall.blobs b WHERE b.hash = ANY (names)
        AND NOT EXISTS (SELECT 1 FROM upcall.blob_uses u WHERE u.hash = b.hash);
    DELETE FROM upcall.tags WHERE root = ANY (trees);
    DELETE FROM upcall.queue WHERE root = ANY (trees);
    DELETE FROM upcall.callbacks WHERE root = ANY (trees);
    DELETE FROM upcall.events WHERE n IN (
        SELECT n FROM upcall.sessions WHERE n = ANY (trees) OR (parent IS NOT NULL AND root = ANY (trees)));
    DELETE FROM upcall.sessions WHERE n = ANY (trees) OR (parent IS NOT NULL AND root = ANY (trees));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN NEXT;
END $$;
