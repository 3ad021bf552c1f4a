-- What SQL asks of the shared library.

-- A new event id: UUID version 7, ordered by time.
CREATE FUNCTION webhook.new_id() RETURNS uuid
    LANGUAGE c VOLATILE PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'new_id_wrapper';

-- A new signing secret: whsec_ and 32 random bytes in base64.
CREATE FUNCTION webhook.new_secret() RETURNS text
    LANGUAGE c VOLATILE PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'new_secret_wrapper';

-- Wakes this database's worker when the current transaction commits.
CREATE FUNCTION webhook.wake() RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'wake_wrapper';

CREATE FUNCTION webhook.is_preloaded() RETURNS boolean
    LANGUAGE c STABLE PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'is_preloaded_wrapper';

-- What the worker of this database last said of itself; no row where there is none.
CREATE FUNCTION webhook.worker_report(
    OUT pid int, OUT state text, OUT reason text, OUT in_flight int,
    OUT last_error text, OUT last_error_at timestamptz)
    RETURNS SETOF record
    LANGUAGE c VOLATILE PARALLEL SAFE
    AS 'MODULE_PATHNAME', 'worker_report_wrapper';
