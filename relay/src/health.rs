//! The condition of the relay: for `/healthz`, and for the service manager.

use std::env;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::StatusCode;
use serde_json::json;

/// A relay whose last turn is older than this is stuck: it turns every few seconds, also where there is nothing to do.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub struct Health(Arc<Mutex<Condition>>);

struct Condition {
    /// Why it delivers nothing; none while it delivers.
    trouble: Option<String>,
    in_flight: usize,
    last_turn: Instant,
    is_ready: bool,
}

impl Health {
    pub fn starting() -> Health {
        Health(Arc::new(Mutex::new(Condition {
            trouble: Some("not connected yet".to_owned()),
            in_flight: 0,
            last_turn: Instant::now(),
            is_ready: false,
        })))
    }

    fn change<T>(&self, change: impl FnOnce(&mut Condition) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn turned(&self, in_flight: usize) {
        let was_ready = self.change(|condition| {
            condition.trouble = None;
            condition.in_flight = in_flight;
            condition.last_turn = Instant::now();
            std::mem::replace(&mut condition.is_ready, true)
        });
        if !was_ready {
            tell_service_manager("READY=1\nSTATUS=delivering");
        }
    }

    pub fn is_kept_by(&self, trouble: &str) {
        let is_new = self.change(|condition| {
            let is_new = condition.trouble.as_deref() != Some(trouble);
            condition.trouble = Some(trouble.to_owned());
            // The relay has something to say for itself when it is back.
            condition.is_ready &= !is_new;
            is_new
        });
        if is_new {
            let trouble = trouble.replace(['\n', '\r'], " ");
            tell_service_manager(&format!("STATUS={trouble}"));
        }
    }

    /// The reason may be the server's words, with names of roles, databases and hosts in them.
    pub fn answer(&self, with_reason: bool) -> (StatusCode, String) {
        self.change(|condition| {
            let age = condition.last_turn.elapsed();
            let trouble = condition.trouble.clone();
            let stuck = || format!("the last turn was {} s ago", age.as_secs());
            let trouble = trouble.or_else(|| (age > PATIENCE).then(stuck));
            let status = match trouble {
                None => StatusCode::OK,
                Some(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            let state = if trouble.is_none() {
                "delivering"
            } else {
                "waiting"
            };
            let body = if with_reason {
                json!({"state": state, "reason": trouble, "in_flight": condition.in_flight})
            } else {
                json!({"state": state})
            };
            (status, format!("{body}\n"))
        })
    }
}

/// Tells systemd, where the unit has Type=notify. Trouble with it is its own.
pub fn tell_service_manager(state: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let path = path.as_encoded_bytes();
    let address = match path.strip_prefix(b"@") {
        Some(name) => UnixAddress::from_abstract_name(name),
        None => UnixAddress::from_pathname(String::from_utf8_lossy(path).as_ref()),
    };
    if let (Ok(socket), Ok(address)) = (UnixDatagram::unbound(), address) {
        let _ = socket.send_to_addr(state.as_bytes(), &address);
    }
}
