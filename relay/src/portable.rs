//! `webhook-relay install`, `upgrade` and `uninstall`: the schema of the extension in a database that allows no
//! library and has no superuser.
//!
//! Everything is made as the role that is to own it, in one transaction. The role that installs becomes a member of
//! the owner, and the owner gets the right to create functions in schema public, until the end of that transaction:
//! nobody else ever sees either. Where the role may not do that, the program changes nothing and prints the
//! statements for somebody who may.

use std::future::poll_fn;

use tokio::runtime;
use tokio_postgres::error::DbError;
use tokio_postgres::{AsyncMessage, Client, Row};

use crate::script::{Release, identifier, literal};
use crate::session::described;
use crate::target::Target;

pub const OWNER: &str = "webhook_owner";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Install,
    Upgrade,
    Uninstall,
}

pub struct Order {
    pub action: Action,
    pub target: Target,
    pub owner: Option<String>,
    /// Whether to uninstall although deliveries or triggers are lost.
    pub force: bool,
}

/// The script means the same whatever the server, the database and the role have set. Its transaction repeats this,
/// since a pooler may have another session for it.
const PREPARE: &str = "
    SET search_path = pg_catalog, pg_temp;
    SET standard_conforming_strings = on;
    SET check_function_bodies = on;
    SET statement_timeout = 0;
    SET lock_timeout = '30s';
    SET client_min_messages = warning;
    SET default_tablespace = '';
    SET default_table_access_method = heap;
    SET jit = off";

const FINDINGS: &str = "
    SELECT session_user::text, current_database()::text,
           EXISTS (SELECT FROM pg_extension x WHERE x.extname = 'webhook') AS has_extension,
           has.rolname::text AS owner_of_schema,
           p.oid IS NOT NULL AS is_portable,
           owner.oid IS NOT NULL AS has_owner,
           me.rolsuper OR me.rolcreaterole AS makes_roles,
           me.rolsuper OR coalesce(pg_has_role(me.oid, owner.oid, CASE WHEN v.number < 160000 THEN 'MEMBER' ELSE 'SET' END), false)
               AS is_member,
           CASE WHEN owner.oid IS NULL OR v.number < 160000 THEN me.rolsuper OR me.rolcreaterole
                ELSE me.rolsuper OR pg_has_role(me.oid, owner.oid, 'MEMBER WITH ADMIN OPTION') END AS gives_membership,
           has_database_privilege(current_database(), 'CREATE') AS makes_schemas,
           has_schema_privilege('public', 'CREATE WITH GRANT OPTION') AS gives_public,
           coalesce(has_schema_privilege(owner.oid, 'public', 'CREATE'), false) AS owner_has_public
    FROM pg_roles me
    CROSS JOIN (SELECT current_setting('server_version_num')::int) AS v (number)
    LEFT JOIN pg_namespace n ON n.nspname = 'webhook'
    LEFT JOIN pg_roles has ON has.oid = n.nspowner
    -- Not by to_regprocedure(), which wants the right to use the schema.
    LEFT JOIN pg_proc p ON p.pronamespace = n.oid AND p.proname = 'portable_version'
    LEFT JOIN pg_roles owner ON owner.rolname = coalesce(CASE WHEN p.oid IS NOT NULL THEN has.rolname END, $1::text)
    WHERE me.rolname = session_user";

/// Why a role cannot be the owner, and the remedy. Functions that belong to it are executed in this session, so
/// nobody else may have been that role. The role that installs may be a member.
const PROBLEM_OF_OWNER: &str = r"
    SELECT CASE
        WHEN r.rolsuper OR r.rolcreaterole OR r.rolcreatedb OR r.rolreplication OR r.rolbypassrls THEN format(
            'has rights that the owner of webhook''s tables must not have: ALTER ROLE %I NOSUPERUSER NOCREATEDB NOCREATEROLE '
            'NOREPLICATION NOBYPASSRLS', r.rolname)
        WHEN r.rolcanlogin AND r.rolconnlimit <> 0 THEN format('can be used by clients: ALTER ROLE %I NOLOGIN', r.rolname)
        WHEN EXISTS (SELECT FROM pg_auth_members m
                     WHERE m.member = r.oid
                        OR m.roleid = r.oid AND m.member::regrole::text <> quote_ident(session_user)
                           AND (pg_has_role(m.member, m.roleid, 'USAGE')
                                OR pg_has_role(m.member, m.roleid, CASE WHEN v.number < 160000 THEN 'MEMBER' ELSE 'SET' END))) THEN
            'is a member of a role, or has members: \drg lists them in psql 16 and later, pg_auth_members does everywhere'
        WHEN EXISTS (SELECT FROM pg_default_acl d WHERE d.defaclrole = r.oid) THEN
            'has default privileges, which would give others a right to all that is made: \ddp lists them in psql'
    END
    FROM pg_roles r, (SELECT current_setting('server_version_num')::int) AS v (number)
    WHERE r.rolname = $1";

struct Findings {
    me: String,
    database: String,
    has_extension: bool,
    owner_of_schema: Option<String>,
    is_portable: bool,
    has_owner: bool,
    makes_roles: bool,
    is_member: bool,
    gives_membership: bool,
    makes_schemas: bool,
    gives_public: bool,
    owner_has_public: bool,
}

pub fn carry_out(order: &Order, release: &Release) -> Result<(), String> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let mut work = Work::begin(order, release).await?;
        match order.action {
            Action::Install => work.install().await,
            Action::Upgrade => work.upgrade().await,
            Action::Uninstall => work.uninstall().await,
        }
    })
}

struct Work<'a> {
    order: &'a Order,
    release: &'a Release,
    client: Client,
    found: Findings,
    owner: String,
}

/// Statements around the work, with the right to have it done; and statements that only others can execute.
#[derive(Default)]
struct Rights {
    before: Vec<String>,
    after: Vec<String>,
    of_others: Vec<String>,
}

impl Work<'_> {
    async fn begin<'a>(order: &'a Order, release: &'a Release) -> Result<Work<'a>, String> {
        let target = &order.target;
        let begun = target.config.connect(target.tls.clone()).await;
        let told = |error: tokio_postgres::Error| format!("{}: {}", target.name, described(&error));
        let (client, mut connection) = begun.map_err(told)?;
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await
            {
                if let AsyncMessage::Notice(notice) = message {
                    eprintln!("{}:  {}", notice.severity(), in_full(&notice));
                }
            }
        });
        client.batch_execute(PREPARE).await.map_err(refused)?;
        let wanted = order.owner.as_deref().unwrap_or(OWNER);
        let row = client.query_one(FINDINGS, &[&wanted]).await;
        let found = Findings::read(&row.map_err(refused)?).map_err(refused)?;
        let owner = match (&found.owner_of_schema, found.is_portable) {
            (Some(owner), true) => owner.clone(),
            _ => wanted.to_owned(),
        };
        if order.owner.as_ref().is_some_and(|named| *named != owner) {
            return Err(format!(
                "webhook belongs to role \"{owner}\" in this database; leave --owner out"
            ));
        }
        let row = client.query_opt(PROBLEM_OF_OWNER, &[&owner]).await;
        let problem = match row.map_err(refused)? {
            Some(row) => row.try_get(0).map_err(refused)?,
            None => None::<String>,
        };
        let work = Work {
            order,
            release,
            client,
            found,
            owner,
        };
        match problem {
            Some(problem) if !work.found.has_extension => {
                Err(format!("role \"{}\" {problem}", work.owner))
            }
            _ => Ok(work),
        }
    }

    async fn install(&mut self) -> Result<(), String> {
        let Findings { database, .. } = &self.found;
        if self.found.has_extension {
            return Err(format!(
                "database \"{database}\" has the extension webhook, which needs no installation by a relay"
            ));
        }
        if self.found.is_portable {
            return Err(format!(
                "database \"{database}\" has webhook already; \"webhook-relay upgrade\" makes it that of this version"
            ));
        }
        if self.found.owner_of_schema.is_some() {
            return Err(format!(
                "database \"{database}\" has a schema \"webhook\" that is not ours; rename or drop it first"
            ));
        }
        let mut rights = self.rights_to_work();
        self.add_right_to_public(&mut rights);
        if !self.found.makes_schemas {
            rights.of_others.push(format!(
                "GRANT CREATE ON DATABASE {} TO {};",
                identifier(database),
                identifier(&self.found.me)
            ));
        }
        let owner = identifier(&self.owner);
        (rights.before).push(format!("CREATE SCHEMA webhook AUTHORIZATION {owner};"));
        self.run(rights, &self.release.install(&self.owner)).await?;
        println!(
            "webhook {} is installed in database \"{}\", and belongs to role \"{}\".\n\
             Role \"{}\" has the level admin, and gives levels to others with webhook_grant().",
            self.release.version, self.found.database, self.owner, self.found.me
        );
        self.warn_of_members().await
    }

    async fn upgrade(&mut self) -> Result<(), String> {
        self.require_portable()?;
        let version: String = self.one("SELECT webhook.portable_version()").await?;
        let Some(script) = self.release.upgrade(&version, &self.owner) else {
            return Err(format!(
                "webhook {version} is installed, and this program makes {}: it is too old",
                self.release.version
            ));
        };
        let mut rights = self.rights_to_work();
        self.add_right_to_public(&mut rights);
        self.run(rights, &script).await?;
        println!(
            "webhook {version} in database \"{}\" is {} now.",
            self.found.database, self.release.version
        );
        self.warn_of_members().await
    }

    async fn uninstall(&mut self) -> Result<(), String> {
        self.require_portable()?;
        let owner = identifier(&self.owner);
        let force = self.order.force;
        let check = match force {
            true => String::new(),
            false => UNSENT.to_owned(),
        };
        // Only objects that depend on it and are not ours are in the way of RESTRICT: triggers of watched tables,
        // say.
        let how = if force { "CASCADE" } else { "RESTRICT" };
        let script = format!("{check} DROP OWNED BY {owner} {how};");
        self.run(self.rights_to_work(), &script).await?;
        let database = &self.found.database;
        println!("webhook is no more in database \"{database}\".");
        // Other databases may use the same role.
        let drop = format!("DROP ROLE {owner}");
        if let Err(error) = self.client.batch_execute(&drop).await {
            println!("Role \"{}\" stays: {}.", self.owner, described(&error));
        }
        Ok(())
    }

    fn require_portable(&self) -> Result<(), String> {
        let database = &self.found.database;
        match (self.found.has_extension, self.found.is_portable) {
            (true, _) => Err(format!(
                "database \"{database}\" has the extension webhook: ALTER EXTENSION and DROP EXTENSION are for that"
            )),
            (false, false) => Err(format!(
                "database \"{database}\" does not have webhook; \"webhook-relay install\" makes it"
            )),
            (false, true) => Ok(()),
        }
    }

    /// The rights to be the owner for a while.
    fn rights_to_work(&self) -> Rights {
        let mut rights = Rights::default();
        let (found, owner, me) = (
            &self.found,
            identifier(&self.owner),
            identifier(&self.found.me),
        );
        if !found.has_owner {
            let make = format!("CREATE ROLE {owner} NOLOGIN;");
            match found.makes_roles {
                true => rights.before.push(make),
                false => rights.of_others.push(make),
            }
        }
        if !found.is_member {
            let give = format!("GRANT {owner} TO {me};");
            match found.gives_membership {
                true => {
                    rights.before.push(give);
                    rights.after.push(format!("REVOKE {owner} FROM {me};"));
                }
                false => rights.of_others.push(give),
            }
        }
        rights
    }

    /// Functions that people call are in schema public.
    fn add_right_to_public(&self, rights: &mut Rights) {
        let owner = identifier(&self.owner);
        let give = format!("GRANT CREATE ON SCHEMA public TO {owner};");
        if self.found.owner_has_public {
            return;
        }
        match self.found.gives_public {
            true => {
                rights.before.push(give);
                let take = format!("REVOKE CREATE ON SCHEMA public FROM {owner};");
                rights.after.push(take);
            }
            false => rights.of_others.push(give),
        }
    }

    /// Runs all of it or nothing.
    async fn run(&self, rights: Rights, script: &str) -> Result<(), String> {
        if !rights.of_others.is_empty() {
            println!("{}", rights.of_others.join("\n"));
            return Err(format!(
                "role \"{}\" may not do this alone, and nothing was changed: \
                 have an administrator execute the statements above in database \"{}\", and try again",
                self.found.me, self.found.database
            ));
        }
        let (before, after) = (rights.before.join("\n"), rights.after.join("\n"));
        let owner = identifier(&self.owner);
        let whole = format!(
            "BEGIN;\n{PREPARE};\n{before}\nSET LOCAL ROLE {owner};\n{script}\nRESET ROLE;\n{after}\nCOMMIT;"
        );
        self.client.batch_execute(&whole).await.map_err(refused)
    }

    /// A role that nobody works as has no members.
    async fn warn_of_members(&self) -> Result<(), String> {
        let members: Option<String> = self
            .one(&format!(
                "SELECT string_agg(m.member::regrole::text, ', ') FROM pg_auth_members m
                 WHERE m.roleid = (SELECT r.oid FROM pg_roles r WHERE r.rolname = {owner})
                   AND pg_has_role(m.member, m.roleid, CASE WHEN current_setting('server_version_num')::int < 160000
                                                            THEN 'MEMBER' ELSE 'SET' END)",
                owner = literal(&self.owner)
            ))
            .await?;
        if let Some(members) = members {
            println!(
                "Role \"{owner}\" is not to be worked as, and has members: \
                 REVOKE {} FROM {members}; until the next upgrade.",
                identifier(&self.owner),
                owner = self.owner,
            );
        }
        Ok(())
    }

    async fn one<T>(&self, sql: &str) -> Result<T, String>
    where
        T: for<'row> tokio_postgres::types::FromSql<'row>,
    {
        let row = self.client.query_one(sql, &[]).await.map_err(refused)?;
        row.try_get(0).map_err(refused)
    }
}

const UNSENT: &str = "
    DO $$
    BEGIN
        IF EXISTS (SELECT FROM webhook.delivery_queue) THEN
            RAISE EXCEPTION '% deliveries were not sent yet', webhook.unsent()
                USING ERRCODE = 'object_in_use',
                      HINT = 'Wait until SELECT queued FROM webhook_status() says 0, or give --force.';
        END IF;
    END $$;";

impl Findings {
    fn read(row: &Row) -> Result<Findings, tokio_postgres::Error> {
        Ok(Findings {
            me: row.try_get(0)?,
            database: row.try_get(1)?,
            has_extension: row.try_get("has_extension")?,
            owner_of_schema: row.try_get("owner_of_schema")?,
            is_portable: row.try_get("is_portable")?,
            has_owner: row.try_get("has_owner")?,
            makes_roles: row.try_get("makes_roles")?,
            is_member: row.try_get("is_member")?,
            gives_membership: row.try_get("gives_membership")?,
            makes_schemas: row.try_get("makes_schemas")?,
            gives_public: row.try_get("gives_public")?,
            owner_has_public: row.try_get("owner_has_public")?,
        })
    }
}

fn refused(error: tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(error) => in_full(error),
        None => described(&error),
    }
}

fn in_full(error: &DbError) -> String {
    let mut text = error.message().to_owned();
    for (name, more) in [("DETAIL", error.detail()), ("HINT", error.hint())] {
        if let Some(more) = more {
            text += &format!("\n{name}:  {more}");
        }
    }
    text
}
