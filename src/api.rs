//! The functions that SQL calls; `sql/01_native.sql` declares them. Their arguments may have a gigabyte each, so they
//! are borrowed, and their length is judged before anything is made of them.

use crate::filter;
use crate::launcher;
use crate::memory;
use crate::names;
use crate::notice;
use crate::owner;
use crate::routes;
use crate::settings;
use crate::shmem::{self, Slot, State};
use crate::store;
use crate::wake;
use pgrx::datum::TimestampWithTimeZone;
use pgrx::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use uuid::{ContextV7, Timestamp};
use webhook_delivery::template::{Problem, Template};
use webhook_delivery::{Attempt, EndpointOwner, FailureKind, Format, Header, Key, Route};

#[pg_extern(sql = false)]
fn new_id() -> pgrx::Uuid {
    // The order of ids is the order of emission, also among backends, and not only to the millisecond.
    thread_local! {
        static CONTEXT: ContextV7 = ContextV7::new().with_additional_precision();
    }
    let id = CONTEXT.with(|context| uuid::Uuid::new_v7(Timestamp::now(context)));
    pgrx::Uuid::from_bytes(*id.as_bytes())
}

#[pg_extern(sql = false)]
fn new_secret() -> String {
    webhook_delivery::signing::new_secret()
        .unwrap_or_else(|error| error!("no random numbers from the system: {error}"))
}

#[pg_extern(sql = false)]
fn new_private_key() -> String {
    webhook_delivery::signing::new_private_key()
        .unwrap_or_else(|error| error!("no random numbers from the system: {error}"))
}

#[pg_extern(sql = false)]
fn is_private_key(key: &str) -> bool {
    webhook_delivery::signing::is_private_key(key)
}

#[pg_extern(sql = false)]
fn system_identifier() -> i64 {
    // SAFETY: reads what the server has in memory.
    unsafe { pg_sys::GetSystemIdentifier() as i64 }
}

#[pg_extern(sql = false)]
fn require_safe_owner() {
    if let Some(problem) = owner::find().and_then(owner::problem) {
        notice::refuse(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            problem.what,
            &problem.remedy,
        );
    }
}

#[pg_extern(sql = false)]
fn grant_connect() {
    store::grant_connect();
}

#[pg_extern(sql = false)]
fn renew_grants() {
    store::renew_grants();
}

#[pg_extern(sql = false)]
fn url_problem(url: &str, has_tenant: bool) -> Option<String> {
    require_room(0);
    settings::network()
        .judge_url(EndpointOwner::new(has_tenant), url)
        .err()
}

#[pg_extern(sql = false)]
fn pattern_problem(filter: &str) -> Option<String> {
    filter::problem(filter)
}

#[pg_extern(sql = false)]
fn template_problem(
    template: &str,
) -> TableIterator<'static, (name!(problem, String), name!(remedy, String))> {
    require_room(0);
    told(Template::parse(template).err())
}

#[pg_extern(sql = false)]
fn header_value_problem(
    value: &str,
) -> TableIterator<'static, (name!(problem, String), name!(remedy, String))> {
    require_room(0);
    told(webhook_delivery::header_problem(value))
}

fn told(
    problem: Option<Problem>,
) -> TableIterator<'static, (name!(problem, String), name!(remedy, String))> {
    TableIterator::new((problem.into_iter()).map(|p| (p.what, p.remedy.to_owned())))
}

#[pg_extern(sql = false)]
fn did_you_mean(wanted: &str, names: Array<&str>) -> Option<String> {
    names::did_you_mean(wanted, names.iter().flatten())
}

/// Refuses a procedure that commits where it could not: the server would say "invalid transaction termination" at its
/// first COMMIT. The procedure itself has to ask, since a procedure that a function calls can never commit.
#[pg_extern(sql = false)]
fn require_no_transaction_block(called: &str) {
    // SAFETY: a plain read of this backend's state; the server decides by the same at a COMMIT.
    if !unsafe { pg_sys::SPI_inside_nonatomic_context() } {
        notice::refuse(
            PgSqlErrorCode::ERRCODE_ACTIVE_SQL_TRANSACTION,
            format!("{called:.200} cannot run inside a transaction block or a function"),
            "It commits: CALL it as a statement of its own, without BEGIN and outside of blocks with EXCEPTION; \
             with a driver, in autocommit mode.",
        );
    }
}

/// Headers and secrets of an endpoint, by far.
const MAX_TEXTS: usize = 1_000;
/// The limit of templates; URLs, headers and secrets are shorter.
const MAX_TEXT_BYTES: usize = 64 * 1024;
/// A template or the lists of networks take less when they are parsed.
const PARSING_BYTES: usize = 32 * 1024 * 1024;
/// The copies of a payload that a request is made with.
const PAYLOAD_COPIES: usize = 8;

/// A request as an attempt would send it.
#[pg_extern(sql = false)]
#[allow(clippy::too_many_arguments, clippy::type_complexity)]
fn render_request(
    event_id: pgrx::Uuid,
    event_type: &str,
    tenant: Option<&str>,
    occurred_at: &str,
    payload: &str,
    earlier_attempts: i32,
    url: &str,
    header_names: Array<&str>,
    header_values: Array<&str>,
    format: &str,
    template: Option<&str>,
    source: Option<&str>,
    secrets: Array<&str>,
    hmac_secrets: Option<Array<&str>>,
) -> TableIterator<
    'static,
    (
        name!(url, String),
        name!(header_names, Vec<String>),
        name!(header_values, Vec<String>),
        name!(body, String),
    ),
> {
    require_room(payload.len());
    let (header_names, header_values) = (copies_of(&header_names), copies_of(&header_values));
    let attempt = Attempt {
        key: Key {
            event_id: uuid::Uuid::from_bytes(*event_id.as_bytes()),
            endpoint_id: 0,
            claim_seq: 0,
        },
        earlier_attempts,
        event_type: copy_of(event_type),
        tenant: tenant.map(copy_of),
        occurred_at: copy_of(occurred_at),
        payload: memory::copy(payload).unwrap_or_else(|_| refuse_without_room()),
        route: Arc::new(Route {
            endpoint_id: 0,
            // Nothing is dialled.
            owner: EndpointOwner::Tenant,
            url: copy_of(url),
            headers: (header_names.iter().zip(&header_values))
                .map(|(name, value)| Header::new(name, value))
                .collect(),
            format: Format::named(format, template.map(copy_of), source.map(copy_of)),
            secrets: copies_of(&secrets),
            hmac_secrets: hmac_secrets.as_ref().map(copies_of).unwrap_or_default(),
            connect_timeout: Duration::ZERO,
            timeout: Duration::ZERO,
        }),
    };
    let preview = webhook_delivery::preview(&attempt).unwrap_or_else(|failure| {
        if failure.kind == FailureKind::Local {
            refuse_without_room();
        }
        notice::refuse(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("the request cannot be made: {}", failure.message),
            "Correct the row in webhook.endpoint or webhook.secret.",
        )
    });
    let (names, values) = preview.headers.into_iter().unzip();
    TableIterator::once((preview.url, names, values, preview.body))
}

fn copy_of(text: &str) -> String {
    if text.len() > MAX_TEXT_BYTES {
        notice::refuse(
            PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            format!(
                "a text of the endpoint or the event has {} bytes",
                text.len()
            ),
            "Texts other than the payload have at most 65536 bytes.",
        );
    }
    text.to_owned()
}

fn copies_of(texts: &Array<'_, &str>) -> Vec<String> {
    let bytes: usize = texts.iter().flatten().map(str::len).sum();
    if texts.len() > MAX_TEXTS || bytes > MAX_TEXT_BYTES {
        notice::refuse(
            PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            format!(
                "the endpoint has {} headers or secrets of {bytes} bytes",
                texts.len()
            ),
            "It has at most 1000, and 65536 bytes of them.",
        );
    }
    texts
        .iter()
        .map(|text| text.unwrap_or_default().to_owned())
        .collect()
}

/// Templates and networks are parsed into many pieces, which Rust takes for granted: the memory for all of them must be
/// there before.
fn require_room(payload_bytes: usize) {
    if !memory::has_room(PARSING_BYTES + PAYLOAD_COPIES * payload_bytes) {
        refuse_without_room();
    }
}

fn refuse_without_room() -> ! {
    notice::out_of_memory("The webhook library could not parse or render a text.")
}

/// True, so that SQL may call it in an expression.
#[pg_extern(sql = false, name = "wake")]
fn wake() -> bool {
    wake::worker_at_commit();
    true
}

/// Like [`wake`], for endpoints that have something due at that time.
#[pg_extern(sql = false, name = "wake")]
fn wake_for(endpoint_ids: Array<i32>, due_at: TimestampWithTimeZone) -> bool {
    let endpoints = endpoint_ids.iter_deny_null();
    wake::worker_at_commit_for(endpoints, due_at.into());
    true
}

#[pg_extern(sql = false)]
fn wake_endpoint(endpoint: i32, due_at: TimestampWithTimeZone) -> bool {
    wake::worker_at_commit_for(std::iter::once(endpoint), due_at.into());
    true
}

/// The same for routes as `recall_routes()` knows them: endpoint, number of attempts, and so on.
#[pg_extern(sql = false)]
fn wake_routes(routes: Array<i32>, due_at: TimestampWithTimeZone) -> bool {
    let endpoints = routes.iter_deny_null().step_by(2);
    wake::worker_at_commit_for(endpoints, due_at.into());
    true
}

#[pg_extern(sql = false)]
fn recall_routes(tenant: Option<&str>, event_type: Option<&str>) -> Option<Vec<i32>> {
    routes::recall(tenant, event_type?, <[i32]>::to_vec)
}

/// The route of a type that a single endpoint wants, and without a filter. Both numbers are in one: in plpgsql a
/// variable that holds an array or a row costs as much as an index entry.
#[pg_extern(sql = false)]
fn recall_only_route(tenant: Option<&str>, event_type: Option<&str>) -> Option<i64> {
    routes::recall(tenant, event_type?, |routes| match *routes {
        [endpoint, attempts] if attempts > 0 => {
            Some(i64::from(endpoint) << 32 | i64::from(attempts))
        }
        _ => None,
    })?
}

#[pg_extern(sql = false)]
fn remember_routes(tenant: Option<&str>, event_type: &str, found: Array<i32>) {
    routes::remember(tenant, event_type, &found);
}

#[pg_extern(sql = false)]
fn forget_routes() {
    routes::forget();
}

#[pg_extern(sql = false)]
fn is_preloaded() -> bool {
    shmem::is_preloaded()
}

#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn worker_report() -> TableIterator<
    'static,
    (
        name!(pid, Option<i32>),
        name!(state, Option<String>),
        name!(reason, Option<String>),
        name!(in_flight, Option<i32>),
        name!(last_error, Option<String>),
        name!(last_error_at, Option<TimestampWithTimeZone>),
    ),
> {
    // SAFETY: a plain read, on the main thread.
    let database = unsafe { pg_sys::MyDatabaseId };
    let (slot, no_room) = match shmem::is_preloaded() {
        true => shmem::read(|registry| {
            let slot = registry.slot(database).copied();
            (slot, launcher::why_no_room(registry, slot.as_ref()))
        }),
        false => (None, None),
    };
    let slot = slot.or_else(|| no_room.is_some().then_some(Slot::FREE));
    TableIterator::new(slot.into_iter().map(move |slot| {
        let state = match no_room {
            Some(_) => State::NoRoom,
            None => slot.state,
        };
        (
            (slot.worker_pid != 0).then_some(slot.worker_pid),
            Some(state.as_str().to_owned()),
            no_room.clone().or_else(|| slot.reason.to_option()),
            Some(slot.in_flight),
            slot.last_error.to_option(),
            (slot.last_error_at != 0)
                .then_some(slot.last_error_at)
                .and_then(|at| at.try_into().ok()),
        )
    }))
}

/// Makes a function for SQL, `webhook_` and the name, that calls the one of this file with a reserve of memory.
macro_rules! call_with_reserve {
    ($($name:ident)*) => {$(
        const _: () = {
            unsafe extern "C-unwind" {
                #[link_name = concat!(stringify!($name), "_wrapper")]
                fn wrapper(arguments: pg_sys::FunctionCallInfo) -> pg_sys::Datum;
            }

            #[unsafe(export_name = concat!("webhook_", stringify!($name)))]
            unsafe extern "C-unwind" fn call(arguments: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
                // SAFETY: called by the server, and there is nothing to drop; pgrx has made the wrapper.
                unsafe { memory::call(wrapper, arguments) }
            }

            #[unsafe(export_name = concat!("pg_finfo_webhook_", stringify!($name)))]
            extern "C" fn version() -> &'static pg_sys::Pg_finfo_record {
                &pg_sys::Pg_finfo_record { api_version: 1 }
            }
        };
    )*};
}

call_with_reserve! {
    new_id
    new_secret
    new_private_key
    is_private_key
    system_identifier
    require_safe_owner
    grant_connect
    renew_grants
    url_problem
    pattern_problem
    template_problem
    header_value_problem
    did_you_mean
    require_no_transaction_block
    render_request
    wake
    wake_for
    wake_endpoint
    wake_routes
    recall_routes
    recall_only_route
    remember_routes
    forget_routes
    is_preloaded
    worker_report
}
