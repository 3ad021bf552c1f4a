//! The extension beside other systems: the same committed events, the same signed POSTs, the same sink,
//! runs in turns.

use webhook_e2e::Cluster;

use crate::chart::{self, Bar, Panel};
use crate::measure::median;
use crate::options::Options;
use crate::report::{self, Figure, number, progress};
use crate::sink::Sink;
use crate::systems::{Run, SYSTEMS, Sample, System};

/// How long the sink takes for an answer, and how many endpoints there are.
#[derive(Clone, Copy)]
struct Cell {
    delay_ms: u64,
    endpoints: u32,
}

const CELLS: [Cell; 4] = [
    Cell::new(0, 1),
    Cell::new(0, 50),
    Cell::new(100, 1),
    Cell::new(100, 50),
];

impl Cell {
    const fn new(delay_ms: u64, endpoints: u32) -> Cell {
        Cell {
            delay_ms,
            endpoints,
        }
    }

    fn name(self) -> String {
        let sink = match self.delay_ms {
            0 => "instant".to_owned(),
            delay => format!("{delay} ms"),
        };
        let plural = if self.endpoints == 1 { "" } else { "s" };
        format!("{sink}, {} endpoint{plural}", self.endpoints)
    }
}

/// One system in one cell: its best concurrency and the samples of it.
struct Outcome {
    cell: Cell,
    system: System,
    concurrency: u32,
    samples: Vec<Sample>,
    trouble: Option<String>,
}

impl Outcome {
    fn rate(&self) -> f64 {
        self.median(Sample::rate)
    }

    fn median(&self, figure: impl Fn(&Sample) -> f64) -> f64 {
        median(self.samples.iter().map(figure))
    }

    fn per_delivery(&self, total: impl Fn(&Sample) -> f64) -> f64 {
        self.median(|sample| sample.per_delivery(total(sample)))
    }
}

pub fn run(options: &Options) -> Vec<Figure> {
    let cluster = (Cluster::builder().purpose("bench"))
        // No checkpoint in the midst of a run.
        .setting("max_wal_size = '8GB'")
        .setting("checkpoint_timeout = '1h'")
        .start();
    let (mut present, mut missing) = (Vec::new(), Vec::new());
    for system in SYSTEMS
        .into_iter()
        .filter(|system| options.wants_system(&system.name()))
    {
        match system.version() {
            Ok(version) => present.push((system, version)),
            Err(why) => {
                progress(&format!("comparison: without {}: {why}", system.name()));
                missing.push(format!("{}: {why}", system.name()));
            }
        }
    }
    let systems: Vec<System> = present.iter().map(|(system, _)| *system).collect();
    let outcomes: Vec<Outcome> = (CELLS.into_iter())
        .flat_map(|cell| measure(options, &cluster, cell, &systems))
        .collect();

    let table = table(options, &outcomes);
    println!("\n{table}");
    let mut text = table;
    for (system, version) in &present {
        text += &format!("\n- {}: {version}{}", system.name(), system.caveat());
    }
    for why in missing {
        text += &format!("\n- missing: {why}");
    }
    report::write(options, "systems", &format!("{text}\n"));
    report::write_file(options, "systems.svg", &draw(&outcomes));
    figures(&outcomes)
}

/// In the first round a system is run at each of its concurrencies, then at the best of them.
fn measure(options: &Options, cluster: &Cluster, cell: Cell, systems: &[System]) -> Vec<Outcome> {
    let sink = Sink::start(cell.delay_ms, cell.endpoints);
    let run = Run {
        cluster,
        sink: &sink,
        events: options.events,
        limit: options.limit,
    };
    let mut outcomes: Vec<Outcome> = (systems.iter())
        .map(|&system| Outcome {
            cell,
            system,
            concurrency: 0,
            samples: Vec::new(),
            trouble: None,
        })
        .collect();
    for round in 1..=options.rounds {
        for outcome in &mut outcomes {
            if outcome.trouble.is_some() {
                continue;
            }
            let again = [outcome.concurrency];
            let concurrencies = match round {
                1 => outcome.system.concurrencies(),
                _ => &again[..],
            };
            let mut best: Option<(u32, Sample)> = None;
            for &concurrency in concurrencies {
                let what = said(cell, outcome.system, concurrency);
                match checked(&run, outcome.system, concurrency) {
                    Ok(sample) => {
                        progress(&format!(
                            "round {round}: {what}: {}/s",
                            number(sample.rate())
                        ));
                        if best
                            .as_ref()
                            .is_none_or(|(_, best)| sample.rate() > best.rate())
                        {
                            best = Some((concurrency, sample));
                        }
                    }
                    Err(why) => {
                        progress(&format!("round {round}: {what}: failed: {why}"));
                        outcome.trouble = Some(why);
                    }
                }
            }
            if let Some((concurrency, sample)) = best {
                outcome.trouble = None;
                outcome.concurrency = concurrency;
                outcome.samples.push(sample);
            }
        }
    }
    outcomes
}

/// Each event is sent once, signed, in a body of the same size.
fn checked(run: &Run, system: System, concurrency: u32) -> Result<Sample, String> {
    let before = run.sink.counts();
    let sample = system.measure(run, concurrency)?;
    let after = run.sink.counts();
    let requests = after.requests - before.requests;
    let unsigned = after.unsigned - before.unsigned;
    let bytes = (after.body_bytes - before.body_bytes) as f64 / requests.max(1) as f64;
    let wanted = crate::drain::BODY_BYTES as f64;
    if sample.settled == 0 {
        Err("nothing was settled".to_owned())
    } else if unsigned > 0 {
        Err(format!("{unsigned} requests were not signed"))
    } else if requests > run.events.into() {
        Err(format!("{requests} requests for {} events", run.events))
    } else if sample.settled == u64::from(run.events) && (bytes / wanted - 1.0).abs() > 0.02 {
        Err(format!("bodies had {bytes:.0} bytes, not {wanted:.0}"))
    } else {
        Ok(sample)
    }
}

fn said(cell: Cell, system: System, concurrency: u32) -> String {
    match concurrency {
        0 => format!("{}: {}", cell.name(), system.name()),
        _ => format!("{}: {} at {concurrency}", cell.name(), system.name()),
    }
}

fn table(options: &Options, outcomes: &[Outcome]) -> String {
    const HEADING: [&str; 9] = [
        "receiver",
        "system",
        "in flight",
        "settled/s",
        "spread",
        "CPU us, sender",
        "CPU us, with store",
        "log bytes",
        "commits",
    ];
    let rows = outcomes.iter().map(|outcome| {
        let head = [outcome.cell.name(), outcome.system.name()];
        let figures = match &outcome.trouble {
            Some(why) if outcome.samples.is_empty() => {
                let mut cells = vec![String::new(); HEADING.len() - head.len()];
                cells[1] = format!("failed: {why}");
                cells
            }
            _ => outcome_cells(options, outcome),
        };
        head.into_iter().chain(figures).collect()
    });
    report::markdown(&HEADING, rows)
}

fn outcome_cells(options: &Options, outcome: &Outcome) -> Vec<String> {
    let rates = || outcome.samples.iter().map(Sample::rate);
    let cut = (outcome.samples.iter()).map(|sample| sample.settled).min();
    let cut = cut.filter(|&settled| settled < options.events.into());
    let cut = cut.map_or(String::new(), |settled| {
        let limit = options.limit.as_secs();
        format!(" (cut: {} in {limit} s)", number(settled as f64))
    });
    let micros = |figure: fn(&Sample) -> std::time::Duration| {
        number(outcome.per_delivery(|sample| figure(sample).as_secs_f64() * 1e6))
    };
    let counted = |figure: fn(&Sample) -> Option<i64>| {
        number(outcome.per_delivery(|sample| figure(sample).map_or(f64::NAN, |n| n as f64)))
    };
    let commits = outcome.per_delivery(|sample| sample.commits.map_or(f64::NAN, |n| n as f64));
    let commits = match commits {
        commits if commits.is_finite() => format!("{commits:.3}"),
        _ => "-".to_owned(),
    };
    vec![
        match (outcome.system, outcome.concurrency) {
            (System::Extension | System::PgNet, _) => "as installed".to_owned(),
            (_, concurrency) => number(concurrency.into()),
        },
        number(outcome.rate()) + &cut,
        format!(
            "{}-{}",
            number(rates().fold(f64::INFINITY, f64::min)),
            number(rates().fold(0.0, f64::max))
        ),
        micros(|sample| sample.sender_cpu),
        micros(|sample| sample.all_cpu),
        counted(|sample| sample.log_bytes),
        commits,
    ]
}

fn draw(outcomes: &[Outcome]) -> String {
    let panels = CELLS.map(|cell| Panel {
        title: cell.name(),
        bars: (outcomes.iter())
            .filter(|outcome| outcome.cell.name() == cell.name() && !outcome.samples.is_empty())
            .map(|outcome| Bar {
                name: outcome.system.name(),
                value: outcome.rate(),
                is_ours: outcome.system == System::Extension,
                is_ceiling: outcome.system == System::Bare,
            })
            .collect(),
    });
    chart::draw("Webhooks sent and settled, per second", &panels)
}

/// The ratios that docs/performance.md promises.
fn figures(outcomes: &[Outcome]) -> Vec<Figure> {
    let rate = |delay_ms: u64, endpoints: u32, is_it: &dyn Fn(System) -> bool| {
        (outcomes.iter())
            .filter(|outcome| {
                outcome.cell.delay_ms == delay_ms && outcome.cell.endpoints == endpoints
            })
            .filter(|outcome| is_it(outcome.system))
            .map(Outcome::rate)
            .fold(f64::NAN, f64::max)
    };
    let ours = |system| system == System::Extension;
    let bullmq = |system| matches!(system, System::BullMq(_));
    let graphile = |system| system == System::Graphile;
    let bare = |system| system == System::Bare;
    let ratio = |measure: &str, ratio: f64, wanted: f64| {
        let wanted_ratio = format!("at least {wanted}");
        match ratio.is_finite() {
            true => {
                Figure::new(measure, format!("{ratio:.2}")).wanted(wanted_ratio, ratio >= wanted)
            }
            false => Figure::new(measure, "not measured"),
        }
    };
    let instant = rate(0, 1, &ours);
    let (one, fifty) = (rate(100, 1, &ours), rate(100, 50, &ours));
    let cpu = (outcomes.iter())
        .find(|outcome| outcome.system == System::Extension)
        .map_or(f64::NAN, |outcome| {
            outcome.per_delivery(|sample| sample.sender_cpu.as_secs_f64() * 1e6)
        });
    vec![
        ratio(
            "instant sink: settled/s against BullMQ",
            instant / rate(0, 1, &bullmq),
            3.5,
        ),
        ratio(
            "instant sink: settled/s against graphile-worker",
            instant / rate(0, 1, &graphile),
            3.0,
        ),
        ratio(
            "instant sink: settled/s against the bare client",
            instant / rate(0, 1, &bare),
            0.4,
        ),
        Figure::new(
            "100 ms, one endpoint, as installed",
            format!("{}/s", number(one)),
        )
        .wanted("at least 900/s: 0.9 of 100 in flight", one >= 900.0),
        Figure::new(
            "100 ms, 50 endpoints, as installed",
            format!("{}/s", number(fifty)),
        )
        .wanted("at least 7,000/s: 0.7 of 1,000 in flight", fifty >= 7000.0),
        ratio(
            "100 ms, 50 endpoints: against BullMQ",
            fifty / rate(100, 50, &bullmq),
            1.0,
        ),
        ratio(
            "100 ms, 50 endpoints: against graphile-worker",
            fifty / rate(100, 50, &graphile),
            1.0,
        ),
        Figure::new(
            "CPU of the worker per delivery, instant sink",
            format!("{cpu:.0} us"),
        )
        .wanted("at most 50 us", cpu <= 50.0),
    ]
}
