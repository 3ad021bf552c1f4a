//! A copy of a database that was prepared for it: the author of a dump may have written every row, and the copy still
//! sends nothing until webhook_adopt(). Copies of honest databases: restore.rs and copies.rs.

use serde_json::json;
use webhook_e2e::copies::dump_and_restore;
use webhook_e2e::worker::state_and_reason;
use webhook_e2e::{Cluster, Database, Receiver};

/// The origin of a copy of this database whose OID and site are known beforehand, as webhook.origin() makes it.
fn origin_of_copy(oid: u32, site: &str) -> String {
    format!(
        "left(encode(sha256(convert_to(concat((SELECT id FROM webhook.installation()), '/', {oid}, '/', '{site}'), 'UTF8')), 'hex'), 32)"
    )
}

/// Delivers an event of an endpoint of its own, so that the sender has looked at the others by then.
#[track_caller]
fn serve_an_endpoint_of_its_own(database: &Database, receiver: &Receiver) {
    let options = "event_types => '{marker}'";
    database.add_endpoint_with("marker", &receiver.url("/marker"), options);
    let marker = database.emit("marker", json!({}));
    database.wait_for_status(marker, "SENT");
}

#[test]
fn a_template_copy_serves_no_endpoint_that_was_given_its_origin_beforehand() {
    const OID: u32 = 27_101;
    let cluster = Cluster::shared();
    let (source, receiver) = (cluster.database("prepared"), Receiver::start());
    let url = receiver.url("/forged");
    let origin = origin_of_copy(OID, "");
    source.execute(&format!(
            "INSERT INTO webhook.endpoint (name, url, event_types, origin) VALUES ('inserted', '{url}', '{{order.*}}', {origin});
             INSERT INTO webhook.endpoint (name, url, event_types) VALUES ('updated', '{url}', '{{order.*}}');
             UPDATE webhook.endpoint SET origin = {origin} WHERE name = 'updated'"
        ),
    );
    source.emit("order.created", json!({}));

    let name = format!("{}_copy", source.name());
    let create = format!(
        "CREATE DATABASE {name} OID {OID} TEMPLATE {}",
        source.name()
    );
    let created = cluster.connect("postgres").batch_execute(&create);
    created.unwrap();
    let copy = cluster.existing_database(&name);
    // The copy has the origin that was computed.
    let is_so: bool = copy.query_one_value(&format!("SELECT webhook.origin() = {origin}"));
    assert!(is_so);
    serve_an_endpoint_of_its_own(&copy, &receiver);
    assert_eq!(receiver.requests_to("/forged").len(), 0);
    let (state, reason) = state_and_reason(&copy);
    assert_eq!(state, "held");
    assert!(reason.contains("2 of 3 endpoints"), "{reason}");

    assert_eq!(copy.query_one_value::<i64>("SELECT webhook_adopt()"), 2);
    receiver.wait_for_requests_to("/forged", 2);
}

/// A staging server's name is no secret. The copy of the data directory has the same id and the same OID.
#[test]
fn no_endpoint_has_the_origin_of_a_site_beforehand() {
    let cluster = Cluster::shared();
    let database = cluster.database("prepared");
    let oid: u32 =
        database.query_one_value("SELECT oid FROM pg_database WHERE datname = current_database()");
    let (here, staging) = (origin_of_copy(oid, ""), origin_of_copy(oid, "staging"));
    let is_ours: bool = database.query_one_value(&format!("SELECT webhook.origin() = {here}"));
    assert!(is_ours);
    database.execute(&format!(
            "INSERT INTO webhook.endpoint (name, url, origin) VALUES
                 ('ours', 'http://127.0.0.1:9/', {here}), ('theirs', 'http://127.0.0.1:9/', {staging});
             UPDATE webhook.endpoint SET metadata = '{{\"a\": 1}}'"
        ),
    );
    let found: Vec<String> = database.query_one_value(&format!(
        "SELECT array_agg(name::text ORDER BY name) FROM webhook.endpoint WHERE origin IN ({here}, {staging})"
    ));
    assert_eq!(found, ["ours"]);
    // What came from elsewhere is still told, and written again as it is.
    let marked: bool = database.query_one_value(&format!(
        "SELECT origin = 'unadopted:' || {staging} FROM webhook.endpoint WHERE name = 'theirs'"
    ));
    assert!(marked);
}

/// Rows of senders and claims that are no sender's, in a copy: its own worker takes all endpoints all the same.
#[test]
fn senders_and_claims_that_a_copy_brings_stop_nothing() {
    let cluster = Cluster::shared();
    let (source, receiver) = (cluster.database("claimed"), Receiver::start());
    let options = "event_types => '{order.*}', policy => 'fast'";
    source.add_endpoint_with("orders", &receiver.url("/orders"), options);
    source.pause_all();
    let event = source.emit("order.created", json!({}));
    source.execute(
        "INSERT INTO webhook.sender (id, kind, pid, role, host, version)
         VALUES (2000000001, 'relay', pg_backend_pid(), 'pg_monitor'::regrole, 'elsewhere', '99'),
                (2000000002, 'worker', 1, 'webhook_owner'::regrole, NULL, '99');
         INSERT INTO webhook.share (number, total, sender_id) VALUES (63, 64, 2000000001)",
    );
    source.execute_as_engine(
        "UPDATE webhook.delivery_queue
         SET status = 'SENDING', claimed_by = 2000000001, claimed_at = now() + interval '1 year', claim_seq = 7, attempts = 1",
    );
    let name = format!("{}_copy", source.name());
    let create = format!("CREATE DATABASE {name} TEMPLATE {}", source.name());
    cluster.connect("postgres").batch_execute(&create).unwrap();
    let copy = cluster.existing_database(&name);
    copy.resume_all();
    serve_an_endpoint_of_its_own(&copy, &receiver);
    assert_eq!(receiver.requests_to("/orders").len(), 0);

    copy.execute("SELECT webhook_adopt()");
    copy.wait_for_status(event, "SENT");
    assert_eq!(receiver.requests_to("/orders").len(), 1);
}

/// The owner of the original has put objects there that fit our calls better than those of the system. They come with
/// the dump, and belong to the same role.
#[test]
fn a_restore_runs_nothing_of_the_originals_owner() {
    let cluster = Cluster::shared();
    let source = cluster.database("planted");
    let owner = format!("owner_of_{}", source.name());
    let receiver = Receiver::start();
    source.add_endpoint("orders", &receiver.url("/orders"));
    source.pause_all();
    let event = source.emit("order.created", json!({"a": 1}));
    source.execute(&format!(
        "CREATE ROLE {owner}; ALTER DATABASE {} OWNER TO {owner}; SET ROLE {owner};
         CREATE TABLE public.sprung (who text, what text);
         GRANT INSERT ON public.sprung TO PUBLIC;
         CREATE FUNCTION public.spring(what text) RETURNS boolean LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO public.sprung VALUES (current_user, what); RETURN true; END $$;
         CREATE FUNCTION public.spy(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT public.spring('operator') $$;
         CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = public.spy);
         CREATE OPERATOR public.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = public.spy);
         CREATE FUNCTION public.webhook_adopt(text, text) RETURNS bigint LANGUAGE sql AS
             $$ SELECT public.spring('webhook_adopt')::int::bigint $$;
         CREATE FUNCTION public.num_nulls(int, text, text, text[], text, jsonb, text, jsonb, text, timestamptz) RETURNS int
             LANGUAGE sql AS $$ SELECT public.spring('num_nulls')::int $$;
         CREATE FUNCTION public.starts_with(text, text, text DEFAULT '') RETURNS boolean LANGUAGE sql AS
             $$ SELECT public.spring('starts_with') $$",
        source.name()
    ));
    let copy = cluster.plain_database("restored");
    dump_and_restore((cluster, &source), (cluster, &copy));
    copy.resume_all();
    copy.execute("SELECT public.webhook_adopt()");
    copy.wait_for_status(event, "SENT");
    let sprung = || -> Vec<String> {
        copy.query_one_value(
            "SELECT coalesce(pg_catalog.array_agg(who OPERATOR(pg_catalog.||) ' ' OPERATOR(pg_catalog.||) what), '{}')
             FROM public.sprung",
        )
    };
    assert_eq!(sprung(), Vec::<String>::new());
    // The traps have come with the dump, and work.
    copy.execute("SET search_path = public, pg_catalog; SELECT 'a'::text = 'b'::text");
    assert_eq!(sprung(), ["postgres operator"]);
}
