//! Host names of a server or a relay, which resolve to whatever they are told to, or hang. They end in `.invalid`,
//! which nobody owns.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::cluster::Builder;
use crate::directory::ServerDirectory;
use crate::{preload, wait};

const LIBRARY: &str = include_str!("names.c");

pub struct Names {
    library: PathBuf,
    directory: ServerDirectory,
}

impl Names {
    pub fn make() -> Names {
        let directory = ServerDirectory::create("e2e");
        let library = preload::compile(&directory, LIBRARY);
        let names = Names { library, directory };
        names.move_clock_to(Duration::ZERO);
        names.make_readable("monotonic");
        names
    }

    pub fn of(&self, builder: Builder) -> Builder {
        let variables = self.variables();
        variables.iter().fold(builder, |builder, (name, value)| {
            builder.variable(name, value)
        })
    }

    /// The environment of a program that goes by these names.
    pub fn variables(&self) -> [(&'static str, String); 2] {
        let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
        [
            ("LD_PRELOAD", text(&self.library)),
            ("WEBHOOK_NAMES", text(self.directory.path())),
        ]
    }

    /// Holds from its next lookup on, and for lookups that hang.
    pub fn resolve(&self, name: &str, address: &str) {
        self.answer(name, &[&[address]]);
    }

    /// Each lookup from now on has the next answer, with all its addresses; the last answer is repeated.
    pub fn answer(&self, name: &str, answers: &[&[&str]]) {
        assert!(name.ends_with(".invalid"), "{name} may be somebody's");
        let answers: Vec<String> = answers.iter().map(|answer| answer.join("\n")).collect();
        let new = format!("{name}.new");
        fs::write(self.directory.join(&new), answers.join("\n\n")).expect("it can be written");
        self.make_readable(&new);
        let _ = fs::remove_file(self.directory.join(&format!("{name}.lookups")));
        let (new, name) = (self.directory.join(&new), self.directory.join(name));
        fs::rename(new, name).expect("a name can be given");
    }

    /// Lookups that were answered since the name was given its answers.
    pub fn lookups(&self, name: &str) -> u64 {
        let counter = fs::metadata(self.directory.join(&format!("{name}.lookups")));
        counter.map_or(0, |counter| counter.len())
    }

    /// Waits until a lookup of the name hangs.
    #[track_caller]
    pub fn wait_for_lookup(&self, name: &str) {
        let asked = self.directory.join(&format!("{name}.asked"));
        wait::until_true(&format!("a lookup of {name}"), || asked.exists());
    }

    /// Lookups hang until `resolve()`.
    pub fn hang(&self, name: &str) {
        self.resolve(name, "");
    }

    /// Sets the monotonic clock of the programs this far ahead of the true one, by which the age of answers and of idle
    /// connections is counted. It never goes back.
    pub fn move_clock_to(&self, ahead: Duration) {
        let microseconds = i64::try_from(ahead.as_micros()).expect("a test takes less than an age");
        // Never shorter than that: it is mapped.
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.directory.join("monotonic"));
        let written = file.and_then(|mut file| file.write_all(&microseconds.to_ne_bytes()));
        written.expect("the file can be written");
    }

    fn make_readable(&self, file: &str) {
        let readable = fs::Permissions::from_mode(0o644);
        fs::set_permissions(self.directory.join(file), readable).expect("the file is ours");
    }
}
