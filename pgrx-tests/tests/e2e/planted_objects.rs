//! Objects that the owner of a database has put there, before or after CREATE EXTENSION, run with nobody else's rights:
//! neither a superuser who installs, upgrades, calls or drops the extension, nor its worker, nor a relay calls them.

use postgres::{Client, NoTls};
use webhook_e2e::database::refusal;
use webhook_e2e::scripts::{self, LATER, VERSION};
use webhook_e2e::{Cluster, Database, Receiver, Relay, wait, worker};

/// Traps in schema public, which the owner of the database owns. Each notes for whom it ran. They have the names and the
/// types of everything that our scripts use of the system, and fit where the system's is for any type.
const TRAPS: &str = r#"
    SET search_path = pg_catalog, pg_temp;
    CREATE TABLE public.sprung (who pg_catalog.text, what pg_catalog.text);
    GRANT INSERT ON public.sprung TO PUBLIC;
    CREATE FUNCTION public.spring(what pg_catalog.text) RETURNS pg_catalog.bool LANGUAGE plpgsql
        SET search_path = pg_catalog, pg_temp AS
        $$ BEGIN INSERT INTO public.sprung VALUES (current_user, what); RETURN true; END $$;

    DO $plant$
    DECLARE
        types CONSTANT regtype[] := '{text, name, "char", oid, regclass, regrole, regnamespace, int4, int8, float8, bool,
                                      timestamptz, interval, uuid, jsonb, text[], int4[], name[]}';
        operators CONSTANT text[] := '{=, <>, <, >, <=, >=, ||, +, -, *, ~, !~, ~~, ->, ->>, @>, <@}';
        l regtype;
        r regtype;
        o text;
        p record;
        polymorphic CONSTANT oid[] := ARRAY(SELECT t.oid FROM pg_type t WHERE t.typname LIKE 'any%' AND t.typtype = 'p');
        element regtype;
    BEGIN
        FOREACH l IN ARRAY types LOOP
            FOREACH r IN ARRAY types LOOP
                EXECUTE format('CREATE FUNCTION public.trap(%s, %s) RETURNS bool LANGUAGE sql AS %L', l, r,
                               format('SELECT public.spring(%L)', format('operator on %s and %s', l, r)));
                FOREACH o IN ARRAY operators LOOP
                    EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.trap)', o, l, r);
                END LOOP;
            END LOOP;
        END LOOP;

        FOR p IN
            SELECT f.proname AS name, array_agg(a.type ORDER BY a.ordinality) AS arguments, f.prorettype AS result
            FROM pg_proc f LEFT JOIN LATERAL unnest(f.proargtypes) WITH ORDINALITY AS a (type, ordinality) ON true
            WHERE f.pronamespace = 'pg_catalog'::regnamespace AND f.prokind = 'f' AND NOT f.proretset
              AND f.proname = ANY (string_to_array(current_setting('planted.words'), ' '))
            GROUP BY f.oid
        LOOP
            FOREACH element IN ARRAY CASE WHEN p.arguments && polymorphic THEN types ELSE '{text}' END LOOP
                BEGIN
                    EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L', p.name, (
                        SELECT string_agg(CASE WHEN t.type::regtype::text LIKE 'any%array' THEN element::text || '[]'
                                               WHEN t.type = ANY (polymorphic) THEN element::text
                                               ELSE t.type::regtype::text END, ', ')
                        FROM unnest(p.arguments) AS t (type) WHERE t.type IS NOT NULL),
                        CASE WHEN p.result = ANY (polymorphic) THEN element ELSE p.result::regtype END,
                        format('BEGIN PERFORM public.spring(%L); RETURN NULL; END', 'function ' || p.name));
                EXCEPTION WHEN OTHERS THEN
                    NULL;           -- twice the same, or types that no plpgsql function may have
                END;
            END LOOP;
        END LOOP;

        FOREACH o IN ARRAY '{text, name, uuid, jsonb, json, interval, timestamptz, regclass, regrole, oid, bytea}'::text[] LOOP
            EXECUTE format('CREATE DOMAIN public.%I AS pg_catalog.%1$I CHECK (public.spring(%L))', o, 'type ' || o);
        END LOOP;
        FOREACH o IN ARRAY '{pg_class, pg_proc, pg_depend, pg_extension, pg_namespace, pg_roles, pg_trigger, pg_database,
                             pg_type, pg_locks, pg_stat_activity, pg_settings}'::text[] LOOP
            EXECUTE format('CREATE VIEW public.%I AS SELECT * FROM pg_catalog.%1$I WHERE public.spring(%L)', o, 'view ' || o);
        END LOOP;
        EXECUTE 'CREATE FUNCTION public.add(int8) RETURNS int8 LANGUAGE sql AS $$ SELECT public.spring(''aggregate'')::int::int8 $$';
        EXECUTE 'CREATE AGGREGATE public.count(*) (SFUNC = public.add, STYPE = int8, INITCOND = ''0'')';
    END $plant$;
"#;

/// Words of our scripts, which name functions of the system.
fn words() -> String {
    let scripts = scripts::install() + &scripts::later_upgrade();
    let words = scripts.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let mut words: Vec<&str> = words.filter(|word| word.len() > 2).collect();
    words.sort_unstable();
    words.dedup();
    words.join(" ")
}

struct Stage {
    cluster: Cluster,
    database: Database,
}

impl Stage {
    /// A database whose owner, `squatter`, has planted all of that, and has every session look there first.
    fn set() -> Stage {
        let cluster = Cluster::builder()
            .script(
                &format!("webhook--{VERSION}--{LATER}.sql"),
                &scripts::later_upgrade(),
            )
            .setting("fsync = off")
            .start();
        let database = cluster.plain_database("planted");
        let name = database.name();
        database.execute(&format!(
            "CREATE ROLE squatter LOGIN; ALTER DATABASE {name} OWNER TO squatter"
        ));
        let mut squatter = database.connect_as("squatter");
        squatter
            .execute("SELECT set_config('planted.words', $1, false)", &[&words()])
            .unwrap();
        squatter.batch_execute(TRAPS).unwrap();
        let first = format!("ALTER DATABASE {name} SET search_path = public, pg_catalog");
        squatter.batch_execute(&first).unwrap();
        Stage { cluster, database }
    }

    /// A session of a superuser, as the database's settings make it.
    fn session(&self) -> Client {
        self.database.connect()
    }

    /// The same, which finds none of the traps.
    fn safe_session(&self) -> Client {
        let mut config = self.cluster.config(self.database.name());
        config.options("-c search_path=pg_catalog");
        config.connect(NoTls).unwrap()
    }

    #[track_caller]
    fn run(&self, session: &mut Client, sql: &str) {
        let result = session.batch_execute(sql);
        result.unwrap_or_else(|error| panic!("{sql}: {error:?}, sprung: {:?}", self.sprung()));
        assert_eq!(self.sprung(), Vec::<String>::new(), "{sql}");
    }

    fn sprung(&self) -> Vec<String> {
        let rows = self.safe_session().query(
            "SELECT DISTINCT pg_catalog.concat(who, ': ', what) FROM public.sprung",
            &[],
        );
        rows.unwrap().iter().map(|row| row.get(0)).collect()
    }

    #[track_caller]
    fn wait_until(&self, sql: &str) {
        let mut session = self.safe_session();
        wait::until_true(sql, || session.query_one(sql, &[]).unwrap().get(0));
    }

    /// Emits, and waits until the worker has sent it.
    #[track_caller]
    fn deliver(&self, session: &mut Client) {
        self.run(session, "SELECT public.webhook_emit('order.created')");
        self.wait_until(
            "SELECT count(*) = 0 AND EXISTS (SELECT FROM webhook.delivery WHERE status = 'SENT') FROM webhook.delivery_queue",
        );
        assert_eq!(self.sprung(), Vec::<String>::new());
    }
}

#[test]
fn nothing_that_the_owner_of_a_database_has_planted_is_called_by_others() {
    let stage = Stage::set();
    let receiver = Receiver::start();
    let mut session = stage.session();

    // The traps work: whoever does not guard against them runs into them.
    session
        .batch_execute("SELECT 'a'::text || 'b'::text, now() FROM pg_class LIMIT 1")
        .unwrap();
    assert!(stage.sprung().len() >= 3, "{:?}", stage.sprung());
    stage
        .safe_session()
        .batch_execute("TRUNCATE public.sprung")
        .unwrap();

    stage.run(&mut session, "CREATE EXTENSION webhook");
    stage.run(
        &mut session,
        "CREATE ROLE app LOGIN; CREATE ROLE relay LOGIN",
    );
    let url = receiver.url("/orders");
    for sql in [
        "SELECT public.webhook_grant('app', 'admin')",
        "SELECT public.webhook_grant('relay', 'relay')",
        &format!(
            "SELECT public.webhook_set_endpoint('orders', '{url}', headers => '{{\"X-Key\": \"{{{{hmac_hex(body)}}}}\"}}')"
        ),
        &format!(
            "SELECT public.webhook_set_endpoint('acme/orders', '{url}', filter => '$.data.a == 1')"
        ),
        "SELECT public.webhook_copy_policy('standard', 'mine')",
        "SELECT public.webhook_rotate_secret('orders')",
        "SELECT public.webhook_rotate_key('orders')",
        "SELECT public.webhook_rotate_hmac_secret('orders')",
        "SELECT public.webhook_secret('orders'), public.webhook_public_key('orders'), public.webhook_hmac_secret('orders')",
        "SELECT public.webhook_emit('order.created', idempotency_key => 'a', ordering_key => 'b', coalesce_key => 'c')",
        "SELECT public.webhook_emit_many('order.created', '{1, 2}')",
        "CREATE TABLE public.watched (id pg_catalog.int4 PRIMARY KEY, note pg_catalog.text)",
        "SELECT public.webhook_watch('public.watched', 'item', changed => '{note}', ordering_key => '{id}')",
        "INSERT INTO public.watched VALUES (1, 'a'); UPDATE public.watched SET note = 'b'; DELETE FROM public.watched",
        "SELECT public.webhook_unwatch('public.watched')",
        "CALL public.webhook_test('orders')",
        "CALL public.webhook_replay_all('orders', status => '{SENT, CANCELLED, FAILED}')",
        "CALL public.webhook_backfill('orders', NULL)",
        "SELECT public.webhook_pause('orders')",
        "SELECT public.webhook_resume('orders')",
        "SELECT public.webhook_reset_breaker('orders')",
        "SELECT public.webhook_why()",
        "SELECT public.webhook_why('orders')",
        "SELECT public.webhook_adopt()",
        "SELECT * FROM public.webhook_status()",
        "SELECT * FROM webhook.endpoint_status",
        "SELECT * FROM webhook.metrics",
        "SELECT * FROM webhook.failed",
        "SELECT public.webhook_revoke('app', 'admin')",
        "UPDATE webhook.endpoint SET metadata = '{\"b\": 2}'",
        "UPDATE webhook.delivery SET next_attempt_at = 'tomorrow'",
        "UPDATE webhook.delivery SET next_attempt_at = 'now'",
        "SELECT public.webhook_remove_endpoint('acme/orders')",
    ] {
        stage.run(&mut session, sql);
    }
    stage.deliver(&mut session);

    let connection = format!(
        "host=127.0.0.1 port={} user=relay dbname={}",
        stage.cluster.port(),
        stage.database.name()
    );
    let relay = Relay::start(env!("CARGO_BIN_EXE_relay"), &connection, &[]);
    stage.wait_until("SELECT EXISTS (SELECT FROM webhook.sender WHERE kind = 'relay')");
    stage.deliver(&mut session);
    drop(relay);

    stage.run(
        &mut session,
        &format!("ALTER EXTENSION webhook UPDATE TO '{LATER}'"),
    );
    stage.deliver(&mut session);
    stage.run(&mut session, "DROP EXTENSION webhook CASCADE");
    stage.run(&mut session, "CREATE EXTENSION webhook");
}

/// Only superusers make them, in the versions that there are: their functions would run inside CREATE EXTENSION.
#[test]
fn the_owner_of_a_database_plants_no_event_trigger() {
    let cluster = Cluster::shared();
    let database = cluster.plain_database("events");
    let owner = format!("owner_of_{}", database.name());
    database.execute(&format!(
        "CREATE ROLE {owner}; ALTER DATABASE {} OWNER TO {owner}",
        database.name()
    ));
    let mut session = database.connect();
    let function =
        "CREATE FUNCTION public.spy() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'";
    let begin = format!("SET ROLE {owner}; {function}");
    session.batch_execute(&begin).unwrap();
    for event in [
        "ddl_command_start",
        "ddl_command_end",
        "sql_drop",
        "table_rewrite",
    ] {
        let create =
            format!("CREATE EVENT TRIGGER spying ON {event} EXECUTE FUNCTION public.spy()");
        assert_eq!(
            refusal(&mut session, &create).code().code(),
            "42501",
            "{event}"
        );
    }
}

/// What `webhook-relay install` makes, as far as a sender looks at it; the owner of a database can give a schema to
/// pg_database_owner, of which that owner alone is a member.
const COUNTERFEIT: &str = "
    CREATE SCHEMA webhook;
    CREATE TABLE public.caught (who text);
    GRANT USAGE ON SCHEMA public, webhook TO PUBLIC;
    GRANT INSERT ON public.caught TO PUBLIC;
    CREATE FUNCTION webhook.portable_version() RETURNS text LANGUAGE sql RETURN '0.1.0';
    CREATE FUNCTION webhook.protocol() RETURNS int LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO public.caught VALUES (current_user); RETURN 1; END $$;
    ALTER SCHEMA webhook OWNER TO pg_database_owner;
    ALTER FUNCTION webhook.protocol() OWNER TO pg_database_owner;
    ALTER FUNCTION webhook.portable_version() OWNER TO pg_database_owner";

fn caught(database: &Database) -> Vec<String> {
    database.query_one_value("SELECT coalesce(array_agg(who), '{}') FROM public.caught")
}

/// The role of the worker is the same in all databases of the server.
#[test]
fn a_worker_calls_nothing_of_a_schema_that_took_the_place_of_ours() {
    let cluster = Cluster::shared();
    let database = cluster.database("counterfeit");
    let owner = format!("owner_of_{}", database.name());
    database.execute(&format!(
        "CREATE ROLE {owner}; ALTER DATABASE {} OWNER TO {owner}",
        database.name()
    ));
    let before = worker::pid(&database);
    // The owner of the database owns schema public, and with it the functions of the extension.
    database.execute(&format!(
        "BEGIN; SET ROLE {owner}; DROP SCHEMA public CASCADE; CREATE SCHEMA public; {COUNTERFEIT}; COMMIT"
    ));
    database.wait_until(&format!(
        "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {before})"
    ));
    // Its successor, if there is one, has ended too when the launcher has served a database that came later.
    let later = cluster.database("later");
    worker::pid(&later);
    wait::until_true("no worker to be there", || worker::count(&database) == 0);
    assert_eq!(caught(&database), Vec::<String>::new());
}

/// Where no worker is at work, the launcher has one look for databases with the extension, in any database that it may
/// connect to.
#[test]
fn a_worker_that_looks_for_databases_calls_nothing_of_the_one_that_it_is_in() {
    let mut cluster = Cluster::start();
    let database = cluster.plain_database("counterfeit");
    database.execute(&format!(
        "CREATE ROLE squatter; CREATE EXTENSION webhook; DROP EXTENSION webhook;
         ALTER DATABASE {} OWNER TO squatter; REVOKE CONNECT ON DATABASE postgres FROM PUBLIC;
         SET ROLE squatter; {COUNTERFEIT}",
        database.name()
    ));
    cluster.restart();
    let real = cluster.database("real");
    worker::pid(&real);
    assert_eq!(caught(&database), Vec::<String>::new());
}

#[test]
fn a_relay_calls_nothing_of_a_schema_that_only_looks_like_ours() {
    let cluster = Cluster::portable();
    let database = cluster.plain_database("counterfeit");
    let owner = format!("owner_of_{}", database.name());
    database.execute(&format!(
        "CREATE ROLE {owner}; ALTER DATABASE {} OWNER TO {owner};
         CREATE ROLE relay_of_{} LOGIN; SET ROLE {owner}; {COUNTERFEIT}",
        database.name(),
        database.name()
    ));
    let mut relay = Relay::program(env!("CARGO_BIN_EXE_relay"));
    relay.arg(format!(
        "host=127.0.0.1 port={} user=relay_of_{} dbname={}",
        cluster.port(),
        database.name(),
        database.name()
    ));
    let relay = Relay::spawn(relay);
    relay.wait_for_log("does not have the extension");
    assert_eq!(caught(&database), Vec::<String>::new());
}

/// A role of any level may name the row types of our tables. The server refuses to change such a table then, and says
/// whose column it is.
#[test]
fn a_table_with_our_row_type_stops_an_upgrade_that_says_so_and_loses_nothing() {
    let cluster = Cluster::builder()
        .script(
            &format!("webhook--{VERSION}--{LATER}.sql"),
            &scripts::later_upgrade(),
        )
        .setting("fsync = off")
        .start();
    let database = cluster.database("typed");
    database.execute(
        "CREATE ROLE app; SELECT webhook_grant('app', 'emit'); CREATE SCHEMA app AUTHORIZATION app;
         SET ROLE app; CREATE TABLE app.kept (event webhook.event)",
    );
    let upgrade = format!("ALTER EXTENSION webhook UPDATE TO '{LATER}'");
    let refused = database.refusal(&upgrade);
    assert_eq!(refused.code().code(), "0A000", "{refused:?}");
    assert!(refused.message().contains("kept.event"), "{refused:?}");
    database.execute("SELECT webhook_emit('order.created'); DROP TABLE app.kept");
    database.execute(&upgrade);
    worker::pid(&database);
}
