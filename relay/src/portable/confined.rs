//! Statements that run as the owner of the schema and cannot get the rights of the session.
//!
//! After SET ROLE any code may say RESET ROLE. In a function with SECURITY DEFINER it may not, but it may still leave
//! work for the commit, which runs as the session: a deferred trigger, or a cursor WITH HOLD. REFRESH MATERIALIZED VIEW
//! runs a query as the view's owner in what the server calls a security-restricted operation. That refuses all of it:
//! SET and RESET of role and session authorization, deferred triggers, cursors WITH HOLD, prepared statements and
//! temporary objects; and it restores every setting. So the statements are in a function, and the function is in such
//! a view.

use crate::script::{identifier, literal};

const SCHEMA: &str = "webhook_work";

/// The session is a member of the owner, and may make schemas. A schema of this name that exists is an error.
pub fn run_as(owner: &str, script: &str) -> String {
    let owner = identifier(owner);
    let body = format!("BEGIN EXECUTE {}; RETURN true; END", literal(script));
    format!(
        "CREATE SCHEMA {SCHEMA} AUTHORIZATION {owner};
         SET LOCAL ROLE {owner};
         CREATE FUNCTION {SCHEMA}.run() RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS {body};
         CREATE MATERIALIZED VIEW {SCHEMA}.run AS SELECT {SCHEMA}.run() WITH NO DATA;
         REFRESH MATERIALIZED VIEW {SCHEMA}.run;
         DROP MATERIALIZED VIEW {SCHEMA}.run;
         DROP FUNCTION {SCHEMA}.run();
         DROP SCHEMA {SCHEMA};
         SET LOCAL ROLE NONE;",
        body = literal(&body)
    )
}
