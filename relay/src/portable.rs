//! `webhook-relay install`, `upgrade` and `uninstall`: the schema of the extension in a database that allows no
//! library and has no superuser.
//!
//! Everything is made as the role that is to own it, in one transaction. The role that installs becomes a member of
//! the owner, and the owner gets the right to create functions in schema public, until the end of that transaction:
//! no other session ever sees either. If the role may not do that, the program changes nothing and prints the
//! statements for an administrator.
//!
//! The owner of a database, who is no superuser, may have made anything that looks like an installation; so nothing of
//! a schema is executed until its owner and all of its objects are known.
//!
//! - `connection` is the session, `findings` what it has found, and `rights` what it takes
//! - `trust` reads whose code could run
//! - `confined` runs a script as the owner, so that its code gets no other rights

mod confined;
mod connection;
mod findings;
mod rights;
mod trust;

use tokio::runtime;
use tokio_postgres::Client;

use crate::script::{LOCK, Release, identifier, literal};
use crate::session::described;
use crate::target::Target;
use connection::{PREPARE, connect, refused};
use findings::Findings;
use rights::Rights;
use trust::{Facts, shown};

pub const OWNER: &str = "webhook_owner";

/// Schemas of a fresh copy, in a transaction that is rolled back: of its functions for users, and of the installation
/// that it is compared with.
const FRESH_API: &str = "webhook_fresh_api";
const ASIDE: &str = "webhook_aside";

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

pub fn carry_out(order: &Order, release: &Release) -> Result<(), String> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let work = Work::begin(order, release).await?;
        match order.action {
            Action::Install => work.install().await,
            Action::Upgrade => work.upgrade().await,
            Action::Uninstall if order.force => work.drop_all().await,
            Action::Uninstall => work.uninstall().await,
        }
    })
}

struct Work<'a> {
    release: &'a Release<'a>,
    client: Client,
    found: Findings,
    owner: String,
}

/// The installation in a database, which may yet turn out not to be ours.
struct Installed {
    version: String,
    /// What the catalogs have about a fresh installation of this version.
    fresh: Facts,
}

impl Work<'_> {
    async fn begin<'a>(order: &'a Order, release: &'a Release<'a>) -> Result<Work<'a>, String> {
        let client = connect(&order.target).await?;
        let wanted = order.owner.as_deref().unwrap_or(OWNER);
        let found = Findings::read(&client, wanted).await?;
        let owner = match (&found.owner_of_schema, found.is_portable) {
            (Some(owner), true) => owner.clone(),
            _ => wanted.to_owned(),
        };
        if order.owner.as_ref().is_some_and(|named| *named != owner) {
            return Err(format!(
                "webhook belongs to role \"{owner}\" in this database; leave --owner out"
            ));
        }
        if !found.has_extension {
            trust::require_safe_owner(&client, &owner).await?;
            trust::require_own_event_triggers(&client).await?;
        }
        Ok(Work {
            release,
            client,
            found,
            owner,
        })
    }

    async fn install(&self) -> Result<(), String> {
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
        self.require_owner_of_nothing().await?;
        let rights = Rights::to_be_owner(&self.found, &self.owner)
            .and_to_public(&self.found, &self.owner)
            .and_to_make_schemas(&self.found);
        rights.require(&self.found)?;
        self.begin_transaction(&rights).await?;
        self.make_schema("webhook").await?;
        self.run_confined(&self.release.install(&self.owner))
            .await?;
        self.commit(&rights).await?;
        println!(
            "webhook {} is installed in database \"{}\", and belongs to role \"{}\".\n\
             Role \"{}\" has the level admin, and gives levels to others with webhook_grant().",
            self.release.version, self.found.database, self.owner, self.found.me
        );
        self.warn_of_members().await
    }

    async fn upgrade(&self) -> Result<(), String> {
        let rights = self
            .rights_to_compare()
            .and_to_public(&self.found, &self.owner);
        let installed = self.compare(&rights).await?;
        let version = &installed.version;
        let script = (self.release.upgrade(version, &self.owner))
            .ok_or_else(|| self.unknown_version(version))?;
        self.begin_transaction(&rights).await?;
        // While all tables are locked, no session adds a trigger or a rule.
        self.run_as_owner(LOCK).await?;
        self.require_ours(&installed).await?;
        self.run_confined(&script).await?;
        self.commit(&rights).await?;
        println!(
            "webhook {version} in database \"{}\" is {} now.",
            self.found.database, self.release.version
        );
        self.warn_of_members().await
    }

    async fn uninstall(&self) -> Result<(), String> {
        let rights = self.rights_to_compare();
        let installed = self.compare(&rights).await?;
        self.begin_transaction(&rights).await?;
        self.require_ours(&installed).await?;
        self.run_confined(REFUSE_UNSENT).await?;
        // Only objects that depend on it and are not ours are in the way of RESTRICT: triggers of watched tables, for
        // example.
        self.drop_owned(&rights, "RESTRICT").await
    }

    /// Executes nothing of the schema.
    async fn drop_all(&self) -> Result<(), String> {
        self.require_portable()?;
        let rights = Rights::to_be_owner(&self.found, &self.owner);
        rights.require(&self.found)?;
        self.begin_transaction(&rights).await?;
        trust::require_one_owner(&self.client, &self.owner).await?;
        self.drop_owned(&rights, "CASCADE").await
    }

    async fn drop_owned(&self, rights: &Rights, behaviour: &str) -> Result<(), String> {
        let owner = identifier(&self.owner);
        self.run_as_owner(&format!("DROP OWNED BY {owner} {behaviour};"))
            .await?;
        self.commit(rights).await?;
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

    fn unknown_version(&self, version: &str) -> String {
        let problem = match self.release.is_before(version) {
            true => "it is too old",
            false => "it does not know that version",
        };
        format!(
            "webhook {version} is installed, and this program makes {}: {problem}",
            self.release.version
        )
    }

    fn rights_to_compare(&self) -> Rights {
        Rights::to_be_owner(&self.found, &self.owner)
            .and_to_make_schemas(&self.found)
            .and_to_rename(&self.found, &self.owner)
    }

    /// A fresh copy of the version that the schema claims to be, in a transaction that is rolled back; and the schema
    /// compared with it.
    async fn compare(&self, rights: &Rights) -> Result<Installed, String> {
        self.require_portable()?;
        let Some(version) = self.found.version.clone() else {
            return Err(format!(
                "database \"{}\" has a schema \"webhook\" that is not ours: its function portable_version() has no version",
                self.found.database
            ));
        };
        let script = self.release.install_of(&version, &self.owner, FRESH_API);
        let script = script.ok_or_else(|| self.unknown_version(&version))?;
        trust::require_one_owner(&self.client, &self.owner).await?;
        rights.require(&self.found)?;
        self.begin_transaction(rights).await?;
        self.execute(&format!("ALTER SCHEMA webhook RENAME TO {ASIDE}"))
            .await?;
        self.make_schema("webhook").await?;
        self.make_schema(FRESH_API).await?;
        self.run_confined(&script).await?;
        let fresh = Facts::fresh(&self.client, &self.owner, FRESH_API).await?;
        self.execute("ROLLBACK").await?;
        let installed = Installed { version, fresh };
        self.require_ours(&installed).await?;
        Ok(installed)
    }

    /// Refuses a schema with objects that its version does not make.
    async fn require_ours(&self, installed: &Installed) -> Result<(), String> {
        trust::require_safe_owner(&self.client, &self.owner).await?;
        trust::require_one_owner(&self.client, &self.owner).await?;
        let found = Facts::found(&self.client, &self.owner).await?;
        match found.beyond(&installed.fresh) {
            others if others.is_empty() => Ok(()),
            others => Err(format!(
                "webhook in database \"{}\" is not as webhook {} makes it, and nothing was changed\n\
                 DETAIL:  Added or changed: {}\n\
                 HINT:  Drop what was added and restore what was changed; \
                 \"webhook-relay uninstall --force\" drops all that role \"{}\" owns in this database.",
                self.found.database,
                installed.version,
                shown(&others),
                self.owner
            )),
        }
    }

    /// Refuses an owner that owns other objects: code of it may be among them, and an uninstallation drops them.
    async fn require_owner_of_nothing(&self) -> Result<(), String> {
        let found = Facts::found(&self.client, &self.owner).await?;
        match found.objects() {
            objects if objects.is_empty() => Ok(()),
            objects => Err(format!(
                "role \"{}\" owns objects in this database already\n\
                 DETAIL:  {}\n\
                 HINT:  Name another role with --owner, or drop them: DROP OWNED BY {}.",
                self.owner,
                shown(&objects),
                identifier(&self.owner)
            )),
        }
    }

    async fn begin_transaction(&self, rights: &Rights) -> Result<(), String> {
        let before = rights.before.join("\n");
        self.execute(&format!("BEGIN;\n{PREPARE};\n{before}")).await
    }

    async fn commit(&self, rights: &Rights) -> Result<(), String> {
        let after = rights.after.join("\n");
        self.execute(&format!("{after}\nCOMMIT")).await
    }

    async fn make_schema(&self, name: &str) -> Result<(), String> {
        let owner = identifier(&self.owner);
        self.execute(&format!("CREATE SCHEMA {name} AUTHORIZATION {owner}"))
            .await
    }

    /// For statements that execute nothing of the schema.
    async fn run_as_owner(&self, script: &str) -> Result<(), String> {
        let owner = identifier(&self.owner);
        self.execute(&format!(
            "SET LOCAL ROLE {owner};\n{script}\nSET LOCAL ROLE NONE"
        ))
        .await
    }

    async fn run_confined(&self, script: &str) -> Result<(), String> {
        self.execute(&confined::run_as(&self.owner, script)).await
    }

    async fn execute(&self, statements: &str) -> Result<(), String> {
        (self.client.batch_execute(statements).await).map_err(refused)
    }

    /// No role acts as the owner, so it has no members.
    async fn warn_of_members(&self) -> Result<(), String> {
        let members = format!(
            "SELECT string_agg(m.member::regrole::text, ', ') FROM pg_auth_members m
             WHERE m.roleid = (SELECT r.oid FROM pg_roles r WHERE r.rolname = {owner})
               AND pg_has_role(m.member, m.roleid, CASE WHEN current_setting('server_version_num')::int < 160000
                                                        THEN 'MEMBER' ELSE 'SET' END)",
            owner = literal(&self.owner)
        );
        let row = self
            .client
            .query_one(&members, &[])
            .await
            .map_err(refused)?;
        if let Some(members) = row.try_get::<_, Option<String>>(0).map_err(refused)? {
            println!(
                "Role \"{owner}\" is not to be worked as, and has members: \
                 REVOKE {} FROM {members}; until the next upgrade.",
                identifier(&self.owner),
                owner = self.owner,
            );
        }
        Ok(())
    }
}

/// Counts as far as webhook.unsent() does, which is not called: the schema's functions are not replaced here.
const REFUSE_UNSENT: &str = "
    DO $$
    DECLARE
        unsent CONSTANT bigint := (SELECT count(*) FROM (SELECT FROM webhook.delivery_queue LIMIT 10001) q);
    BEGIN
        IF unsent > 0 THEN
            RAISE EXCEPTION '% deliveries were not sent yet', CASE WHEN unsent > 10000 THEN 'more than 10000' ELSE unsent::text END
                USING ERRCODE = 'object_in_use',
                      HINT = 'Wait until SELECT queued FROM webhook_status() is 0, or give --force.';
        END IF;
    END $$;";
