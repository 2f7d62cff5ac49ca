-- What waits for a worker now, for autoscalers: depth, and the age of the oldest in seconds, by agent.
-- Run it as the owner of the schema, before deploy/roles.sql.

CREATE OR REPLACE VIEW upcall.backlog AS
SELECT s.agent, count(*) AS depth, max(upcall.clock() - s.updated) AS oldest_seconds
FROM upcall.sessions s
WHERE s.n IN (
    SELECT root FROM upcall.queue WHERE ready AND due <= upcall.clock()
    UNION SELECT upcall.ready_roots()
) AND s.status IN ('running', 'waiting', 'queued') AND NOT upcall.alive(s.owner)
GROUP BY s.agent;
