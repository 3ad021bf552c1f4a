//! Names and signatures that a release has promised: pgrx-tests/api-*.txt, one file for each minor version. Functions
//! and views only grow from there.

use std::collections::BTreeMap;

use crate::database::Database;

/// A block for each function, procedure and view: its name, and indented below it its members in order. Functions
/// that meet a json argument with a HINT are no promise.
const SIGNATURES: &str = "
    SELECT block.head, array_to_string(array_agg('    ' || m.member ORDER BY m.ordinal), E'\\n')
    FROM (
        SELECT a.kind || ' ' || a.name, p.oid, 'pg_proc'::regclass FROM webhook.api() a
        JOIN webhook.members() m USING (name) JOIN pg_proc p ON p.oid = m.routine
        WHERE a.kind IN ('function', 'procedure') AND 'webhook.type_beside_json'::regtype <> ALL (p.proargtypes)
        UNION ALL
        SELECT a.kind || ' webhook.' || a.name, c.oid, 'pg_class' FROM webhook.api() a
        JOIN pg_class c ON c.relnamespace = 'webhook'::regnamespace AND c.relname = a.name
        WHERE a.kind = 'view'
    ) block (head, oid, catalog)
    CROSS JOIN LATERAL (
        SELECT a.attnum, format('column %s %s', a.attname, format_type(a.atttypid, NULL))
        FROM pg_attribute a
        WHERE block.catalog = 'pg_class'::regclass AND a.attrelid = block.oid AND a.attnum > 0
        UNION ALL
        SELECT 0, format('returns %s%s', CASE WHEN p.proretset THEN 'setof ' END, format_type(p.prorettype, NULL))
        FROM pg_proc p WHERE block.catalog = 'pg_proc'::regclass AND p.oid = block.oid AND p.prokind = 'f'
        UNION ALL
        SELECT a.ordinal, format('%s %s %s%s', CASE WHEN a.is_input THEN 'parameter' ELSE 'result' END, p.proargnames[a.ordinal],
                                 format_type(a.type, NULL),
                                 CASE WHEN a.is_input AND a.inputs > p.pronargs - p.pronargdefaults THEN ' default' END)
        FROM pg_proc p
        CROSS JOIN LATERAL (
            SELECT t.type, t.ordinal, d.is_input, count(*) FILTER (WHERE d.is_input) OVER (ORDER BY t.ordinal) AS inputs
            FROM unnest(coalesce(p.proallargtypes, p.proargtypes::oid[])) WITH ORDINALITY AS t (type, ordinal),
                 LATERAL (SELECT coalesce(p.proargmodes[t.ordinal], 'i') IN ('i', 'b', 'v') AS is_input) d
        ) a
        WHERE block.catalog = 'pg_proc'::regclass AND p.oid = block.oid
    ) m (ordinal, member)
    GROUP BY block.head, block.oid, block.catalog";

pub fn list(database: &Database) -> String {
    let rows = database.connect().query(SIGNATURES, &[]).unwrap();
    let blocks =
        (rows.iter()).map(|row| format!("{}\n{}\n", row.get::<_, &str>(0), row.get::<_, &str>(1)));
    let mut blocks: Vec<String> = blocks.collect();
    blocks.sort();
    blocks.concat()
}

/// Members by their kinds, for each signature that has this name; functions may be overloaded.
type Signature<'a> = BTreeMap<&'a str, Vec<&'a str>>;

fn signatures(list: &str) -> Vec<(&str, Signature<'_>)> {
    let mut found: Vec<(&str, Signature)> = Vec::new();
    for line in list.lines() {
        match line.strip_prefix("    ") {
            None => found.push((line, Signature::new())),
            Some(member) => {
                let (kind, member) = member.split_once(' ').expect("a kind and a member");
                let (_, signature) = found.last_mut().expect("a name before its members");
                signature.entry(kind).or_default().push(member);
            }
        }
    }
    found
}

/// Promises of a released list that do not hold any more, a sentence each.
pub fn broken_promises(released: &str, now: &str) -> Vec<String> {
    let now = signatures(now);
    let promised = signatures(released);
    let kept = promised.iter().map(|(name, promised)| {
        let candidates = now.iter().filter(|(other, _)| other == name);
        let broken = candidates.map(|(_, signature)| first_difference(promised, signature));
        // If several functions have this name, one has to keep the promise; the problems of the others are none.
        let broken = broken.reduce(|one, other| if one.is_none() { one } else { other });
        match broken {
            None => Some(format!("{name} is gone")),
            Some(difference) => difference.map(|difference| format!("{name}: {difference}")),
        }
    });
    kept.flatten().collect()
}

fn first_difference(promised: &Signature, now: &Signature) -> Option<String> {
    let none = Vec::new();
    for (kind, promised) in promised {
        let now = now.get(kind).unwrap_or(&none);
        for (position, promised) in promised.iter().enumerate() {
            match now.get(position) {
                Some(member) if member == promised => {}
                // A parameter may get a default, and callers who pass it notice nothing.
                Some(member) if member.strip_suffix(" default") == Some(promised) => {}
                Some(member) => return Some(format!("{kind} {promised} is {member} now")),
                None => return Some(format!("{kind} {promised} is gone")),
            }
        }
    }
    let new = now.get("parameter").unwrap_or(&none);
    let known = promised.get("parameter").map_or(0, Vec::len);
    let required = new
        .iter()
        .skip(known)
        .find(|member| !member.ends_with(" default"));
    required.map(|member| format!("the new parameter {member} has no default"))
}
