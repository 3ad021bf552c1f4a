-- The end of CREATE EXTENSION: delivery starts when it commits, or a WARNING says what is missing.

DO $$
BEGIN
    IF NOT webhook.is_preloaded() THEN
        RAISE WARNING 'webhook records events, but nothing delivers them yet'
            USING DETAIL = 'The library is not in shared_preload_libraries.',
                  HINT = 'Set shared_preload_libraries = ''webhook'' in postgresql.conf (keep the libraries that are there) and restart the server.';
    END IF;
END $$;

SELECT webhook.wake();
