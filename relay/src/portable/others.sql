-- The objects in schema webhook that do not belong to role $1.
SELECT pg_describe_object(d.classid, d.objid, 0)
FROM pg_depend d
JOIN pg_namespace n ON d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid
WHERE n.nspname = 'webhook' AND d.deptype = 'n'
  AND NOT EXISTS (
      SELECT FROM pg_shdepend s
      JOIN pg_database b ON b.oid = s.dbid AND b.datname = current_database()
      JOIN pg_roles r ON s.refclassid = 'pg_authid'::regclass AND s.refobjid = r.oid
      WHERE s.classid = d.classid AND s.objid = d.objid AND s.deptype = 'o' AND r.rolname = $1)
ORDER BY 1
