//! Counts of ended attempts and deliveries, in memory until they are added to `webhook.stat`: sql/50_stat.sql.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use serde::Serialize;

use crate::ledger::Ending;
use crate::store::Finished;

#[derive(Default, Debug)]
pub struct Figures(BTreeMap<i32, Figure>);

/// Named as the columns of `webhook.stat`. An attempt that was not sent has failed.
#[derive(Default, Debug, PartialEq, Serialize)]
struct Figure {
    attempts: i64,
    sent: i64,
    failed: i64,
    retried: i64,
    retries: i64,
    attempt_latency: BTreeMap<i32, i64>,
    delivery_latency: BTreeMap<i32, i64>,
}

#[derive(Serialize)]
struct OfEndpoint<'a> {
    endpoint_id: i32,
    #[serde(flatten)]
    figure: &'a Figure,
}

impl Figures {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Claims that were given back, and events of our own, are no attempts that anybody counts.
    pub fn attempted<'a>(&mut self, endings: impl Iterator<Item = &'a Ending>) {
        for ending in endings.filter(|ending| ending.is_counted) {
            let figure = self.0.entry(ending.key.endpoint_id).or_default();
            figure.attempts += 1;
            let class = class(ending.duration);
            *figure.attempt_latency.entry(class).or_default() += 1;
        }
    }

    pub fn finished(&mut self, finished: &[Finished]) {
        for group in finished {
            let figure = self.0.entry(group.endpoint_id).or_default();
            match group.is_sent {
                true => {
                    figure.sent += group.deliveries;
                    *figure
                        .delivery_latency
                        .entry(group.latency_class)
                        .or_default() += group.deliveries;
                }
                false => figure.failed += group.deliveries,
            }
            figure.retried += group.retried;
            figure.retries += group.retries;
        }
    }

    /// Takes the figures of so many endpoints, from the one after the last that was taken; says which is the last
    /// now.
    pub fn take_page(&mut self, after: i32, size: usize) -> (Figures, i32) {
        let following = self.0.range((Excluded(after), Unbounded));
        let ids: Vec<i32> = following
            .chain(self.0.range(..=after))
            .map(|(id, _)| *id)
            .take(size)
            .collect();
        let last = ids.last().copied().unwrap_or(after);
        let page = ids
            .into_iter()
            .filter_map(|id| Some((id, self.0.remove(&id)?)));
        (Figures(page.collect()), last)
    }

    pub fn put_back(&mut self, page: Figures) {
        for (id, figure) in page.0 {
            let sum = self.0.entry(id).or_default();
            sum.attempts += figure.attempts;
            sum.sent += figure.sent;
            sum.failed += figure.failed;
            sum.retried += figure.retried;
            sum.retries += figure.retries;
            add(&mut sum.attempt_latency, figure.attempt_latency);
            add(&mut sum.delivery_latency, figure.delivery_latency);
        }
    }

    /// As `webhook.add_figures()` takes them.
    pub fn as_json(&self) -> String {
        let endpoints = self.0.iter();
        let endpoints: Vec<_> = endpoints
            .map(|(id, figure)| OfEndpoint {
                endpoint_id: *id,
                figure,
            })
            .collect();
        serde_json::to_string(&endpoints).unwrap_or_else(|_| "[]".to_owned())
    }
}

fn add(sum: &mut BTreeMap<i32, i64>, more: BTreeMap<i32, i64>) {
    for (class, count) in more {
        *sum.entry(class).or_default() += count;
    }
}

/// As `webhook.max_latency_class()` has it.
const MAX_CLASS: i32 = 399;

/// Eight classes to a doubling of milliseconds, as `webhook.latency_class()` has it.
fn class(latency: Duration) -> i32 {
    let milliseconds = (latency.as_secs_f64() * 1e3).max(1.0);
    ((8.0 * milliseconds.log2()).floor() as i32).min(MAX_CLASS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;
    use webhook_delivery::Key;

    fn ending(endpoint_id: i32, milliseconds: u64, is_counted: bool) -> Ending {
        let key = Key {
            event_id: Uuid::nil(),
            endpoint_id,
            claim_seq: 1,
        };
        Ending {
            duration: Duration::from_millis(milliseconds),
            is_counted,
            ..Ending::released(key)
        }
    }

    #[test]
    fn attempts_and_finished_deliveries_are_added_up_by_endpoint() {
        let mut figures = Figures::default();
        assert!(figures.is_empty());
        let endings = [
            ending(7, 100, true),
            ending(7, 100, true),
            ending(7, 0, true),
            ending(8, 5, false),
        ];
        figures.attempted(endings.iter());
        let group = |is_sent, latency_class, deliveries, retried, retries| Finished {
            endpoint_id: 7,
            is_sent,
            latency_class,
            deliveries,
            retried,
            retries,
        };
        figures.finished(&[group(true, 60, 2, 1, 4), group(false, 70, 1, 1, 9)]);
        figures.finished(&[group(true, 60, 3, 0, 0)]);
        let told: serde_json::Value = serde_json::from_str(&figures.as_json()).unwrap();
        let expected = serde_json::json!([{
            "endpoint_id": 7, "attempts": 3, "sent": 5, "failed": 1, "retried": 2, "retries": 13,
            "attempt_latency": {"0": 1, "53": 2}, "delivery_latency": {"60": 5}
        }]);
        assert_eq!(told, expected);
    }

    #[test]
    fn pages_go_round_and_lose_nothing() {
        let mut figures = Figures::default();
        let all: Vec<Ending> = (1..=5).map(|id| ending(id, 1, true)).collect();
        figures.attempted(all.iter());
        let (page, last) = figures.take_page(0, 2);
        assert_eq!((page.0.into_keys().collect(), last), (vec![1, 2], 2));
        // Endpoints that have something again wait for their turn.
        figures.attempted(all.iter());
        let (page, last) = figures.take_page(last, 4);
        assert_eq!(
            (page.0.keys().copied().collect(), last),
            (vec![1, 3, 4, 5], 1)
        );
        assert_eq!(page.0[&3].attempts, 2);
        figures.attempted(all.iter());
        figures.put_back(page);
        assert_eq!(figures.0[&3].attempts, 3);
        assert_eq!(figures.0[&3].attempt_latency, BTreeMap::from([(0, 3)]));
        assert_eq!(figures.take_page(last, 9).0.0.len(), 5);
        assert!(figures.is_empty());
        assert_eq!(figures.take_page(7, 9).1, 7);
    }

    #[test]
    fn there_are_eight_classes_to_a_doubling() {
        let of = |milliseconds| class(Duration::from_micros(milliseconds));
        assert_eq!(
            [0, 999, 1_000, 1_090, 1_091, 2_000, 16_000].map(of),
            [0, 0, 0, 0, 1, 8, 32]
        );
        assert_eq!(class(Duration::MAX), MAX_CLASS);
    }
}
