-- The role that installs, or upgrades, is the first administrator: there is no superuser who could make one.
DO $$
DECLARE
    ours regprocedure;
BEGIN
    PERFORM webhook.grant_level(session_user, 'admin');
    FOR ours IN
        SELECT m.routine FROM webhook.members() m
        WHERE m.name IN ('webhook_grant', 'webhook_revoke', 'grant_level', 'revoke_level')
    LOOP
        EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO %I', ours, session_user);
    END LOOP;
END $$;
