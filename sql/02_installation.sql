-- The identity of the installation. A copy of a database must not repeat the requests of the original, so it has to know that
-- it is a copy.
--
-- CREATE EXTENSION makes the id of an installation once, as a constant in the body of a function that belongs to the
-- extension: no dump, no DML and no publication carries it, and pg_upgrade and physical copies keep it. With the database's
-- OID and webhook.site it makes the origin that endpoints carry. A restore has another id, a TEMPLATE copy another OID, a
-- staging server with a name of its own another site: their workers hold the endpoints until webhook_adopt().
--
-- A standby that pg_createsubscriber makes a server of its own keeps all three. Its system identifier is new, but its major
-- version is the same, unlike after pg_upgrade: the worker gives it another id when it starts.

CREATE OR REPLACE FUNCTION webhook.write_installation(new_id uuid) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('CREATE OR REPLACE FUNCTION webhook.installation()
                        RETURNS TABLE (id uuid, system_identifier bigint, major_version int) LANGUAGE sql IMMUTABLE BEGIN ATOMIC SELECT %L::uuid, %L::bigint, %s; END',
                   new_id, webhook.system_identifier(), webhook.major_version());
END $$;

CREATE OR REPLACE FUNCTION webhook.major_version() RETURNS int
    LANGUAGE sql STABLE
    RETURN current_setting('server_version_num')::int / 10000;

DO $$
BEGIN
    IF to_regprocedure('webhook.installation()') IS NULL THEN
        PERFORM webhook.write_installation(gen_random_uuid());
    END IF;
END $$;

-- A worker calls this before it sends anything.
CREATE OR REPLACE FUNCTION webhook.recognise_installation() RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known record;
BEGIN
    SELECT i.* INTO known FROM webhook.installation() i;
    IF known.system_identifier <> webhook.system_identifier() THEN
        PERFORM webhook.write_installation(
            CASE WHEN known.major_version = webhook.major_version() THEN gen_random_uuid() ELSE known.id END);
    END IF;
END $$;

-- This is plpgsql for the same reason as webhook.policy_of(). A session without the library knows no webhook.site, which means
-- no site.
CREATE OR REPLACE FUNCTION webhook.origin() RETURNS text
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN left(encode(sha256(convert_to(
        concat(i.id, '/', d.oid, '/', webhook.setting('site'), webhook.server_mark()), 'UTF8')), 'hex'), 32)
    FROM webhook.installation() i, pg_database d WHERE d.datname = current_database();
END $$;

-- The version of the protocol between this SQL and the programs that call it. It changes with every change of a call that they
-- make, and a program with another version delivers nothing and says so (src/protocol.rs).
CREATE OR REPLACE FUNCTION webhook.protocol() RETURNS int
    LANGUAGE sql IMMUTABLE
    RETURN 1;
