-- Event triggers whose function another role can replace, unless that role is a superuser. Such a function would run with the
-- rights of the role that works.
SELECT format('event trigger %I calls %s of role %I', e.evtname, p.oid::regprocedure, r.rolname)
FROM pg_event_trigger e
JOIN pg_proc p ON p.oid = e.evtfoid
JOIN pg_roles r ON r.oid = p.proowner
WHERE e.evtenabled <> 'D' AND NOT r.rolsuper AND r.rolname <> session_user
ORDER BY e.evtname
