//! An open breaker lets nothing through but probes, one at a time. A trigger writes down how breakers move, in the transactions
//! that move them: whatever is killed, the log has what was committed.

use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::chaos::cases::models::Kill;
use crate::chaos::scene::Scene;
use crate::receiver::Request;

/// The cooldown of all policies here.
const COOLDOWN: Duration = Duration::from_millis(200);
const MAX_COOLDOWN: Duration = Duration::from_secs(1);

const LOG: &str = "
    CREATE TABLE breaker_log (number bigint GENERATED ALWAYS AS IDENTITY, endpoint_id int, state text, trips int,
                              last_failure_at timestamptz, probe_event_id uuid, at timestamptz DEFAULT clock_timestamp());
    CREATE FUNCTION log_breaker() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
    BEGIN
        INSERT INTO public.breaker_log (endpoint_id, state, trips, last_failure_at, probe_event_id)
        VALUES (coalesce(NEW.endpoint_id, OLD.endpoint_id), coalesce(NEW.state, 'CLOSED'), coalesce(NEW.trips, 0),
                NEW.last_failure_at, NEW.probe_event_id);
        RETURN NULL;
    END $$;
    CREATE TRIGGER log AFTER INSERT OR UPDATE OR DELETE ON webhook.breaker FOR EACH ROW EXECUTE FUNCTION log_breaker()";

/// Before anything fails.
pub fn log(scene: &Scene) {
    scene.database.execute(LOG);
    scene.database.execute(&format!(
        "UPDATE webhook.policy
         SET failure_threshold = 3, cooldown = '{} ms', max_cooldown = '{} ms', initial_delay = '100 ms'
         WHERE name = 'persistent'",
        COOLDOWN.as_millis(),
        MAX_COOLDOWN.as_millis()
    ));
}

struct Moved {
    state: String,
    /// Failures since it was closed that have opened it.
    trips: i32,
    failed_at: Option<SystemTime>,
    probe: Option<Uuid>,
    at: SystemTime,
}

/// Returns how often the breaker has opened. Each time, requests that the sender had claimed by then may still arrive: at most
/// `claimed`. After a probe that has failed there are none.
#[track_caller]
pub fn assert_probes_alone(
    scene: &Scene,
    endpoint: &str,
    requests: &[Request],
    claimed: usize,
    kills: &[Kill],
) -> usize {
    let moves = moves(scene, endpoint);
    for pair in moves.windows(2) {
        assert_in_turn(endpoint, &pair[0], &pair[1], kills);
    }
    let (mut openings, mut late) = (0, 0);
    let mut was_closed = true;
    for (place, moved) in moves.iter().enumerate() {
        if was_closed && moved.state != "CLOSED" {
            (openings, late) = (openings + 1, 0);
        }
        was_closed = moved.state == "CLOSED";
        if was_closed {
            continue;
        }
        let end = moves.get(place + 1).map(|next| next.at);
        let is_within = |at: SystemTime| at > moved.at && end.is_none_or(|end| at < end);
        let mut arrived: Vec<Uuid> = (requests.iter())
            .filter(|request| is_within(request.arrived_at))
            .map(Request::event_id)
            .collect();
        if let Some(probe) = arrived.iter().position(|event| moved.probe == Some(*event)) {
            arrived.remove(probe);
        }
        late += arrived.len();
        assert!(
            late <= claimed,
            "{late} requests to {endpoint} beside its probes while its breaker was {}, and {claimed} were claimed at most",
            moved.state
        );
    }
    openings
}

#[track_caller]
fn moves(scene: &Scene, endpoint: &str) -> Vec<Moved> {
    let log = format!(
        "SELECT l.state, l.trips, l.last_failure_at, l.probe_event_id, l.at
         FROM breaker_log l JOIN webhook.endpoint e ON e.id = l.endpoint_id
         WHERE e.name = '{endpoint}' ORDER BY l.number"
    );
    let rows = scene.connect().query(&log, &[]).expect("it is readable");
    (rows.iter())
        .map(|row| Moved {
            state: row.get(0),
            trips: row.get(1),
            failed_at: row.get(2),
            probe: row.get(3),
            at: row.get(4),
        })
        .collect()
}

/// No probe follows another that has not ended, unless its sender was killed; nor a failure, before the cooldown has passed.
#[track_caller]
fn assert_in_turn(endpoint: &str, before: &Moved, after: &Moved, kills: &[Kill]) {
    if after.state != "HALF_OPEN" {
        return;
    }
    let was_killed = (kills.iter()).any(|kill| kill.is_between(before.at, after.at));
    match before.state.as_str() {
        "HALF_OPEN" => assert!(was_killed, "two probes of {endpoint} at a time"),
        "OPEN" => {
            let failed_at = before.failed_at.expect("it has opened by a failure");
            let waited = after.at.duration_since(failed_at).unwrap_or_default();
            let cooldown = COOLDOWN * 2_u32.pow(before.trips.clamp(1, 10) as u32 - 1);
            let cooldown = cooldown.min(MAX_COOLDOWN);
            assert!(
                waited >= cooldown,
                "a probe of {endpoint} {waited:?} after failure {}, and not {cooldown:?}",
                before.trips
            );
        }
        _ => panic!("a probe of {endpoint}, whose breaker was closed"),
    }
}
