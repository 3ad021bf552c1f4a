//! The log, on standard error: each message as a line, worded as Postgres does, or as an object in JSON. The program
//! that keeps the log adds the time.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use webhook_engine::Notice;

static IS_JSON: AtomicBool = AtomicBool::new(false);

pub fn use_json() {
    IS_JSON.store(true, Ordering::Relaxed);
}

pub fn log(message: &str) {
    write("LOG", message, "");
}

pub fn warn(message: &str, hint: &str) {
    write("WARNING", message, hint);
}

pub fn tell(notice: Notice) {
    match notice {
        Notice::Error(message) => write("ERROR", &message, ""),
        Notice::Log(message) => log(&message),
        Notice::Warning { message, hint, .. } => warn(&message, &hint),
    }
}

fn write(level: &str, message: &str, hint: &str) {
    if IS_JSON.load(Ordering::Relaxed) {
        let hint = (!hint.is_empty()).then_some(hint);
        eprintln!(
            "{}",
            json!({"level": level, "message": message, "hint": hint})
        );
        return;
    }
    line(level, message);
    if !hint.is_empty() {
        line("HINT", hint);
    }
}

/// A message of the server may have lines of its own.
fn line(level: &str, message: &str) {
    eprintln!("{level}:  {}", message.replace(['\n', '\r'], " "));
}
