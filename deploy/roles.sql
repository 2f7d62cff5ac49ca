-- Least privilege for a log in PostgreSQL. Run it as the owner of the schema `upcall`, after the first
-- `upcall status --store postgresql://owner@…` has created the schema. Whoever can write to these tables is an operator:
-- people who only look get upcall_viewer.

DO $$ BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'upcall_worker') THEN CREATE ROLE upcall_worker NOLOGIN; END IF;
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'upcall_viewer') THEN CREATE ROLE upcall_viewer NOLOGIN; END IF;
END $$;

REVOKE ALL ON SCHEMA upcall FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA upcall FROM PUBLIC;

-- Workers, `upcall submit`, `upcall answer` and `upcall serve`. They can't change the schema.
GRANT USAGE ON SCHEMA upcall TO upcall_worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA upcall TO upcall_worker;
GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA upcall TO upcall_worker;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA upcall TO upcall_worker;

-- Dashboards and autoscalers.
GRANT USAGE ON SCHEMA upcall TO upcall_viewer;
GRANT SELECT ON ALL TABLES IN SCHEMA upcall TO upcall_viewer;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA upcall TO upcall_viewer;
