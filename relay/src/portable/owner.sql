-- Why role $1 cannot own the schema, with the remedy; or null. Functions of the owner run with its rights, so no other role may
-- be able to act as the owner. The role that works may be a member.
SELECT CASE
    WHEN r.oid < 16384 THEN
        'is predefined, and the catalogs do not list all of its members: drop its schema "webhook", or name another with --owner'
    WHEN r.rolsuper OR r.rolcreaterole OR r.rolcreatedb OR r.rolreplication OR r.rolbypassrls THEN format(
        'has rights that the owner of webhook''s tables must not have: ALTER ROLE %I NOSUPERUSER NOCREATEDB NOCREATEROLE '
        'NOREPLICATION NOBYPASSRLS', r.rolname)
    WHEN r.rolcanlogin AND r.rolconnlimit <> 0 THEN format('can be used by clients: ALTER ROLE %I NOLOGIN', r.rolname)
    WHEN EXISTS (SELECT FROM pg_auth_members m
                 WHERE m.member = r.oid
                    OR m.roleid = r.oid AND m.member <> me.oid
                       AND (pg_has_role(m.member, m.roleid, 'USAGE')
                            OR pg_has_role(m.member, m.roleid, CASE WHEN v.splits_membership THEN 'SET' ELSE 'MEMBER' END))) THEN
        'is a member of a role, or has members: \drg lists them in psql 16 and later, pg_auth_members does everywhere'
    WHEN EXISTS (SELECT FROM pg_default_acl d WHERE d.defaclrole = r.oid) THEN
        'has default privileges, which would give others a right to all that is made: \ddp lists them in psql'
END
FROM pg_roles r
JOIN pg_roles me ON me.rolname = session_user
CROSS JOIN (SELECT current_setting('server_version_num')::int >= 160000) AS v (splits_membership)
WHERE r.rolname = $1
