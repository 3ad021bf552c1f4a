//! The page: the state of delivery, for people. `webhook-relay page` writes it to a file, a relay with `--page`
//! serves it.
//!
//! It is one file without scripts. Names that people chose go through `html`, and the policy allows nothing but the
//! style that is in it.

mod chart;
mod html;
mod words;

use std::fmt::Write;
use std::sync::LazyLock;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::figures::{Figures, Refusal};
use crate::target::Target;
use chart::Hour;
use html::{escaped, literal};

pub const CONTENT_TYPE: &str = "text/html; charset=utf-8";

const FIGURES: &str = include_str!("page/page.sql");
const STYLE: &str = include_str!("page/page.css");

static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = BASE64_STANDARD.encode(Sha256::digest(STYLE));
    format!(
        "default-src 'none'; style-src 'sha256-{hash}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
});

/// A content security policy.
pub fn policy() -> &'static str {
    &POLICY
}

pub async fn print(target: &Target) -> Result<String, Refusal> {
    let found = Figures::look(target, async |figures| figures.value(FIGURES).await).await?;
    // A hundred endpoints are no work for the thread that delivers.
    let printed = tokio::task::spawn_blocking(move || page(&found));
    (printed.await).map_err(|error| Refusal::Unavailable(error.to_string()))
}

fn page(found: &Value) -> String {
    let database = escaped(text(&found["status"]["database"]));
    let health = Health::of(text(&found["status"]["health"]));
    let at = escaped(text(&found["at"]));
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>{}: webhooks of {database}</title>\n<style>{STYLE}</style>\n\
         </head>\n<body>\n\
         <header><h1>Webhooks of <bdi>{database}</bdi></h1>\
         <p class=\"at\"><time datetime=\"{}Z\">{at} UTC</time></p></header>\n<main>\n",
        policy().replace('"', "&quot;"),
        health.word,
        at.replace(' ', "T"),
    );
    out += &health_line(&health, &found["status"]);
    out += &tiles(found);
    out += "<div class=\"pair\">\n";
    out += &throughput(found);
    out += &ages(found);
    out += "</div>\n";
    out += &endpoints(found);
    out += &dead_letters(found);
    out += "</main>\n<footer><p>Made by <code>webhook-relay</code> ";
    out += env!("CARGO_PKG_VERSION");
    out += " from <code>webhook.stat</code>, <code>webhook.endpoint_status</code> and <code>webhook.failed</code>. \
            Figures of senders come every 5 s.</p></footer>\n</body>\n</html>\n";
    out
}

struct Health {
    class: &'static str,
    word: &'static str,
    icon: &'static str,
}

impl Health {
    fn of(health: &str) -> Health {
        match health {
            "ok" => Health {
                class: "ok",
                word: "Healthy",
                icon: CHECK,
            },
            "warning" => Health {
                class: "warning",
                word: "Warning",
                icon: EXCLAMATION,
            },
            _ => Health {
                class: "critical",
                word: "Critical",
                icon: CROSS,
            },
        }
    }
}

const CHECK: &str = "<path d=\"M4.5 8.4l2.4 2.4 4.8-5.2\"/>";
const EXCLAMATION: &str = "<path d=\"M8 4.2v4.6M8 11.6v.2\"/>";
const CROSS: &str = "<path d=\"M5.2 5.2l5.6 5.6M10.8 5.2l-5.6 5.6\"/>";
const PAUSE: &str = "<path d=\"M6 5v6M10 5v6\"/>";
const DASH: &str = "<path d=\"M4.8 8h6.4\"/>";

fn icon(path: &str) -> String {
    format!(
        "<svg class=\"icon\" viewBox=\"0 0 16 16\" aria-hidden=\"true\"><circle cx=\"8\" cy=\"8\" r=\"8\"/>{path}</svg>"
    )
}

fn health_line(health: &Health, status: &Value) -> String {
    let reason = match text(&status["reason"]) {
        "" => "nothing is wrong".to_owned(),
        reason => escaped(reason),
    };
    format!(
        "<p class=\"health {}\" role=\"status\">{}<strong>{}</strong> <span>{reason}</span></p>\n",
        health.class,
        icon(health.icon),
        health.word,
    )
}

fn tiles(found: &Value) -> String {
    let (status, hour) = (&found["status"], &found["hour"]);
    let metric = |name: &str| &found["metrics"][name];
    let alerts = |name: &str| metric(name)["alert"].as_bool().unwrap_or_default();
    let value = |name: &str| figure(&metric(name)["value"]);
    let (attempts, sent) = (figure(&hour["attempts"]), figure(&hour["sent"]));
    let failed = (attempts - sent).max(0.0);
    let share = match attempts > 0.0 {
        true => format!("{:.1}%", 100.0 * failed / attempts),
        false => "none".to_owned(),
    };
    let p95 = hour["p95"].as_f64();
    let oldest = value("webhook_oldest_due");
    let more = status["more"].as_bool().unwrap_or_default();
    let dead = value("webhook_dead_letters");
    let tiles = [
        (
            "Sent",
            words::number(sent),
            "in the last hour".to_owned(),
            false,
        ),
        (
            "Failed attempts",
            share,
            format!("{} in the last hour", words::number(failed)),
            alerts("webhook_attempt_failure_rate"),
        ),
        (
            "Emit to success",
            p95.map_or("none".to_owned(), words::time),
            "95th percentile".to_owned(),
            alerts("webhook_delivery_p95_latency"),
        ),
        (
            "Queue",
            words::count(figure(&status["queued"]), more),
            format!(
                "{} due, {} in flight",
                words::number(figure(&status["due"])),
                words::number(figure(&status["in_flight"]))
            ),
            alerts("webhook_parked"),
        ),
        (
            "Oldest due",
            if oldest > 0.0 {
                words::time(oldest)
            } else {
                "none".to_owned()
            },
            "not counting parked".to_owned(),
            alerts("webhook_oldest_due"),
        ),
        (
            "Dead letters",
            words::count(dead, dead >= 10_000.0),
            "that are kept".to_owned(),
            alerts("webhook_dead_letters") || alerts("webhook_failed_count"),
        ),
    ];
    let mut out = String::from("<dl class=\"tiles\">\n");
    for (name, value, note, alert) in tiles {
        let (class, mark) = match alert {
            true => (" class=\"alert\"", "<span class=\"mark\">alert</span>"),
            false => ("", ""),
        };
        let _ = writeln!(
            out,
            "<div{class}><dt>{name}{mark}</dt><dd><b>{value}</b> <small>{note}</small></dd></div>"
        );
    }
    out + "</dl>\n"
}

fn throughput(found: &Value) -> String {
    let hour = Hour::read(&found["hour"]["minutes"]);
    format!(
        "<section aria-labelledby=\"throughput\"><div class=\"head\"><h2 id=\"throughput\">Last hour, by minute</h2>\
         <p class=\"note\"><span class=\"key sent\">sent</span><span class=\"key bad\">attempts failed</span></p></div>\
         {}</section>\n",
        hour.throughput(text(&found["since"]), text(&found["until"]))
    )
}

fn ages(found: &Value) -> String {
    const AGES: [&str; 7] = [
        "up to 1 min",
        "1 to 5 min",
        "5 to 15 min",
        "15 min to 1 h",
        "1 to 6 h",
        "6 h to 1 d",
        "more than 1 d",
    ];
    let counts = AGES.iter().enumerate();
    let counts: Vec<_> = counts
        .map(|(n, age)| (*age, figure(&found["ages"][n])))
        .collect();
    let most = counts.iter().map(|(_, number)| *number).fold(1.0, f64::max);
    let bytes = words::bytes(figure(&found["status"]["queued_bytes"]));
    let mut out = format!(
        "<section aria-labelledby=\"ages\"><div class=\"head\"><h2 id=\"ages\">Queue by age</h2>\
         <p class=\"note\">{bytes} of payloads</p></div>\n<table class=\"ages\" role=\"table\">\
         <caption class=\"unseen\">Deliveries in the queue by age, the oldest 10,000</caption>\
         <thead class=\"unseen\"><tr><th scope=\"col\">Age</th><th scope=\"col\">Deliveries</th></tr></thead><tbody>\n",
    );
    for (age, number) in counts {
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{age}</th><td>{}<span>{}</span></td></tr>",
            chart::bar(number / most),
            words::number(number)
        );
    }
    out + "</tbody></table></section>\n"
}

fn endpoints(found: &Value) -> String {
    let listed = array(&found["endpoints"]);
    let all = figure(&found["endpoint_count"]);
    let note = match all > listed.len() as f64 {
        true => format!(
            "<p class=\"note\">{} of {}: those in trouble first.</p>",
            words::number(listed.len() as f64),
            words::number(all)
        ),
        false => String::new(),
    };
    let mut out = format!(
        "<section aria-labelledby=\"endpoints\"><div class=\"head\"><h2 id=\"endpoints\">Endpoints</h2>{note}</div>\n"
    );
    if listed.is_empty() {
        return out
            + "<p class=\"note\">There is none yet: <code>webhook_set_endpoint()</code> makes one.</p></section>\n";
    }
    out += &table_head(
        "Endpoints, their state and their last hour",
        &[
            "State",
            "Endpoint",
            "Last hour",
            "Attempt p95",
            "Queue",
            "Last error",
        ],
    );
    listed
        .iter()
        .for_each(|endpoint| out += &endpoint_row(endpoint));
    out + "</tbody></table></section>\n"
}

/// Its roles are said, because a phone shows each row as a card, and a browser then no longer takes it for a row.
fn table_head(caption: &str, columns: &[&str]) -> String {
    let columns = columns
        .iter()
        .map(|name| format!("<th role=\"columnheader\" scope=\"col\">{name}</th>"));
    format!(
        "<table class=\"rows\" role=\"table\"><caption class=\"unseen\">{caption}</caption><thead role=\"rowgroup\">\
         <tr role=\"row\">{}</tr></thead><tbody role=\"rowgroup\">\n",
        columns.collect::<String>()
    )
}

fn endpoint_row(endpoint: &Value) -> String {
    let state = text(&endpoint["state"]);
    let (class, path) = match state {
        "ACTIVE" => ("ok", CHECK),
        "DEGRADED" | "HALF_OPEN" => ("warning", EXCLAMATION),
        "OPEN" | "DISABLED" => ("critical", CROSS),
        "PAUSED" => ("quiet", PAUSE),
        _ => ("quiet", DASH),
    };
    let since = match endpoint["since"].as_f64() {
        Some(since) => format!("<small>for {}</small>", words::about(since)),
        None => String::new(),
    };
    let hour = Hour::read(&endpoint["minutes"]);
    let p95 = endpoint["p95"].as_f64().map_or("–".to_owned(), words::time);
    let more = endpoint["more"].as_bool().unwrap_or_default();
    let (queued, kept_back) = (figure(&endpoint["queued"]), figure(&endpoint["kept_back"]));
    let mut beside = String::new();
    if kept_back > 0.0 {
        let _ = write!(
            beside,
            "<small>{} kept back</small>",
            words::number(kept_back)
        );
    }
    let dead = figure(&endpoint["failed"]);
    if dead > 0.0 {
        let dead = words::counted(dead, "dead letter", "dead letters");
        let _ = write!(beside, "<small>{dead}</small>");
    }
    format!(
        "<tr role=\"row\"><td role=\"cell\"><span class=\"state {class}\">{}{}</span>{since}</td>\
         <th role=\"rowheader\" scope=\"row\"><bdi>{}</bdi><small><bdi>{}</bdi></small></th>\
         <td role=\"cell\" data-label=\"Last hour\" class=\"wide\">{}</td>\
         <td role=\"cell\" data-label=\"Attempt p95\">{p95}</td>\
         <td role=\"cell\" data-label=\"Queue\">{}{beside}</td>\
         <td role=\"cell\" data-label=\"Last error\" class=\"error\">{}</td></tr>\n",
        icon(path),
        escaped(&state.to_lowercase().replace('_', " ")),
        escaped(text(&endpoint["endpoint"])),
        escaped(text(&endpoint["url"])),
        hour.sparkline(),
        words::count(queued, more),
        last_error(endpoint),
    )
}

fn last_error(endpoint: &Value) -> String {
    let error = match (text(&endpoint["last_error"]), text(&endpoint["reason"])) {
        ("", "") => return "<span class=\"none\">none</span>".to_owned(),
        ("", reason) => escaped(reason),
        (error, _) => escaped(error),
    };
    let mut more = Vec::new();
    if let Some(ago) = endpoint["last_failure"].as_f64() {
        more.push(format!("{} ago", words::about(ago)));
    }
    match endpoint["next_probe"].as_f64() {
        Some(wait) if wait > 0.0 => more.push(format!("next probe in {}", words::about(wait))),
        Some(_) => more.push("next probe now".to_owned()),
        None => {}
    }
    format!("<bdi>{error}</bdi><small>{}</small>", more.join(", "))
}

fn dead_letters(found: &Value) -> String {
    let letters = array(&found["dead_letters"]);
    let mut out = String::from(
        "<section aria-labelledby=\"dead\"><h2 id=\"dead\">Newest dead letters</h2>\n",
    );
    if letters.is_empty() {
        return out + "<p class=\"note\">There is none.</p></section>\n";
    }
    out += &table_head(
        "Newest dead letters, and the statement that sends each again",
        &["Failed", "Event", "Endpoint", "Error", "Send it again"],
    );
    for letter in letters {
        let statement = format!(
            "SELECT webhook_replay({}, {});",
            literal(text(&letter["event_id"])),
            literal(text(&letter["endpoint"]))
        );
        let _ = writeln!(
            out,
            "<tr role=\"row\"><td role=\"cell\" data-label=\"Failed\"><time datetime=\"{}Z\">{} ago</time></td>\
             <th role=\"rowheader\" scope=\"row\"><bdi>{}</bdi></th>\
             <td role=\"cell\" data-label=\"Endpoint\"><bdi>{}</bdi></td>\
             <td role=\"cell\" data-label=\"Error\" class=\"error\"><bdi>{}</bdi><small>{}</small></td>\
             <td role=\"cell\" data-label=\"Send it again\"><code class=\"sql\" tabindex=\"0\">{}</code></td></tr>",
            escaped(text(&letter["failed_at"])).replace(' ', "T"),
            words::about(figure(&letter["age"])),
            escaped(text(&letter["event_type"])),
            escaped(text(&letter["endpoint"])),
            escaped(match text(&letter["last_error"]) {
                "" => text(&letter["reason"]),
                error => error,
            }),
            words::counted(figure(&letter["attempts"]), "attempt", "attempts"),
            escaped(&statement),
        );
    }
    out + "</tbody></table></section>\n"
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn figure(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn whatever_is_called_like_an_element_is_none() {
        const HOSTILE: &str = "<x-hostile a=\"b\" c='d'>&\u{202e}";
        let found = json!({
            "at": HOSTILE, "since": HOSTILE, "until": HOSTILE,
            "status": {"database": HOSTILE, "health": HOSTILE, "reason": HOSTILE, "state": HOSTILE},
            "hour": {"minutes": [[HOSTILE, HOSTILE, HOSTILE]]},
            "endpoint_count": 1,
            "endpoints": [
                {"endpoint": HOSTILE, "state": HOSTILE, "url": HOSTILE, "reason": HOSTILE, "last_error": HOSTILE},
                {"endpoint": HOSTILE, "state": "OPEN", "reason": HOSTILE},
            ],
            "dead_letters": [
                {"event_id": HOSTILE, "event_type": HOSTILE, "endpoint": HOSTILE, "failed_at": HOSTILE, "last_error": HOSTILE},
                {"event_id": HOSTILE, "reason": HOSTILE},
            ],
        });
        let page = page(&found);
        assert!(!page.to_lowercase().contains("<x-hostile"), "{page}");
        assert!(
            !page.contains("a=\"b\"") && !page.contains("c='d'"),
            "{page}"
        );
        assert!(!page.contains('\u{202e}'));
        assert_eq!(
            page.matches("&lt;x-hostile").count(),
            page.matches("x-hostile").count()
        );
        assert!(
            page.matches("&lt;x-hostile").count() > 15,
            "each of them is shown"
        );
    }
}
