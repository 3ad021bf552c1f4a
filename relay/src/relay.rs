//! The life of a relay: it connects, finds the SQL of the extension, and turns the engine until it is told to stop.
//!
//! One thread turns and waits; its runtime drives the connection meanwhile. Requests are sent by the pool's thread. A
//! lost connection is made anew, and requests in flight go on.

use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::UnixStream;
use tokio::runtime::{self, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use webhook_delivery::{Pool, Roots, Setup};
use webhook_engine::{
    Config, End, Engine, Examined, Hold, Identity, Program, SqlStore, Store, TooFew, Trouble,
    allow_open_files, protocol_problem,
};

use crate::health::{self, Health};
use crate::http;
use crate::log;
use crate::memory::Burst;
use crate::options::Options;
use crate::pooler;
use crate::session::Session;
use crate::settings::Settings;
use crate::silence::{Guarded, Silence};

/// How often the relay looks by itself: while it is idle, and while something is in flight.
const LOOK_WHILE_IDLE: Duration = Duration::from_millis(100);
const LOOK_WHILE_BUSY: Duration = Duration::from_millis(20);
const SETTINGS_EVERY: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

pub fn run(options: &Options) -> Result<(), String> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = Rc::new(runtime.map_err(|error| error.to_string())?);
    let roots = Roots::load(options.ca_file.as_deref())
        .map_err(|problem| format!("--ca-file {problem}"))?;
    if options.logs_json {
        log::use_json();
    }
    let health = Health::starting();
    if let Some(serving) = &options.http {
        let (health, target) = (health.clone(), options.target.clone());
        let served = http::Service::start(&runtime, serving.clone(), health, target);
        served.map_err(|error| format!("--http {}: {error}", serving.address))?;
    }
    let stop = await_signals(&runtime).map_err(|error| error.to_string())?;
    let mut relay = Relay {
        options,
        runtime,
        stop,
        roots,
        health,
        silence: Arc::default(),
        has_connected: false,
    };
    relay.live()?;
    log::log("webhook-relay stopped");
    Ok(())
}

/// True from the first signal on; the second one ends the process.
fn await_signals(runtime: &Runtime) -> std::io::Result<watch::Receiver<bool>> {
    let (sender, stop) = watch::channel(false);
    let _context = runtime.enter();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    runtime.spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            health::tell_service_manager("STOPPING=1");
            if sender.send_replace(true) {
                log::log("webhook-relay ends at once: another sender recovers its claims");
                std::process::exit(1);
            }
        }
    });
    Ok(stop)
}

struct Relay<'a> {
    options: &'a Options,
    runtime: Rc<Runtime>,
    stop: watch::Receiver<bool>,
    roots: Roots,
    health: Health,
    silence: Arc<Silence>,
    /// From then on any trouble with the connection may pass.
    has_connected: bool,
}

enum Ended {
    Stopped,
    /// The SQL is gone, or has changed.
    BeginAnew,
}

impl Relay<'_> {
    fn live(&mut self) -> Result<(), String> {
        let mut pause = FIRST_PAUSE;
        while let Some(session) = self.connect()? {
            let ended = match self.find_sql(session) {
                Ok(Some((store, examined))) => self.serve(store, examined),
                Ok(None) => Ok(Ended::Stopped),
                Err(trouble) => Err(trouble),
            };
            match ended {
                Ok(Ended::Stopped) => return Ok(()),
                Ok(Ended::BeginAnew) => pause = FIRST_PAUSE,
                Err(trouble) => {
                    self.health.is_kept_by(&trouble.message);
                    log::warn(&trouble.message, "");
                    self.sleep(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    /// Sleeps for that time, or until it is told to stop.
    fn sleep(&self, time: Duration) {
        let mut stop = self.stop.clone();
        self.runtime.block_on(async {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => {}
                () = tokio::time::sleep(time) => {}
            }
        });
    }

    /// Nothing where it is told to stop. An error is one that the next try would meet too.
    fn connect(&mut self) -> Result<Option<Session>, String> {
        let mut pause = FIRST_PAUSE;
        let mut said = String::new();
        let target = &self.options.target;
        while !self.is_stopped() {
            let mut stop = self.stop.clone();
            let silence = Arc::clone(&self.silence);
            let begun = Session::open(&self.runtime, &target.config, target.tls.clone(), silence);
            let begun = self.runtime.block_on(async {
                tokio::select! {
                    _ = stop.wait_for(|stop| *stop) => None,
                    begun = begun => Some(begun),
                }
            });
            let Some(begun) = begun else { break };
            let prepared = begun.and_then(|session| {
                pooler::refuse(&session, || {
                    Session::begin(&self.runtime, &target.config, target.tls.clone())
                })?;
                session.prepare().map(|()| session)
            });
            match prepared {
                Ok(session) => {
                    self.has_connected = true;
                    log::log(&format!("webhook-relay is connected to {}", target.name));
                    return Ok(Some(session));
                }
                Err(trouble) if !self.has_connected && is_lasting(&trouble) => {
                    return Err(format!("{}: {}", target.name, trouble.message));
                }
                Err(trouble) => {
                    self.health.is_kept_by(&trouble.message);
                    // Each reason is told once.
                    if said != trouble.message {
                        let message =
                            format!("cannot connect to {}: {}", target.name, trouble.message);
                        log::warn(&message, "The relay tries again until it can.");
                        said = trouble.message;
                    }
                }
            }
            self.sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(None)
    }

    /// Waits while there is no SQL, or none that it can work with; nothing where it is told to stop.
    fn find_sql(&self, session: Session) -> Result<Option<(SqlStore<Session>, Examined)>, Trouble> {
        let mut store = SqlStore::new(
            session,
            Identity {
                kind: "relay",
                host: host_name(),
                version: env!("CARGO_PKG_VERSION"),
            },
        );
        let mut said = None;
        while !self.is_stopped() {
            let problem = match store.examine()? {
                None => "the database does not have the extension webhook".to_owned(),
                Some(examined) => match protocol_problem(Program::Relay, examined.protocol) {
                    None => return Ok(Some((store, examined))),
                    Some(problem) => problem,
                },
            };
            self.health.is_kept_by(&problem);
            if said.as_ref() != Some(&problem) {
                log::warn(&format!("webhook-relay delivers nothing: {problem}"), "");
                said = Some(problem);
            }
            self.sleep(SETTINGS_EVERY);
        }
        Ok(None)
    }

    fn serve(&mut self, store: SqlStore<Session>, examined: Examined) -> Result<Ended, Trouble> {
        let session = &store.connection;
        let mut settings = Settings::read(session)?;
        let unable = |error: std::io::Error| Trouble::new("53000", error.to_string());
        let pool = Pool::start(self.setup(&settings)).map_err(unable)?;
        let outcomes = pool.as_fd().try_clone_to_owned().map_err(unable)?;
        let outcomes = {
            let _context = self.runtime.enter();
            UnixStream::from_std(outcomes.into()).map_err(unable)?
        };
        let config = self.config(&settings);
        self.silence.allow(settings.longest_silence);
        let mut engine = Engine::new(
            store,
            Guarded::new(&self.runtime, pool, &self.silence),
            config,
            examined.installation,
            examined.database,
        );
        let mut next_settings = Instant::now() + SETTINGS_EVERY;
        let mut last_look = Instant::now();
        let mut burst = Burst::default();
        loop {
            if self.is_stopped() {
                self.stop(&mut engine, &outcomes);
                return Ok(Ended::Stopped);
            }
            if engine.store().connection.is_over() {
                // From the first connection on trouble may pass: it is no error here.
                let Ok(Some(session)) = self.connect() else {
                    continue;
                };
                engine.store().connection = session;
                engine.begin_session();
                // The SQL may have changed: the engine looks at it first.
                engine.configure(self.config(&settings));
            }
            if Instant::now() >= next_settings {
                next_settings = Instant::now() + SETTINGS_EVERY;
                // In trouble the earlier settings count.
                if let Ok(read) = Settings::read(&engine.store().connection)
                    && read != settings
                {
                    engine.configure(self.config(&read));
                    engine.wire().set_up(self.setup(&read));
                    self.silence.allow(read.longest_silence);
                    settings = read;
                }
            }
            if !settings.rings && next_look(last_look, engine.in_flight()).is_zero() {
                engine.hear_ring();
                last_look = Instant::now();
            }
            if engine.in_flight() > 0 && self.silence.calls_for_question() {
                // The turn meets the same trouble.
                let _ = engine.store().connection.ask_whether_it_lasts();
            }
            if engine.wire().has_taken_back() {
                engine.withdraw_waiting();
            }
            engine.hold((!settings.enabled).then_some(Hold::Claiming));
            let turned = engine.turn();
            engine.take_notices().into_iter().for_each(log::tell);
            match turned {
                Ok(pause) => {
                    self.tell_health(&engine, &settings);
                    burst.note(engine.in_flight());
                    let mut pause =
                        pause.min(next_settings.saturating_duration_since(Instant::now()));
                    if !settings.rings && engine.trouble().is_none() {
                        pause = pause.min(next_look(last_look, engine.in_flight()));
                    }
                    self.wait(&mut engine, &outcomes, pause);
                }
                Err(End::Replaced) => {
                    self.stop(&mut engine, &outcomes);
                    return Ok(Ended::BeginAnew);
                }
                // Requests in flight cannot be settled.
                Err(End::Gone | End::OtherProtocol) => {
                    engine.abort();
                    return Ok(Ended::BeginAnew);
                }
            }
        }
    }

    fn tell_health(&self, engine: &Engine<SqlStore<Session>, Guarded>, settings: &Settings) {
        match engine.trouble() {
            Some(trouble) => self.health.is_kept_by(trouble),
            None if !settings.enabled => self.health.is_kept_by("webhook.enabled is off"),
            None => self.health.turned(engine.in_flight()),
        }
    }

    fn setup(&self, settings: &Settings) -> Setup {
        Setup {
            network: self.options.network.within(&settings.network),
            roots: self.roots.clone(),
        }
    }

    fn config(&self, settings: &Settings) -> Config {
        let wanted = self.options.max_in_flight;
        let max_in_flight = match allow_open_files(wanted) {
            Ok(()) => wanted,
            Err(TooFew { allowed, limit }) => {
                let message = format!(
                    "the limit of open files, {limit}, allows {allowed} requests at the same time, not {wanted}"
                );
                let hint = "Raise the limit (LimitNOFILE of the service, or ulimit -n), or lower --max-in-flight.";
                log::warn(&message, hint);
                allowed
            }
        };
        Config {
            max_in_flight,
            poll_interval: settings.poll_interval,
            stale_after: settings.stale_after,
        }
    }

    /// Waits for a ring, an outcome, a signal, the loss of the connection, or the end of the pause.
    fn wait(
        &self,
        engine: &mut Engine<SqlStore<Session>, Guarded>,
        outcomes: &UnixStream,
        pause: Duration,
    ) {
        let mut stop = self.stop.clone();
        let pause = match engine.in_flight() {
            0 => pause,
            _ => pause.min(self.silence.ask_after()),
        };
        let session = &engine.store().connection;
        let (rung, lost) = (session.rung(), session.lost());
        let is_rung = self.runtime.block_on(async {
            tokio::select! {
                () = rung => true,
                () = readable(outcomes) => false,
                _ = stop.wait_for(|stop| *stop) => false,
                () = lost => false,
                () = tokio::time::sleep(pause) => false,
            }
        });
        if is_rung {
            engine.hear_ring();
        }
    }

    fn stop(&self, engine: &mut Engine<SqlStore<Session>, Guarded>, outcomes: &UnixStream) {
        let in_flight = engine.in_flight();
        if in_flight > 0 {
            log::log(&format!(
                "webhook-relay stops; {in_flight} requests are in flight"
            ));
        }
        engine.stop(self.options.grace, |_, left| {
            self.runtime.block_on(async {
                tokio::select! {
                    () = readable(outcomes) => {}
                    () = tokio::time::sleep(left) => {}
                }
            });
        });
        engine.take_notices().into_iter().for_each(log::tell);
    }
}

/// Takes the byte that tells of outcomes; the engine takes outcomes without it.
async fn readable(outcomes: &UnixStream) {
    while outcomes.readable().await.is_ok() {
        if outcomes.try_read(&mut [0]).is_ok() {
            return;
        }
    }
}

/// The time until it looks for something new, where nobody rings.
fn next_look(last: Instant, in_flight: usize) -> Duration {
    let every = match in_flight {
        0 => LOOK_WHILE_IDLE,
        _ => LOOK_WHILE_BUSY,
    };
    every.saturating_sub(last.elapsed())
}

fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned())
}

/// A wrong name or password, a role without the right, or a pooler of transactions does not pass by itself.
fn is_lasting(trouble: &Trouble) -> bool {
    ["0A", "28", "3D", "42"]
        .iter()
        .any(|class| trouble.code.starts_with(class))
}
