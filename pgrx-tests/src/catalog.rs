//! The objects of the extension, or of a relay's installation, in the catalogs: for a comparison of two databases or
//! of one before and after an upgrade.

use crate::Database;

/// Facts of the extension's objects by names and not by OIDs; and the policies. Columns that were dropped, and values
/// that a new column has in older rows, are no difference. The id of an installation is its own; so is a version that
/// some servers note with each column (pg_attver).
const FACTS: &str = r#"
WITH RECURSIVE ours (classid, objid) AS (
    SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension x ON d.refobjid = x.oid
    WHERE d.refclassid = 'pg_extension'::regclass AND x.extname = 'webhook' AND d.deptype = 'e'
    UNION
    SELECT d.classid, d.objid FROM pg_shdepend d JOIN pg_namespace n ON n.nspname = 'webhook' AND n.nspowner = d.refobjid
    WHERE d.refclassid = 'pg_authid'::regclass AND d.deptype = 'o'
      AND d.dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
    UNION
    SELECT d.classid, d.objid FROM ours o JOIN pg_depend d ON d.refclassid = o.classid AND d.refobjid = o.objid
    WHERE d.deptype IN ('a', 'i', 'P', 'S') AND o.classid <> 'pg_namespace'::regclass
), fact (object, fact) AS (
    SELECT pg_describe_object(o.classid, o.objid, 0), f.fact
    FROM ours o
    CROSS JOIN LATERAL (
        SELECT regexp_replace(pg_get_functiondef(p.oid), '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', 'uuid')
        FROM pg_proc p WHERE o.classid = 'pg_proc'::regclass AND p.oid = o.objid AND p.prokind <> 'a'
        UNION ALL
        SELECT format('function of %s: %s', p.proowner::regrole, p.proacl)
        FROM pg_proc p WHERE o.classid = 'pg_proc'::regclass AND p.oid = o.objid
        UNION ALL
        SELECT (to_jsonb(a) - '{aggtranstype,aggmtranstype,aggsortop}'::text[])::text || format_type(a.aggtranstype, NULL)
        FROM pg_aggregate a WHERE o.classid = 'pg_proc'::regclass AND a.aggfnoid = o.objid
        UNION ALL
        SELECT (to_jsonb(c) - '{oid,relnamespace,reltype,relowner,relfilenode,reltoastrelid,relnatts,relpartbound,relpages,reltuples,
                                relallvisible,relallfrozen,relfrozenxid,relminmxid}'::text[])::text
               || concat_ws(' ', c.relowner::regrole, pg_get_expr(c.relpartbound, c.oid), pg_get_partkeydef(c.oid))
        FROM pg_class c WHERE o.classid = 'pg_class'::regclass AND c.oid = o.objid
        UNION ALL
        SELECT pg_get_viewdef(c.oid) FROM pg_class c WHERE o.classid = 'pg_class'::regclass AND c.oid = o.objid AND c.relkind = 'v'
        UNION ALL
        SELECT pg_get_indexdef(i.indexrelid) FROM pg_index i WHERE o.classid = 'pg_class'::regclass AND i.indexrelid = o.objid
        UNION ALL
        SELECT (to_jsonb(a) - '{attrelid,atttypid,attnum,attcollation,attoptions,atthasmissing,attmissingval}'::text[])::text
               || concat_ws(' ', rank() OVER (ORDER BY a.attnum), format_type(a.atttypid, a.atttypmod), a.attcollation::regcollation,
                            array(SELECT o FROM unnest(a.attoptions) o WHERE o NOT LIKE 'pg\_attver=%'))
        FROM pg_attribute a WHERE o.classid = 'pg_class'::regclass AND a.attrelid = o.objid AND NOT a.attisdropped
        UNION ALL
        SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d WHERE o.classid = 'pg_attrdef'::regclass AND d.oid = o.objid
        UNION ALL
        SELECT pg_get_constraintdef(c.oid) FROM pg_constraint c WHERE o.classid = 'pg_constraint'::regclass AND c.oid = o.objid
        UNION ALL
        SELECT format('%s (%s)', pg_get_triggerdef(t.oid), t.tgenabled) FROM pg_trigger t WHERE o.classid = 'pg_trigger'::regclass AND t.oid = o.objid
        UNION ALL
        SELECT format('type of %s: %s %s %s', t.typowner::regrole, t.typacl, t.typtype, format_type(nullif(t.typbasetype, 0), t.typtypmod))
        FROM pg_type t WHERE o.classid = 'pg_type'::regclass AND t.oid = o.objid
        UNION ALL
        SELECT format('schema of %s: %s', n.nspowner::regrole, n.nspacl)
        FROM pg_namespace n WHERE o.classid = 'pg_namespace'::regclass AND n.oid = o.objid
        UNION ALL
        SELECT format('comment on %s: %s', part.name, d.description) FROM pg_description d
        CROSS JOIN LATERAL (SELECT CASE WHEN d.objsubid > 0 THEN pg_describe_object(d.classoid, d.objoid, d.objsubid) END) AS part (name)
        WHERE d.classoid = o.classid AND d.objoid = o.objid
        UNION ALL
        SELECT format('initial privileges %s: %s', i.objsubid, i.initprivs) FROM pg_init_privs i WHERE i.classoid = o.classid AND i.objoid = o.objid
        UNION ALL
        SELECT format('%s depends on %s: %s', pg_describe_object(d.classid, d.objid, d.objsubid),
                      pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid), d.deptype)
        FROM pg_depend d WHERE d.classid = o.classid AND d.objid = o.objid
        UNION ALL
        SELECT format('depends on role %s: %s', d.refobjid::regrole, d.deptype) FROM pg_shdepend d
        WHERE d.dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND d.classid = o.classid AND d.objid = o.objid
          AND d.refclassid = 'pg_authid'::regclass
    ) f (fact)
    WHERE pg_describe_object(o.classid, o.objid, 0) NOT LIKE '%pg\_toast%'
    UNION ALL
    SELECT 'policy ' || p.name, p::text FROM webhook.policy p
)
SELECT object, fact FROM fact WHERE fact IS NOT NULL ORDER BY object, fact COLLATE "C"
"#;

#[derive(Debug, PartialEq, Eq)]
pub struct Facts(Vec<String>);

impl Facts {
    #[track_caller]
    pub fn of(database: &Database) -> Facts {
        let rows = database.connect().query(FACTS, &[]).unwrap();
        let fact = |row: &postgres::Row| {
            format!("{}: {}", row.get::<_, String>(0), row.get::<_, String>(1))
        };
        let facts: Vec<String> = rows.iter().map(fact).collect();
        assert!(facts.len() > 2_000, "{} facts", facts.len());
        Facts(facts)
    }

    /// The facts that the others lack.
    pub fn beyond<'a>(&'a self, others: &Facts) -> Vec<&'a str> {
        let missing = self.0.iter().filter(|fact| !others.0.contains(fact));
        missing.map(String::as_str).collect()
    }
}
