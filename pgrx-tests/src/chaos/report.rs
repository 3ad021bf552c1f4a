//! docs/reliability.md, as the runner writes it.

use std::time::Duration;

use crate::chaos::{CASES, Case, LONG, Score, try_run};

/// The result of a case, over all of its seeds.
pub struct Outcome {
    pub case: &'static Case,
    pub runs: usize,
    pub score: Score,
    /// The seed of the first run that failed, and why.
    pub failure: Option<(u64, String)>,
}

impl Outcome {
    pub fn of(case: &'static Case) -> Outcome {
        Outcome {
            case,
            runs: 0,
            score: Score::default(),
            failure: None,
        }
    }

    /// Runs the case once more. Its numbers count whether it fails or not.
    pub fn run(&mut self, seed: u64, size: usize) -> Result<(), String> {
        let (score, failure) = try_run(self.case, seed, size);
        self.runs += 1;
        self.score.add(&score);
        failure.map_or(Ok(()), |why| {
            self.failure.get_or_insert((seed, why.clone()));
            Err(why)
        })
    }
}

/// The page up to the first row of its table.
pub fn head(seeds: u64, server: &str) -> String {
    let size = grouped(LONG);
    format!(
        "# Reliability\n\n\
         This page lists what was done to a sender, a server or a receiver, and what became of committed events.\n\
         `make chaos` writes this page: do not edit it.\n\n\
         In most cases two clients emit about 300 events in a second, in transactions of one to four, and roll one in\n\
         eight back; each notes what was committed. Then something breaks. At the end every case has the same\n\
         reconciliation:\n\n\
         - each committed event has arrived, and its delivery is `SENT`;\n\
         - no event that was rolled back has arrived, and no event arrived that is not in the tables;\n\
         - the events of each ordering key arrived in their order (a third of the events has a key, one for each\n  \
           client);\n\
         - where a client never heard whether its commit succeeded, the tables and the receiver agree;\n\
         - at most as many requests were repeated as senders that were lost can have claimed, with one\n  \
           `webhook-id` for all of them.\n\n\
         *Silence* is the longest time without a request since something was killed or stopped, the server's own\n\
         restart included, or since a lasting disturbance, such as a lock, has ended.\n\n\
         Most cases under load commit about {size} events or more, and some of them a few hundred; cases at one named\n\
         point commit a handful.\n\n\
         {WRITTEN_BY}{seeds}` on PostgreSQL {server}.\n\n\
         | case | also asserted | runs | committed | unknown | lost | repeated / claimed | silence |\n\
         |---|---|--:|--:|--:|--:|--:|--:|\n"
    )
}

const WRITTEN_BY: &str = "Written by `make chaos SEEDS=";

/// The number of seeds that a page names, and the version of PostgreSQL.
pub fn written_by(page: &str) -> Option<(u64, &str)> {
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix(WRITTEN_BY))?;
    let (seeds, server) = line.split_once("` on PostgreSQL ")?;
    Some((seeds.parse().ok()?, server.strip_suffix('.')?))
}

pub fn markdown(results: &[Outcome], seeds: u64, server: &str) -> String {
    let mut page = head(seeds, server);
    let mut total = Score::default();
    for result in results {
        let Score {
            committed,
            unknown,
            lost,
            duplicates,
            in_flight,
            ..
        } = result.score;
        let name = match (&result.failure, result.score.not_tested) {
            (Some((seed, _)), _) => format!("**FAILED with seed {seed}:** {}", result.case.name),
            (None, Some(why)) => format!("{} (not tested: {why})", result.case.name),
            (None, None) => result.case.name.to_owned(),
        };
        page += &format!(
            "| {name} | {} | {} | {} | {} | {lost} | {duplicates} / {} | {} |\n",
            result.case.asserts,
            result.runs,
            grouped(committed),
            grouped(unknown),
            grouped(in_flight),
            seconds(result.score.silence),
        );
        total.add(&result.score);
    }
    let tested = (results.iter()).filter(|result| result.score.not_tested.is_none());
    page += &format!(
        "\n{} cases: {} events committed, {} lost, {} requests repeated.\n",
        tested.count(),
        grouped(total.committed),
        total.lost,
        grouped(total.duplicates)
    );
    if results.iter().any(|result| result.failure.is_some()) {
        page += "\nWhere a case FAILED, each committed event that had not arrived when the case ended counts as lost.\n";
    }
    if results.len() < CASES.len() {
        page += "\nThis was a run of some of the cases.\n";
    }
    page
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
